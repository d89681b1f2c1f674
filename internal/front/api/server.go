package api

import (
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

// DefaultAddress is where a server listens if nothing else is said.
const DefaultAddress = "127.0.0.1:8090"

// ServerOptions say where a server listens. Handler must be given; the zero value
// of another field means the default stated with it.
type ServerOptions struct {
	// Handler answers. It belongs behind an Edge.
	Handler http.Handler
	// Address is where to listen. Default: DefaultAddress. NoAddress: nowhere.
	Address string
	// Socket is the path of a unix socket, for its owner only. Default: none.
	Socket string
	// TLS makes the address one of HTTPS. Default: it is not.
	TLS *tls.Config
	// MaxConnections is how many there may be at Address. When there are more, another one
	// is closed: see crowd. Default: 10,000; at most half of the files that the process may
	// have open.
	MaxConnections int
	// MaxSocketConnections is how many there may be at Socket. Default: 256.
	MaxSocketConnections int
	// MaxConnectionsPerAddress and MaxConnectionsPerOwner are how many there may be of one
	// address (of IPv6: one /64) and of one owner. Default: half of MaxConnections.
	MaxConnectionsPerAddress, MaxConnectionsPerOwner int
	// Proxies are trusted to pass on the requests of many clients, whose connections they
	// count themselves. Default: none.
	Proxies Proxies
	// StallTimeout is how long a client may take nothing of an answer that waits for it.
	// Default: 1 min.
	StallTimeout time.Duration
	// Drain is how long requests have to end when the server does. Default: 30 s.
	Drain time.Duration
	// MaxHeader is how many bytes the head of a request may have. Default: 64 KiB.
	MaxHeader int
	// HeaderTimeout is how long the head of a request may take to come. Default: 10 s.
	HeaderTimeout time.Duration
	// IdleTimeout is how long a connection is kept that is not used. Default: 2 min.
	IdleTimeout time.Duration
	// Log hears of connections that fail, at the level debug, and of what is cut off.
	// Default: nobody does.
	Log *slog.Logger
}

// NoAddress as ServerOptions.Address means that there is a unix socket only.
const NoAddress = "none"

// unknownShare is the part of all connections that those of no owner keep when owners want
// more: one of so many, and at least minUnknown.
const (
	unknownShare = 8
	minUnknown   = 16
)

// The bounds of a connection.
const (
	defaultMaxHeader = 64 << 10         // bytes of the head of a request
	headerTimeout    = 10 * time.Second // until the head of a request is there, by default
	largeHeads       = 64               // heads longer than smallHead that are being read at a time
	maxStreams       = 250              // requests at a time on one connection of HTTP/2
	cutTimeout       = 5 * time.Second  // of requests that were told to end
)

// Server listens. It speaks HTTP/1.1 and HTTP/2, the latter also without TLS.
type Server struct {
	o           ServerOptions
	http        *http.Server
	tcp, unix   net.Listener // nil: none
	draining    chan struct{}
	requests    *requestCounter
	connections [2]*connections // of tcp and of unix
}

// Listen opens the listeners of a server. Serve answers, and closes them; who does
// not call it calls Close.
//
// Invalid: an address or path that is none. Conflict: somebody else
// listens there. PermissionDenied.
func Listen(ctx context.Context, o ServerOptions) (*Server, error) {
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
		return nil, sandpit.Errorf(sandpit.Invalid, "the server is to listen nowhere")
	}
	s.http = s.newHTTP()
	return s, nil
}

func (o ServerOptions) withDefaults() ServerOptions {
	if o.Address == "" {
		o.Address = DefaultAddress
	}
	if o.MaxConnections <= 0 {
		o.MaxConnections = 10_000
	}
	if o.MaxHeader <= 0 {
		o.MaxHeader = defaultMaxHeader
	}
	o.MaxConnections = min(o.MaxConnections, maxFiles()/2)
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
	}{{&o.Drain, 30 * time.Second}, {&o.HeaderTimeout, headerTimeout}, {&o.IdleTimeout, 2 * time.Minute}, {&o.StallTimeout, stallTimeout}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// newConnections returns what counts the connections by TCP, and those by the unix socket, which
// nothing that comes by TCP can take from its administrators.
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

// Addr is the address that the server listens at; nil if it has a unix socket only.
func (s *Server) Addr() net.Addr {
	if s.tcp == nil {
		return nil
	}
	return s.tcp.Addr()
}

// Close closes listeners that Serve was not called for.
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

// Draining returns a channel that is closed when the server of a request is about to
// end. What goes on without an end of its own ends then, and says so; everything
// else has its time to finish. When that is over, the request's context ends, with
// a cause.
func Draining(ctx context.Context) <-chan struct{} {
	ch, _ := ctx.Value(drainKey{}).(chan struct{})
	return ch // nil, which never comes, outside of a server
}

// ErrDraining is why requests end that are cut off, or end themselves, when the
// server ends.
var ErrDraining = sandpit.Errorf(sandpit.Unavailable, "the server is shutting down")

// Serve answers until ctx ends, then drains: it accepts nothing more, waits for the
// requests, tells those that are left, and cuts off what does not end even then,
// which is a Timeout. It must be called once, and closes the listeners.
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
		err = sandpit.Errorf(sandpit.Unavailable, "the server cannot go on: %w", err)
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
	s.o.Log.WarnContext(ctx, "requests have not ended in time and are told to", slog.Int("requests", s.requests.current()))
	cut(ErrDraining)
	if wait(cutTimeout) {
		return nil
	}
	_ = s.http.Close() // those who are cut off hear of it
	for _, c := range s.connections {
		c.closeAll() // also connections that HTTP has given away
	}
	last, cancel := context.WithTimeout(ctx, cutTimeout)
	defer cancel()
	if s.requests.waitForNone(last) {
		return nil
	}
	return sandpit.Errorf(sandpit.Timeout, "shut the server down: %d requests do not end", s.requests.current())
}

// requestCounter counts requests that are being answered.
type requestCounter struct {
	mu      sync.Mutex
	n       int
	changed chan struct{} // closed when n becomes zero; nil if nobody waits
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

// waitForNone waits until there are none, and reports false if ctx ends first.
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
