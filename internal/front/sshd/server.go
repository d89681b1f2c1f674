package sshd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// Options are what a Server works with. Fields without a stated default are required.
type Options struct {
	Manager *manager.Manager
	Keys    *sshkey.Keys
	Tokens  *sshkey.Tokens
	// HostKey is what clients know the server by: see HostKey.
	HostKey ssh.Signer
	// Address is where to listen, such as 127.0.0.1:2222.
	Address string
	// MaxConnections is how many there may be that have logged in, and MaxConnectionsPerOwner
	// how many of one owner. When there are more, one that carries nothing makes way, of the
	// owner that has the most. Default of MaxConnectionsPerOwner: half of MaxConnections.
	MaxConnections, MaxConnectionsPerOwner int
	// MaxLogins is how many connections may be about to log in, and MaxLoginsOf how many
	// of them from one address. The oldest make way for more. Default: 32 and 8.
	MaxLogins, MaxLoginsOf int
	// LoginTime is how long it may take to log in. Default: 20 s.
	LoginTime time.Duration
	// FailedRate is how many connections a minute an address may have that fail to log
	// in, and FailedBurst how many at once. Those that come then are slower to fail, and
	// fewer at a time. Default: 10 and 20.
	FailedRate  float64
	FailedBurst int
	// MaxChannels is how many sessions and forwarded connections a connection may have at
	// a time. Default: 32.
	MaxChannels int
	// IdleTimeout is how long a connection may carry nothing.
	IdleTimeout time.Duration
	// KeepAlive is how often a client is asked whether it lives. One that does not answer
	// in twice that time is gone. Default: 30 s.
	KeepAlive time.Duration
	// Memory bounds the memory of connections. Default: no limit.
	Memory *memory.Budget
	// Log receives connections, at level debug. Default: none.
	Log *slog.Logger
}

// Server listens. All methods may be called concurrently.
type Server struct {
	o        Options
	listener net.Listener
	failed   *api.Attempts
	group    sync.WaitGroup // of connections
	crowd    *crowd
}

// Listen opens the listener of a server. Serve serves it and closes it; without Serve the
// caller calls Close.
//
// Invalid: an invalid address. Conflict: the address is in use. PermissionDenied.
func Listen(ctx context.Context, o Options) (*Server, error) {
	o = o.withDefaults()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Address)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "the SSH address %s is in use", o.Address),
			"end that program, or choose another address")
	case errors.Is(err, unix.EACCES):
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "listen for SSH at %s: %w", o.Address, err)
	case err != nil:
		return nil, sandpit.Errorf(sandpit.Invalid, "listen for SSH at %s: %w", o.Address, err)
	}
	failed := api.NewAttempts(o.FailedRate, o.FailedBurst)
	return &Server{o: o, listener: l, failed: failed, crowd: &crowd{
		maxLogins: o.MaxLogins, maxLoginsOf: o.MaxLoginsOf, maxConnections: o.MaxConnections, maxOfOwner: o.MaxConnectionsPerOwner,
		failed: failed, connections: make(map[string][]*visitor),
	}}, nil
}

func (o Options) withDefaults() Options {
	o.MaxConnectionsPerOwner = cmp.Or(o.MaxConnectionsPerOwner, int(fairshare.Half(int64(o.MaxConnections))))
	o.MaxLogins = cmp.Or(o.MaxLogins, 32)
	o.MaxLoginsOf = cmp.Or(o.MaxLoginsOf, 8)
	o.LoginTime = cmp.Or(o.LoginTime, 20*time.Second)
	o.FailedRate = cmp.Or(o.FailedRate, 10)
	o.FailedBurst = cmp.Or(o.FailedBurst, 20)
	o.MaxChannels = cmp.Or(o.MaxChannels, 32)
	o.KeepAlive = cmp.Or(o.KeepAlive, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Addr is the address that the server listens at.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// PublicHostKey is what clients know the server by, as in a known_hosts file: a type and a
// key.
func (s *Server) PublicHostKey() string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.o.HostKey.PublicKey())))
}

// Serve serves until ctx ends, then notifies connected clients, and returns when all
// connections are closed, within a few seconds. It must be called once, and closes the
// listener.
func (s *Server) Serve(ctx context.Context) error {
	connected, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		end(api.ErrDraining)
		_ = s.listener.Close() // it ends Accept
	})
	defer s.group.Wait()
	defer end(api.ErrDraining)
	defer stop()
	err := s.acceptConnections(ctx, connected)
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(sandpit.Errorf(sandpit.Unavailable, "SSH server failed: %w", err), s.listener.Close())
}

// acceptConnections takes connections until the listener is closed, or broken.
func (s *Server) acceptConnections(ctx, connected context.Context) error {
	for {
		conn, err := s.listener.Accept()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = conn.Close() // it came too late
			}
			return err
		case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM):
			s.o.Log.WarnContext(ctx, "a connection for SSH cannot be accepted", slog.Any("error", err))
			select { // those that are open may end
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		case err != nil:
			return err
		}
		l := s.newLogin(connected, addressOf(conn))
		s.crowd.addVisitor(l.visitor) // in the order in which they come
		s.group.Go(func() { s.serveConnection(connected, conn, l) })
	}
}

func addressOf(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// serveConnection has one connection from its beginning to its end.
func (s *Server) serveConnection(ctx context.Context, raw net.Conn, l *login) {
	defer raw.Close()
	begin := time.Now()
	conn, channels, requests, err := l.performHandshake(raw)
	s.crowd.loggedIn(l.visitor)
	defer l.releaseSandbox()
	if err != nil {
		s.logRefusal(ctx, l, err)
		if conn != nil {
			discardConnection(conn, channels, requests)
		}
		return
	}
	c := newConnection(s, conn, l)
	c.serveChannels(channels, requests)
	s.o.Log.DebugContext(ctx, "an SSH connection has ended", slog.String("sandbox", string(l.sandbox.ID())), slog.String("actor", l.actor),
		slog.Duration("took", time.Since(begin)))
}

// discardConnection ends a connection. It reads pending requests, or their reader would never
// end.
func discardConnection(conn *ssh.ServerConn, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	_ = conn.Close() // it may be gone already
	var group sync.WaitGroup
	group.Go(func() { ssh.DiscardRequests(requests) })
	for offer := range channels {
		_ = offer.Reject(ssh.Prohibited, "") // fails only if the client is gone
	}
	group.Wait()
}
