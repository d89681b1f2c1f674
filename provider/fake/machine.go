package fake

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
)

// machine is a running guest, with all connections to it and to other ports.
type machine struct {
	guest  *guest.Guest
	server *http.Server
	ln     *listener
	served chan struct{}  // closed when the server has ended
	open   sync.WaitGroup // connections of the server
	calls  gate
	off    chan struct{} // closed when it is stopped

	hanging atomic.Int64 // calls that a guest that hangs has received and does not begin

	mu    sync.Mutex
	conns map[*tracked]bool // nil when the machine is off
}

// startMachine starts a guest that has no key yet. stall returns how it hangs at the moment.
func startMachine(stall func() Stall) *machine {
	m := &machine{
		guest: guest.New(), ln: newListener(), off: make(chan struct{}),
		served: make(chan struct{}), conns: make(map[*tracked]bool),
	}
	m.server = &http.Server{
		Handler:           m.calls.wrapHandler(m.stallCalls(m.guest.Handler(), stall)),
		ReadHeaderTimeout: 30 * time.Second,
		ConnState:         m.noteState,
		Protocols:         new(http.Protocols),
	}
	m.server.Protocols.SetHTTP1(true)
	m.server.Protocols.SetUnencryptedHTTP2(true)
	go func() {
		defer close(m.served)
		_ = m.server.Serve(m.ln) // it only ends when it is closed
	}()
	return m
}

// noteState counts the open connections of the server.
func (m *machine) noteState(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		m.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		m.open.Done()
	case http.StateActive, http.StateIdle:
	}
}

// stopAll breaks all connections, kills all processes and waits for the guest's
// goroutines. It is called once.
func (m *machine) stopAll(dir string) {
	close(m.off)
	_ = m.server.Close() // it only fails for broken connections
	m.mu.Lock()
	conns := m.conns
	m.conns = nil
	m.mu.Unlock()
	for c := range conns {
		_ = c.Conn.Close()
	}
	<-m.served
	defer m.open.Wait() // the server may linger on a connection whose request it did not read
	signalAll(dir, syscall.SIGKILL)
	m.calls.closeGate()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		m.guest.Close() // waits for processes that keep an output open
	}()
	for {
		signalAll(dir, syscall.SIGKILL)
		select {
		case <-closed:
			endAll(dir) // including processes that were just started
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// dialPort connects to the guest's own port, or to one of the machine.
func (m *machine) dialPort(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, sandpit.Errorf(sandpit.Invalid, "port %d: want 1 to 65535", port)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("connect to port %d: %w", port, err)
	}
	if port == guest.Port {
		conn, err := m.ln.dialListener(ctx)
		return m.trackConn(conn, err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil && ctx.Err() == nil {
		err = sandpit.Errorf(sandpit.Unavailable, "connect to port %d: nothing listens there", port)
	}
	return m.trackConn(conn, err)
}

// trackConn records a connection until either side closes it.
func (m *machine) trackConn(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns == nil {
		_ = conn.Close()
		return nil, errOff
	}
	c := &tracked{Conn: conn, machine: m}
	m.conns[c] = true
	return c, nil
}

// errOff is the error of a machine that was switched off. The caller then checks the sandbox's state
// for the reason.
var errOff = sandpit.Errorf(sandpit.Gone, "the sandbox ended")

// tracked is a connection that ends with its machine.
type tracked struct {
	net.Conn

	machine *machine
}

// Close implements net.Conn.
func (c *tracked) Close() error {
	c.machine.mu.Lock()
	delete(c.machine.conns, c)
	c.machine.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends one direction, as a TCP connection can.
func (c *tracked) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return sandpit.Errorf(sandpit.Unsupported, "close one direction: not supported by this connection")
	}
	return half.CloseWrite()
}

// listener is a net.Listener that only this process can reach.
type listener struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newListener() *listener {
	return &listener{accepted: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *listener) dialListener(ctx context.Context) (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	select {
	case l.accepted <- theirs:
		return ours, nil
	case <-l.closed:
		err = errOff
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = ours.Close()
	_ = theirs.Close()
	return nil, err
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "guest", Net: "unix"} }

// socketPair returns two connected sockets. Unlike net.Pipe, and like real connections, they buffer
// some bytes.
func socketPair() (a, b net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	conns := make([]net.Conn, len(fds))
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "connection")
		defer f.Close()
		var connErr error
		if conns[i], connErr = net.FileConn(f); connErr != nil {
			err = connErr
		}
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}

// gate counts the calls that a handler serves, so that closeGate can wait for them.
type gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

func (g *gate) enterGate() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

// closeGate refuses new calls and waits for the running ones.
func (g *gate) closeGate() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}

func (g *gate) wrapHandler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.enterGate() {
			panic(http.ErrAbortHandler) // the machine is off: no response
		}
		defer g.inside.Done()
		h.ServeHTTP(w, r)
	})
}
