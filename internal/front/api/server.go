package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
)

// ServerOptions configure a Server. Handler, Address and Drain are required; the zero value of
// another field means the default stated with it.
type ServerOptions struct {
	// Handler serves the requests. It must be behind an Edge.
	Handler http.Handler
	// Address is the TCP address, or NoAddress.
	Address string
	// Socket is the path of a Unix socket that only its owner can use. Default: none.
	Socket string
	// TLS enables HTTPS at Address. Default: plain HTTP.
	TLS *tls.Config
	// MaxConnections is the maximum number of connections at Address. A further one replaces
	// another: see connections. Default: half of the files that the process may have open, which
	// is also the maximum.
	MaxConnections int
	// MaxSocketConnections is the maximum number of connections at Socket. Default: 256.
	MaxSocketConnections int
	// MaxConnectionsPerAddress and MaxConnectionsPerOwner are the maximum numbers from one
	// address (IPv6: one /64) and of one owner. Default: half of MaxConnections.
	MaxConnectionsPerAddress, MaxConnectionsPerOwner int
	// Proxies are trusted to forward requests of many clients and to limit their connections.
	// Default: none.
	Proxies Proxies
	// StallTimeout is how long a client may not read a pending response. Default: 1 min.
	StallTimeout time.Duration
	// Drain is how long active requests may take when the server shuts down.
	Drain time.Duration
	// MaxHeader is the maximum number of bytes of a request's head. Default: 64 KiB.
	MaxHeader int
	// HeaderTimeout is how long the head of a request may take to arrive. Default: 10 s.
	HeaderTimeout time.Duration
	// IdleTimeout is how long an unused connection is kept open. Default: 2 min.
	IdleTimeout time.Duration
	// Log receives failed connections at the level debug, and requests that are canceled at
	// shutdown. Default: nothing is logged.
	Log *slog.Logger
}

// NoAddress as ServerOptions.Address means that there is only a Unix socket.
const NoAddress = "none"

// unknownShare is the share of all connections that is left for those without an owner: one
// of unknownShare, and at least minUnknown.
const (
	unknownShare = 8
	minUnknown   = 16
)

// The limits of connections.
const (
	defaultMaxHeader = 64 << 10         // bytes of the head of a request
	headerTimeout    = 10 * time.Second // until the head of a request has arrived, by default
	largeHeads       = 64               // heads longer than smallHead that are being read at a time
	maxStreams       = 250              // requests at a time on one connection of HTTP/2
	cutTimeout       = 5 * time.Second  // of canceled requests, until their connections are closed
)

// Server listens for HTTP/1.1 and HTTP/2, also without TLS.
type Server struct {
	o           ServerOptions
	http        *http.Server
	tcp, unix   net.Listener // nil: none
	draining    chan struct{}
	requests    *requestCounter
	connections [2]*connections // of tcp and of unix
}

// Listen opens the listeners of a server. The caller calls Serve, which closes them, or Close.
//
// Invalid: an invalid address or path. Conflict: another program listens there.
// PermissionDenied.
func Listen(ctx context.Context, o ServerOptions) (*Server, error) {
	if o.Address == "" || o.Drain <= 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "listen at %q, drain for %v: want an address and a positive time", o.Address, o.Drain)
	}
	o = o.withDefaults()
	s := &Server{o: o, draining: make(chan struct{}), requests: newRequestCounter(), connections: o.newConnections()}
	if o.Address != NoAddress {
		l, err := listenTCP(ctx, o.Address)
		if err != nil {
			return nil, err
		}
		s.tcp = &limitedListener{Listener: l, connections: s.connections[0]}
		if o.TLS != nil {
			s.tcp = tls.NewListener(s.tcp, o.TLS)
		}
	}
	if o.Socket != "" {
		l, err := listenUnix(ctx, o.Socket)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.unix = &limitedListener{Listener: l, connections: s.connections[1]}
	}
	if s.tcp == nil && s.unix == nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "neither an address nor a socket to listen on")
	}
	s.http = s.newHTTP()
	return s, nil
}

func (o ServerOptions) withDefaults() ServerOptions {
	if o.MaxHeader <= 0 {
		o.MaxHeader = defaultMaxHeader
	}
	o.MaxConnections = min(cmp.Or(o.MaxConnections, math.MaxInt), maxFiles()/2)
	half := int(fairshare.Half(int64(o.MaxConnections)))
	for _, n := range []struct {
		field *int
		value int
	}{{&o.MaxSocketConnections, 256}, {&o.MaxConnectionsPerAddress, half}, {&o.MaxConnectionsPerOwner, half}} {
		if *n.field <= 0 {
			*n.field = n.value
		}
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&o.HeaderTimeout, headerTimeout}, {&o.IdleTimeout, 2 * time.Minute}, {&o.StallTimeout, stallTimeout}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// newConnections returns the connections over TCP and those of the Unix socket. TCP
// connections cannot take the place of those of the socket, which are for administrators.
func (o ServerOptions) newConnections() [2]*connections {
	tcp := connectionLimits{
		total: o.MaxConnections, unknown: min(max(o.MaxConnections/unknownShare, minUnknown), o.MaxConnections),
		perAddress: o.MaxConnectionsPerAddress, perOwner: o.MaxConnectionsPerOwner, exempt: o.Proxies.Contains,
	}
	tcp.largeHeads, tcp.largeHeadsPerAddress = largeHeads, largeHeads/8
	socket := connectionLimits{total: o.MaxSocketConnections, largeHeads: largeHeads, largeHeadsPerAddress: largeHeads, exempt: func(netip.Addr) bool { return true }}
	return [2]*connections{newConnections(tcp), newConnections(socket)}
}

// maxFiles returns how many files this process may have open.
func maxFiles() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxInt32
	}
	return int(min(limit.Cur, math.MaxInt32))
}

func (s *Server) newHTTP() *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: s.requests.countRequests(guardWrites(s.o.Handler, s.o.StallTimeout)), Protocols: p,
		ReadHeaderTimeout: s.o.HeaderTimeout, IdleTimeout: s.o.IdleTimeout, MaxHeaderBytes: s.o.MaxHeader,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: time.Minute, WriteByteTimeout: time.Minute},
		ConnContext: withConnection,
		ConnState: func(conn net.Conn, state http.ConnState) {
			if m := findConnection(conn); m != nil {
				m.set.setState(m, state)
			}
		},
		ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
}

// Addr returns the address at which the server listens; nil if it has only a Unix socket.
func (s *Server) Addr() net.Addr {
	if s.tcp == nil {
		return nil
	}
	return s.tcp.Addr()
}

// Close closes the listeners if Serve is not called.
func (s *Server) Close() error {
	var errs []error
	for _, l := range []net.Listener{s.tcp, s.unix} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

type drainKey struct{}

// Draining returns a channel that is closed when the server of a request begins to shut down.
// Requests that have no end of their own end then and say so; others have time to finish.
// After that time, the request's context ends with a cause.
func Draining(ctx context.Context) <-chan struct{} {
	ch, _ := ctx.Value(drainKey{}).(chan struct{})
	return ch // nil outside of a server
}

// ErrDraining is the cause when a request ends because the server shuts down.
var ErrDraining = sandpit.Errorf(sandpit.Unavailable, "the server is shutting down")

// Serve serves until ctx ends, and then drains: it accepts no more connections, waits for
// active requests, cancels the remaining ones, and closes their connections if they still do
// not end, which is a Timeout. It must be called once, and closes the listeners.
func (s *Server) Serve(ctx context.Context) error {
	base, cut := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), drainKey{}, s.draining))
	defer cut(nil)
	s.http.BaseContext = func(net.Listener) context.Context { return base }
	failed := make(chan error, 2)
	var serving sync.WaitGroup
	for _, l := range []net.Listener{s.tcp, s.unix} {
		if l != nil {
			serving.Go(func() { failed <- s.http.Serve(l) })
		}
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = sandpit.Errorf(sandpit.Unavailable, "accept connections: %w", err)
	}
	err = errors.Join(err, s.drainRequests(context.WithoutCancel(ctx), cut))
	serving.Wait()
	return err
}

func (s *Server) drainRequests(ctx context.Context, cut context.CancelCauseFunc) error {
	close(s.draining)
	wait := func(d time.Duration) bool {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return s.http.Shutdown(ctx) == nil && s.requests.waitForNone(ctx)
	}
	if wait(s.o.Drain) {
		return nil
	}
	s.o.Log.WarnContext(ctx, "server: canceling requests that did not end in time", slog.Int("requests", s.requests.current()))
	cut(ErrDraining)
	if wait(cutTimeout) {
		return nil
	}
	_ = s.http.Close() // the clients notice
	for _, c := range s.connections {
		c.closeAll() // also hijacked connections
	}
	last, cancel := context.WithTimeout(ctx, cutTimeout)
	defer cancel()
	if s.requests.waitForNone(last) {
		return nil
	}
	return sandpit.Errorf(sandpit.Timeout, "shut the server down: %d requests did not end", s.requests.current())
}

// requestCounter counts active requests.
type requestCounter struct {
	mu      sync.Mutex
	n       int
	changed chan struct{} // closed when n becomes zero; nil if no caller waits
}

func newRequestCounter() *requestCounter { return &requestCounter{} }

func (t *requestCounter) countRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.addCount(1)
		defer t.addCount(-1)
		next.ServeHTTP(w, r)
	})
}

func (t *requestCounter) addCount(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += n
	if t.n == 0 && t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

func (t *requestCounter) current() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// waitForNone waits until no request is left, and returns false if ctx ends first.
func (t *requestCounter) waitForNone(ctx context.Context) bool {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return true
	}
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	ch := t.changed
	t.mu.Unlock()
	select {
	case <-ch:
		return true
	case <-ctx.Done():
		return false
	}
}
