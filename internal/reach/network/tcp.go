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

// How long opening a connection to the outside may take. The sandbox's own
// patience is usually shorter.
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
		g.logRefusal("tcp", to, "the sandbox begins too many connections a second")
		r.Complete(true)
		return
	}
	if isGateway(to.Addr()) {
		g.serveOwn(r, to)
		return
	}
	f, v := g.decideFlow("tcp", to)
	if f == nil {
		r.Complete(true) // refused, as by a machine where nobody listens
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
		return // the sandbox gave up meanwhile
	}
	stop := context.AfterFunc(g.ctx, box.abortConn)
	defer stop()
	g.dns.serveStream(box)
	_ = box.Close()
}

// carryTCP connects first and answers the sandbox then, so that it learns when
// nobody listens.
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

// carryNamed answers the sandbox first, since it must say which name it wants
// before anybody is called.
func (g *Gateway) carryNamed(f *flow, r *tcp.ForwarderRequest, v policy.Verdict) {
	box, err := g.acceptSandbox(r)
	if err != nil {
		return
	}
	f.onEnd(box.abortConn)
	name, first := readName(g.ctx, box, f.to.Port(), v.Check)
	f.setName(name)
	rules := g.currentRules() // they may be others by now
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
		g.logFlow(f, policy.Verdict{Reason: reasonWall})
	}
	return conn, err
}

// reasonWall says that the rules allow a connection which the dialer refuses: an address
// that has just become the machine's own, or a wrong decision here.
const reasonWall = "the dialer refuses an address inside that was not granted"

// sandboxConn is the sandbox's side of a connection. Bytes pass it no faster than they may.
type sandboxConn struct {
	*gonet.TCPConn

	g      *Gateway
	ep     tcpip.Endpoint
	ctx    context.Context //nolint:containedctx // the life of the connection
	cancel context.CancelFunc
	wide   atomic.Bool
}

// acceptSandbox answers the sandbox that its connection is open.
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

// widenBuffers gives the connection wide buffers, unless too many have them.
func (c *sandboxConn) widenBuffers() {
	if !c.wide.CompareAndSwap(false, true) {
		return
	}
	select {
	case c.g.wide <- struct{}{}:
		c.ep.SocketOptions().SetReceiveBufferSize(int64(c.g.link.windowSize()), true)
		c.ep.SocketOptions().SetSendBufferSize(wideBuffer, true)
	default:
		c.wide.Store(false)
	}
}

// narrowBuffers is called when nothing more is carried.
func (c *sandboxConn) narrowBuffers() {
	if c.wide.Load() {
		<-c.g.wide
	}
}

// abortConn ends the connection at once; the sandbox sees it reset.
func (c *sandboxConn) abortConn() {
	c.cancel()
	c.ep.Abort()
}

// Close implements net.Conn.
func (c *sandboxConn) Close() error {
	c.cancel()
	return c.TCPConn.Close()
}

// Read implements net.Conn. What was read is handed out when it may pass.
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

// pipeBoth carries bytes both ways until both sides are done, or one breaks. from is
// the sandbox's side for reading.
func (g *Gateway) pipeBoth(f *flow, box *sandboxConn, from io.Reader, out net.Conn) {
	var once sync.Once
	end := func() {
		once.Do(func() {
			if t, ok := out.(*net.TCPConn); ok {
				_ = t.SetLinger(0) // the peer shall see it reset, too
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

// copyHalf carries one direction, its end included.
func (g *Gateway) copyHalf(to net.Conn, from io.Reader, much func()) error {
	if err := g.streams.copyStream(to, from, much); err != nil {
		return err
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// reserveFlow counts a connection or a conversation by UDP, unless there are too many.
func (g *Gateway) reserveFlow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := g.most
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
