package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const maxPort = 1<<16 - 1

func checkPort(port int) error {
	if port < 1 || port > maxPort {
		return sandpit.Errorf(sandpit.Invalid, "port %d: want 1 to %d", port, maxPort)
	}
	return nil
}

// linger is how long data written before Close may take to arrive.
const linger = 5 * time.Second

// portConn is a connection to a port inside: the bodies of a request and its response, behind pipes
// that add deadlines.
type portConn struct {
	in, out net.Conn // the ends that the user reads and writes
	once    sync.Once
	closed  chan struct{}
}

// dialLimit is how long a responding guest may take to open a connection. The guest's own timeout is
// a third of that.
const dialLimit = 30 * time.Second

// dialPort connects to a port inside.
func (b *sandbox) dialPort(ctx context.Context, port int) (net.Conn, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer b.monitor.Watch(ctx, dialLimit, cancel)()
	conn, err := b.openTunnel(ctx, port)
	if why, ok := errors.AsType[*sandpit.Error](context.Cause(ctx)); ok && err != nil {
		err = why
	}
	if err != nil {
		return nil, fmt.Errorf("connect to port %d: %w", port, err)
	}
	return conn, nil
}

func (b *sandbox) openTunnel(ctx context.Context, port int) (net.Conn, error) {
	if err := b.checkUsable(ctx); err != nil {
		return nil, err
	}
	in, fromInside := net.Pipe()
	toInside, out := net.Pipe()
	life, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the connection's
	end := func() {
		cancel()
		for _, c := range []net.Conn{in, fromInside, toInside, out} {
			_ = c.Close() // never fails
		}
	}
	host := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	r := (&http.Request{
		Method: http.MethodConnect, URL: &url.URL{Scheme: "http", Host: host}, Host: host, Header: http.Header{},
		Body: io.NopCloser(toInside), ContentLength: -1,
	}).WithContext(life)
	stop := context.AfterFunc(ctx, cancel)
	res, err := b.guest.RoundTrip(r)
	if !stop() && err == nil {
		_ = res.Body.Close()
		err = ctx.Err()
	}
	if err != nil {
		end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, b.explainFailure(ctx, err)
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		end()
		return nil, sandpit.Errorf(sandpit.Unavailable, "nothing listens there")
	}
	c := &portConn{in: in, out: out, closed: make(chan struct{})}
	if !b.p.engine.goDo(func() { c.copyFromInside(b, fromInside, res.Body, end) }) {
		_ = res.Body.Close()
		end()
		return nil, errClosed
	}
	return c, nil
}

// copyFromInside copies the data from inside and then ends the connection: when it breaks, or when
// both sides have closed it. After a Close the other side has linger for that.
func (c *portConn) copyFromInside(b *sandbox, fromInside net.Conn, body io.ReadCloser, end func()) {
	broken := make(chan struct{}) // or, after a Close, the other side's end
	var wg sync.WaitGroup
	defer wg.Wait()
	defer body.Close()
	defer end()
	wg.Go(func() {
		_, err := io.Copy(fromInside, body)
		_ = fromInside.Close() // never fails
		if err == nil {        // the user may still send data
			select {
			case <-c.closed:
			case <-b.ended:
			case <-b.p.engine.calls.over:
			}
		}
		_, _ = io.Copy(io.Discard, body) // the user has closed it
		close(broken)
	})
	select {
	case <-broken:
		return
	case <-b.ended:
		return
	case <-b.p.engine.calls.over:
		return
	case <-c.closed:
	}
	enough := time.NewTimer(linger)
	defer enough.Stop()
	select {
	case <-broken:
	case <-enough.C:
	case <-b.ended:
	case <-b.p.engine.calls.over:
	}
}

// Read implements net.Conn.
func (c *portConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// Write implements net.Conn.
func (c *portConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// CloseWrite closes the connection for writing.
func (c *portConn) CloseWrite() error { return c.out.Close() }

// Close implements net.Conn. Data that was written is still sent.
func (c *portConn) Close() error {
	err := os.ErrClosed
	c.once.Do(func() {
		_ = c.out.Close() // never fails
		_ = c.in.Close()  // never fails
		close(c.closed)
		err = nil
	})
	return err
}

// portAddr is an end of a connection to a port inside.
type portAddr struct{}

func (portAddr) Network() string { return "sandbox" }
func (portAddr) String() string  { return "sandbox" }

// LocalAddr implements net.Conn.
func (c *portConn) LocalAddr() net.Addr { return portAddr{} }

// RemoteAddr implements net.Conn.
func (c *portConn) RemoteAddr() net.Addr { return portAddr{} }

// SetDeadline implements net.Conn.
func (c *portConn) SetDeadline(t time.Time) error {
	_ = c.out.SetDeadline(t) // fails as the other does
	return c.in.SetDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *portConn) SetReadDeadline(t time.Time) error { return c.in.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *portConn) SetWriteDeadline(t time.Time) error { return c.out.SetWriteDeadline(t) }
