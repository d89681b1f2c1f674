package network

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// How long opening a connection to the outside may take. The timeout of the sandbox's programs
// is usually shorter.
const dialTimeout = time.Minute

// acceptTCP is called for each new connection of the sandbox.
func (g *Gateway) acceptTCP(r *tcp.ForwarderRequest) {
	started := false
	g.goDo(func() { g.serveTCP(r) }, &started)
	if !started {
		r.Complete(true)
	}
}

func (g *Gateway) serveTCP(r *tcp.ForwarderRequest) {
	id := r.ID()
	to := netip.AddrPortFrom(toAddr(id.LocalAddress).Unmap(), id.LocalPort)
	if !g.reserveFlow() {
		g.logRefusal("tcp", to, "the sandbox has too many connections")
		r.Complete(true)
		return
	}
	defer g.releaseFlow()
	if !g.meter.begin.Allow() {
		g.logRefusal("tcp", to, "the sandbox opens too many connections a second")
		r.Complete(true)
		return
	}
	if isGateway(to.Addr()) {
		g.serveOwn(r, to)
		return
	}
	f, v := g.decideFlow("tcp", to)
	if f == nil {
		r.Complete(true) // refused, as from a closed port
		return
	}
	defer g.forgetFlow(f)
	if v.Check == policy.CheckNothing {
		g.carryTCP(f, r)
	} else {
		g.carryNamed(f, r, v)
	}
}

// serveOwn serves a connection to the gateway itself.
func (g *Gateway) serveOwn(r *tcp.ForwarderRequest, to netip.AddrPort) {
	if to.Port() != dnsPort {
		g.logRefusal("tcp", to, "the gateway answers DNS only")
		r.Complete(true)
		return
	}
	box, err := g.acceptSandbox(r)
	if err != nil {
		return // the sandbox closed it meanwhile
	}
	stop := context.AfterFunc(g.ctx, box.abortConn)
	defer stop()
	g.dns.serveStream(box)
	_ = box.Close()
}

// carryTCP connects first and then accepts the sandbox's connection, so that the sandbox
// notices a closed port.
func (g *Gateway) carryTCP(f *flow, r *tcp.ForwarderRequest) {
	out, err := g.dialOutside(g.ctx, f)
	if err != nil {
		r.Complete(true)
		return
	}
	box, err := g.acceptSandbox(r)
	if err != nil {
		_ = out.Close()
		return
	}
	g.pipeBoth(f, box, box, out)
}

// carryNamed accepts the sandbox's connection first, because the sandbox must send the host
// name before the gateway connects.
func (g *Gateway) carryNamed(f *flow, r *tcp.ForwarderRequest, v policy.Verdict) {
	box, err := g.acceptSandbox(r)
	if err != nil {
		return
	}
	f.onEnd(box.abortConn)
	name, first := readName(g.ctx, box, f.to.Port(), v.Check)
	f.setName(name)
	rules := g.currentRules() // they may have changed
	if v = rules.Connect(f.asked); v.Allowed {
		v = rules.Named(v, name, f.to.Port())
	}
	g.logFlow(f, v)
	if !v.Allowed {
		box.abortConn()
		return
	}
	if len(rules.HeadersFor(name, f.to.Port())) > 0 {
		g.inspector.serveConn(f, box, first, name)
		return
	}
	out, err := g.dialOutside(g.ctx, f)
	if err != nil {
		box.abortConn()
		return
	}
	g.pipeBoth(f, box, io.MultiReader(first, box), out)
}

// dialOutside opens the connection to the outside.
func (g *Gateway) dialOutside(ctx context.Context, f *flow) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	f.onEnd(cancel)
	conn, err := g.machine.Dial(ctx, f.proto, f.to)
	if errors.Is(err, sandpit.PermissionDenied) {
		g.logFlow(f, policy.Verdict{Reason: reasonDialer})
	}
	return conn, err
}

// reasonDialer is the reason for a connection that the rules allow but the dialer refuses: the
// machine just got the address, or the gateway's decision was wrong.
const reasonDialer = "the dialer refuses a non-public address that was not granted"

// sandboxConn is the sandbox's side of a connection. It enforces the bandwidth limits.
type sandboxConn struct {
	*gonet.TCPConn

	g      *Gateway
	ep     tcpip.Endpoint
	ctx    context.Context //nolint:containedctx // the life of the connection
	cancel context.CancelFunc
	wide   atomic.Bool
}

// acceptSandbox accepts the sandbox's connection.
func (g *Gateway) acceptSandbox(r *tcp.ForwarderRequest) (*sandboxConn, error) {
	var queue waiter.Queue
	ep, tcpErr := r.CreateEndpoint(&queue)
	if tcpErr != nil {
		r.Complete(true)
		return nil, errors.New(tcpErr.String())
	}
	r.Complete(false)
	ep.SocketOptions().SetKeepAlive(true)
	ep.SocketOptions().SetReceiveBufferSize(receiveWindow, true)
	ep.SocketOptions().SetSendBufferSize(sendBuffer, true)
	ctx, cancel := context.WithCancel(g.ctx)
	return &sandboxConn{TCPConn: gonet.NewTCPConn(&queue, ep), g: g, ep: ep, ctx: ctx, cancel: cancel}, nil
}

// widenBuffers sets wide buffers for the connection, unless too many connections have them.
func (c *sandboxConn) widenBuffers() {
	if !c.wide.CompareAndSwap(false, true) {
		return
	}
	select {
	case c.g.wideSlots <- struct{}{}:
		c.ep.SocketOptions().SetReceiveBufferSize(int64(c.g.link.windowSize()), true)
		c.ep.SocketOptions().SetSendBufferSize(wideBuffer, true)
	default:
		c.wide.Store(false)
	}
}

// narrowBuffers releases wide buffers at the end of the connection.
func (c *sandboxConn) narrowBuffers() {
	if c.wide.Load() {
		<-c.g.wideSlots
	}
}

// abortConn resets the connection.
func (c *sandboxConn) abortConn() {
	c.cancel()
	c.ep.Abort()
}

// Close implements net.Conn.
func (c *sandboxConn) Close() error {
	c.cancel()
	return c.TCPConn.Close()
}

// Read implements net.Conn. It returns when the limits allow the bytes to pass.
func (c *sandboxConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p[:portionOf(c.g.meter.send, len(p))])
	if n > 0 {
		if late := awaitBytes(c.ctx, c.g.meter.send, n); late != nil {
			return 0, late
		}
	}
	return n, err
}

// Write implements net.Conn.
func (c *sandboxConn) Write(p []byte) (int, error) {
	for done := 0; ; {
		part := p[done:][:portionOf(c.g.meter.receive, len(p)-done)]
		if err := awaitBytes(c.ctx, c.g.meter.receive, len(part)); err != nil {
			return done, err
		}
		n, err := c.TCPConn.Write(part)
		if done += n; err != nil || done == len(p) {
			return done, err
		}
	}
}

// pipeBoth copies bytes in both directions until both sides have ended, or one breaks. from
// reads from the sandbox's side.
func (g *Gateway) pipeBoth(f *flow, box *sandboxConn, from io.Reader, out net.Conn) {
	var once sync.Once
	end := func() {
		once.Do(func() {
			if t, ok := out.(*net.TCPConn); ok {
				_ = t.SetLinger(0) // reset the peer's side too
			}
			_ = out.Close()
			box.abortConn()
		})
	}
	f.onEnd(end)
	var back sync.WaitGroup
	half := func(to net.Conn, from io.Reader) {
		if g.copyHalf(to, from, box.widenBuffers) != nil {
			end()
		}
	}
	back.Go(func() { half(box, out) })
	half(out, from)
	back.Wait()
	box.narrowBuffers()
	once.Do(func() {
		_ = out.Close()
		_ = box.Close()
	})
}

// copyHalf copies one direction, and forwards its end.
func (g *Gateway) copyHalf(to net.Conn, from io.Reader, much func()) error {
	if err := g.streams.copyStream(to, from, much); err != nil {
		return err
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// reserveFlow reserves a place for a connection or a UDP flow, or returns false if there are
// too many.
func (g *Gateway) reserveFlow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := g.maxOpen
	if limit := g.rules.Limits().Connections; limit > 0 {
		most = min(most, limit)
	}
	if g.open >= most {
		return false
	}
	g.open++
	return true
}

func (g *Gateway) releaseFlow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}
