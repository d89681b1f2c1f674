package dialer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/route"
)

// How long a gateway waits for the dialer, which answers at once. If the dialer was killed, the
// next one reads the pending requests; the gateway repeats a lost one.
const (
	answerLimit  = 10 * time.Second
	repeatPeriod = 500 * time.Millisecond
	routeLimit   = time.Second
)

// keepAlive is the time without traffic before a keepalive probe.
const keepAlive = 30 * time.Second

// How long, and for how many addresses, a Client caches whether they are addresses of the
// machine. The dialer checks each connection again.
const (
	routePeriod = time.Second
	maxRoutes   = 4096
)

// Client sends requests to a dialer. Its methods may be called concurrently.
type Client struct {
	conn *net.UnixConn
	lock chan struct{} // a lock for the fields below
	next uint32

	mu     sync.Mutex
	routes map[netip.Addr]knownRoute
}

type knownRoute struct {
	local bool
	until time.Time
}

// NewClient returns a Client that sends requests through conn, a packet socket, and owns it.
// It ignores replies to earlier users of the socket.
func NewClient(conn *net.UnixConn) *Client {
	c := &Client{conn: conn, lock: make(chan struct{}, 1), next: rand.Uint32(), routes: make(map[netip.Addr]knownRoute)} //nolint:gosec // only distinguishes replies
	c.lock <- struct{}{}
	return c
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Dial opens a connection to exactly the address; network is "tcp", "udp" or "icmp",
// which is for pings and has no port.
//
// PermissionDenied: the address is not public, and the sandbox was not granted it.
func (c *Client) Dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	return c.dialOperation(ctx, opDial, network, to)
}

// DialResolver is Dial to one of the sandbox's resolvers.
func (c *Client) DialResolver(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	return c.dialOperation(ctx, opResolve, network, to)
}

func (c *Client) dialOperation(ctx context.Context, op operation, network string, to netip.AddrPort) (net.Conn, error) {
	protocols := map[string]protocol{"tcp": protocolTCP, "udp": protocolUDP, "icmp": protocolPing}
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	r := request{op: op, protocol: protocols[network], to: to}
	conn, err := c.openConn(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("dial %s %s: %w", network, to, err)
	}
	return conn, nil
}

func (c *Client) openConn(ctx context.Context, r request) (net.Conn, error) {
	got, f, err := c.sendUntil(ctx, r, answerLimit)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, got.replyError()
	}
	defer f.Close()
	if r.protocol == protocolTCP {
		if err := awaitConnection(ctx, f); err != nil {
			return nil, err
		}
	}
	conn, err := net.FileConn(f)
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetKeepAlivePeriod(keepAlive) // a connection works without it
	}
	return conn, err
}

// replyError returns why a reply has no descriptor.
func (r reply) replyError() error {
	switch r.status {
	case statusFailed:
		return r.errno
	case statusRefused:
		return sandpit.Errorf(sandpit.PermissionDenied, "the address is private or special")
	case statusOwn:
		return sandpit.Errorf(sandpit.PermissionDenied, "the address is the machine's own")
	default:
		return sandpit.Errorf(sandpit.Internal, "the dialer refused an invalid request")
	}
}

// awaitConnection waits until a connecting socket is connected.
func awaitConnection(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Now()) })
	defer stop()
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		errno, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && errno != 0 {
			err = unix.Errno(errno)
		}
		if err == nil {
			_, err = unix.Getpeername(int(fd))
		}
		if errors.Is(err, unix.ENOTCONN) {
			return false // not yet
		}
		failed = err
		return true
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, failed)
}

// IsLocal reports whether an address is an address of the machine. It returns true if the
// dialer does not answer, and caches an answer for a second.
func (c *Client) IsLocal(addr netip.Addr) bool {
	addr = addr.Unmap()
	now := time.Now()
	c.mu.Lock()
	known, ok := c.routes[addr]
	c.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.local
	}
	ctx, cancel := context.WithTimeout(context.Background(), routeLimit)
	defer cancel()
	got, f, err := c.sendUntil(ctx, request{op: opRoute, protocol: protocolTCP, to: netip.AddrPortFrom(addr, 0)}, routeLimit)
	if f != nil {
		_ = f.Close() // an unexpected descriptor
	}
	if err != nil {
		return true
	}
	local := got.status != statusAnswer || route.Kind(got.kind) == route.Local
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.routes) >= maxRoutes {
		clear(c.routes)
	}
	c.routes[addr] = knownRoute{local, now.Add(routePeriod)}
	return local
}

// sendUntil sends a request, repeatedly, until it receives the reply. The caller owns the
// descriptor of the reply.
func (c *Client) sendUntil(ctx context.Context, r request, limit time.Duration) (reply, *os.File, error) {
	select {
	case <-c.lock:
		defer func() { c.lock <- struct{}{} }()
	case <-ctx.Done():
		return reply{}, nil, ctx.Err()
	}
	end := time.Now().Add(limit)
	for ctx.Err() == nil && time.Now().Before(end) {
		c.next++
		r.number = c.next
		got, f, err := c.exchangeOnce(r, earlierTime(end, time.Now().Add(repeatPeriod)))
		if !isTimeout(err) {
			return got, f, err
		}
	}
	if err := ctx.Err(); err != nil {
		return reply{}, nil, err
	}
	return reply{}, nil, sandpit.Errorf(sandpit.Unavailable, "the dialer does not respond")
}

func earlierTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// exchangeOnce sends one request and reads until its reply arrives.
func (c *Client) exchangeOnce(r request, until time.Time) (reply, *os.File, error) {
	if err := c.conn.SetDeadline(until); err != nil {
		return reply{}, nil, err
	}
	if _, err := c.conn.Write(r.encodeRequest()); err != nil {
		return reply{}, nil, err
	}
	packet, rights := make([]byte, replySize+1), make([]byte, unix.CmsgSpace(4))
	for {
		n, rn, _, _, err := c.conn.ReadMsgUnix(packet, rights)
		if err != nil {
			return reply{}, nil, err
		}
		f, err := descriptorIn(rights[:rn])
		if err != nil {
			return reply{}, nil, err
		}
		got, ok := decodeReply(packet[:n])
		if ok && got.number == r.number && (f != nil) == (got.status == statusPassed) {
			return got, f, nil
		}
		if f != nil {
			_ = f.Close() // its request was given up
		}
		if ok && got.number == r.number { // this process has too many descriptors
			return reply{number: got.number, status: statusFailed, errno: unix.EMFILE}, nil, nil
		}
	}
}

// descriptorIn returns the descriptor in a message, or nil.
func descriptorIn(rights []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "connection"), nil
}
