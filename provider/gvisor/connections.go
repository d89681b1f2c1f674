package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

const (
	// dialLimit is how long a responsive guest may take to open a connection. The guest
	// itself gives up after a third of that.
	dialLimit = 30 * time.Second
	// freezeLimit is how long the engine may take to report that a sandbox is frozen.
	freezeLimit = 5 * time.Second
	// writeSize is how many bytes a wideConn writes at once.
	writeSize = 256 << 10
)

// engineCaller makes requests to the engine that has a sandbox.
type engineCaller interface {
	call(ctx context.Context, req request, files ...*os.File) (reply, *os.File, error)
}

// connections opens connections to TCP ports of a sandbox.
type connections struct {
	engine  engineCaller
	monitor *liveness.Monitor
	// refreshToken is called before a request to the guest uses a new connection.
	refreshToken func()

	mu         sync.Mutex
	transports map[int]*http.Transport
}

func newConnections(engine engineCaller) *connections {
	return &connections{engine: engine, transports: make(map[int]*http.Transport)}
}

// roundTripper returns the transport for HTTP to a port. Requests to the guest are bounded.
func (c *connections) roundTripper(port int) http.RoundTripper {
	if port == guest.Port {
		return c.monitor.Guest(c.transport(port))
	}
	return c.monitor.Port(c.transport(port))
}

// transport returns the transport for a port, without bounds.
func (c *connections) transport(port int) *http.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.transports[port]; t != nil {
		return t
	}
	dial := c.dialWide
	if port == guest.Port {
		dial = c.dialGuest
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, port) },
		// The sandbox is untrusted.
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
	}
	c.transports[port] = t
	return t
}

// closeIdle closes unused connections.
func (c *connections) closeIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// dial opens a connection, and fails when the guest does not respond.
func (c *connections) dial(ctx context.Context, port int) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer c.monitor.Watch(ctx, dialLimit, cancel)()
	conn, err := c.dialUnbounded(ctx, port)
	if cause, ok := errors.AsType[*sandpit.Error](context.Cause(ctx)); ok && err != nil {
		return nil, fmt.Errorf("connect to port %d: %w", port, cause)
	}
	return conn, err
}

func (c *connections) dialUnbounded(ctx context.Context, port int) (net.Conn, error) {
	conn, err := c.requestConn(ctx, port)
	if err != nil {
		return nil, err
	}
	if err := awaitAnswer(ctx, conn, port); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// requestConn returns a connection that the guest has not answered yet.
func (c *connections) requestConn(ctx context.Context, port int) (net.Conn, error) {
	_, f, err := c.engine.call(ctx, request{Op: opDial, Port: port})
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, sandpit.Errorf(sandpit.Internal, "connect to port %d: the engine sent no connection", port)
	}
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("connect to port %d: %w", port, err)
	}
	return conn, nil
}

// awaitAnswer waits until the guest answers whether the connection is open. While the guest
// starts, this takes as long as the start.
func awaitAnswer(ctx context.Context, conn net.Conn, port int) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("connect to port %d: %w", port, ctx.Err())
		}
		return sandpit.Errorf(sandpit.Gone, "connect to port %d: the sandbox ended", port)
	}
	if answer[0] != guest.AnswerOpen {
		if ctx.Err() != nil {
			return fmt.Errorf("connect to port %d: %w", port, ctx.Err())
		}
		return sandpit.Errorf(sandpit.Unavailable, "connect to port %d: nothing listens there", port)
	}
	return nil
}

// probeGuest is a liveness.Probe: a guest that runs answers each new connection.
func (c *connections) probeGuest(ctx context.Context, asked func()) error {
	conn, err := c.requestConn(ctx, guest.Port)
	if sandpit.CodeOf(err) == sandpit.Timeout { // it accepts no connections
		return liveness.ErrSilent
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	asked()
	err = awaitAnswer(ctx, conn, guest.Port)
	if err == nil || !errors.Is(context.Cause(ctx), liveness.ErrSilent) {
		return err
	}
	// The sandbox may have been frozen since.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeLimit)
	defer cancel()
	again, err := c.requestConn(ctx, guest.Port)
	switch code := sandpit.CodeOf(err); {
	case code == sandpit.Conflict, code == sandpit.Gone:
		return err
	case err == nil:
		_ = again.Close() // unused
	}
	return liveness.ErrSilent
}

// dialWide is dial for large request bodies.
func (c *connections) dialWide(ctx context.Context, port int) (net.Conn, error) {
	conn, err := c.dial(ctx, port)
	if unixConn, ok := conn.(*net.UnixConn); ok {
		return wideConn{unixConn}, err
	}
	return conn, err
}

// dialGuest is dialWide for requests to the guest, which present the guest's current token. A
// resumed guest has a new token, and no connection outlives a token.
func (c *connections) dialGuest(ctx context.Context, port int) (net.Conn, error) {
	conn, err := c.dialWide(ctx, port)
	if err != nil {
		return nil, err
	}
	c.refreshToken()
	return conn, nil
}

// wideConn is a connection that writes large pieces: each piece wakes the guest and costs it
// a system call.
type wideConn struct{ *net.UnixConn }

// ReadFrom implements io.ReaderFrom.
func (c wideConn) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{c.UnixConn}, r, make([]byte, writeSize))
}
