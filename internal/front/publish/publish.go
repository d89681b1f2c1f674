// Package publish opens TCP ports of the machine and passes what comes there on to
// ports inside sandboxes.
package publish

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Dial opens a connection to a port inside a sandbox. The connection ends with ctx.
type Dial = func(ctx context.Context, port int) (net.Conn, error)

// maxConnections is how many connections each sandbox has by its published ports at
// a time. Others are closed at once.
const maxConnections = 1000

// acceptPause is how long a listener rests that cannot accept, for instance because
// there are no more files.
const acceptPause = 100 * time.Millisecond

// Publisher has the published ports of sandboxes. All methods may be called
// concurrently.
type Publisher struct {
	log *slog.Logger
	all sync.WaitGroup

	mu     sync.Mutex
	open   map[sandpit.ID]*sandbox
	closed bool
}

// sandbox is what one sandbox has published.
type sandbox struct {
	ports     []sandpit.Port
	listeners []net.Listener
	dial      Dial
	slots     chan struct{} // full while there are as many connections as there may be
	end       context.CancelFunc
}

// New returns a publisher, which the caller must Close. A nil log discards
// failures of connections.
func New(log *slog.Logger) *Publisher {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Publisher{log: log, open: make(map[sandpit.ID]*sandbox)}
}

// Publish opens the published ports of a sandbox, all or none, and returns them with their
// addresses. Connections are forwarded through dial until Withdraw. Ports that are already
// open stay open.
//
// Invalid: an address that the machine does not have. Conflict: a port is in use.
// PermissionDenied: a port that needs more rights.
func (p *Publisher) Publish(ctx context.Context, id sandpit.ID, ports []sandpit.Port, dial Dial) ([]sandpit.Port, error) {
	if err := sandpit.CheckPorts(ports); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, sandpit.Errorf(sandpit.Unavailable, "publish ports: the publisher is closed")
	}
	if s := p.open[id]; s != nil {
		return append([]sandpit.Port(nil), s.ports...), nil
	}
	s := &sandbox{dial: dial, slots: make(chan struct{}, maxConnections)}
	for _, port := range ports {
		l, err := listenPort(ctx, port)
		if err != nil {
			s.closeListeners()
			return nil, err
		}
		if at, ok := l.Addr().(*net.TCPAddr); ok {
			port.HostIP, port.HostPort = at.IP.String(), at.Port
		}
		s.listeners, s.ports = append(s.listeners, l), append(s.ports, port)
	}
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	s.end = end
	for i, l := range s.listeners {
		p.all.Go(func() { p.acceptConnections(running, s, l, s.ports[i].Port) })
	}
	p.open[id] = s
	return append([]sandpit.Port(nil), s.ports...), nil
}

func listenPort(ctx context.Context, port sandpit.Port) (net.Listener, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", port.Address())
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, unix.EADDRINUSE):
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "publish port %d: %s is in use", port.Port, port.Address()),
			"end that program, choose another port of the machine, or leave it out: a free one is taken then")
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, sandpit.Errorf(sandpit.Invalid, "publish port %d: this machine does not have the address %s", port.Port, port.HostIP)
	case errors.Is(err, unix.EACCES):
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "publish port %d at %s: %w", port.Port, port.Address(), err),
			"choose a port of the machine above 1023")
	default:
		return nil, sandpit.Errorf(sandpit.Unavailable, "publish port %d: %w", port.Port, err)
	}
}

// closeListeners closes the listeners. Connections end when the context does.
func (s *sandbox) closeListeners() {
	for _, l := range s.listeners {
		_ = l.Close() // the port is closed in any case
	}
	if s.end != nil {
		s.end()
	}
}

// Withdraw closes the published ports of a sandbox, if any, and their connections.
func (p *Publisher) Withdraw(id sandpit.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.open[id]; s != nil {
		delete(p.open, id)
		s.closeListeners()
	}
}

// Close withdraws everything and waits until all connections have ended.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	for id, s := range p.open {
		delete(p.open, id)
		s.closeListeners()
	}
	p.mu.Unlock()
	p.all.Wait()
	return nil
}

// acceptConnections passes on the connections of one listener until it is closed.
func (p *Publisher) acceptConnections(ctx context.Context, s *sandbox, l net.Listener, port int) {
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if conn != nil {
				_ = conn.Close() // it came too late
			}
			return
		}
		if err != nil {
			p.log.WarnContext(ctx, "a published port cannot take connections", slog.Int("port", port), slog.Any("error", err))
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case s.slots <- struct{}{}:
		default:
			_ = conn.Close() // too many connections
			continue
		}
		p.all.Go(func() {
			defer func() { <-s.slots }()
			if err := forwardConnection(ctx, conn, s.dial, port); err != nil && ctx.Err() == nil {
				p.log.DebugContext(ctx, "a connection to a published port ended", slog.Int("port", port), slog.Any("error", err))
			}
		})
	}
}

// forwardConnection connects a client with a port inside until both sides have finished, one
// fails, or ctx ends.
func forwardConnection(ctx context.Context, outside net.Conn, dial Dial, port int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer outside.Close()
	inside, err := dial(ctx, port)
	if err != nil {
		return err
	}
	defer inside.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = outside.Close() // which ends reads and writes
		_ = inside.Close()
	})
	defer stop()
	failed := make(chan error, 2)
	go func() { failed <- copyAll(inside, outside) }()
	go func() { failed <- copyAll(outside, inside) }()
	err = <-failed
	if err != nil {
		cancel()
	}
	return errors.Join(err, <-failed)
}

// copyAll copies one direction to its end and then closes the other side for writing.
func copyAll(to, from net.Conn) error {
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	half, ok := to.(interface{ CloseWrite() error })
	if !ok {
		return to.Close()
	}
	if err := half.CloseWrite(); err != nil && !errors.Is(err, unix.ENOTCONN) { // ENOTCONN: it has closed already
		return err
	}
	return nil
}
