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
	if !g.enter() {
		g.refuse("tcp", to, "the sandbox has too many connections")
		r.Complete(true)
		return
	}
	defer g.leave()
	if !g.meter.begin.Allow() {
		g.refuse("tcp", to, "the sandbox begins too many connections a second")
		r.Complete(true)
		return
	}
	if isGateway(to.Addr()) {
		g.serveOwn(r, to)
		return
	}
	f, v := g.judge("tcp", to)
	if f == nil {
		r.Complete(true) // refused, as by a machine where nobody listens
		return
	}
	defer g.forget(f)
	if v.Check == policy.CheckNothing {
		g.carry(f, r)
	} else {
		g.carryNamed(f, r, v)
	}
}

// serveOwn serves a connection to the gateway itself.
func (g *Gateway) serveOwn(r *tcp.ForwarderRequest, to netip.AddrPort) {
	if to.Port() != dnsPort {
		g.refuse("tcp", to, "the gateway answers DNS only")
		r.Complete(true)
		return
	}
	box, err := g.accept(r)
	if err != nil {
		return // the sandbox gave up meanwhile
	}
	stop := context.AfterFunc(g.ctx, box.abort)
	defer stop()
	g.dns.serveStream(box)
	_ = box.Close()
}

// carry connects first and answers the sandbox then, so that it learns when
// nobody listens.
func (g *Gateway) carry(f *flow, r *tcp.ForwarderRequest) {
	out, err := g.dial(g.ctx, f)
	if err != nil {
		r.Complete(true)
		return
	}
	box, err := g.accept(r)
	if err != nil {
		_ = out.Close()
		return
	}
	g.pipe(f, box, box, out)
}

// carryNamed answers the sandbox first, since it must say which name it wants
// before anybody is called.
func (g *Gateway) carryNamed(f *flow, r *tcp.ForwarderRequest, v policy.Verdict) {
	box, err := g.accept(r)
	if err != nil {
		return
	}
	f.onEnd(box.abort)
	name, first := listen(g.ctx, box, f.to.Port(), v.Check)
	f.answer(name)
	rules := g.currentRules() // they may be others by now
	if v = rules.Connect(f.asked); v.Allowed {
		v = rules.Named(v, name, f.to.Port())
	}
	g.note(f, v)
	if !v.Allowed {
		box.abort()
		return
	}
	if len(rules.HeadersFor(name, f.to.Port())) > 0 {
		g.inspector.serve(f, box, first, name)
		return
	}
	out, err := g.dial(g.ctx, f)
	if err != nil {
		box.abort()
		return
	}
	g.pipe(f, box, io.MultiReader(first, box), out)
}

// dial opens the connection to the outside.
func (g *Gateway) dial(ctx context.Context, f *flow) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	f.onEnd(cancel)
	conn, err := g.machine.Dial(ctx, f.proto, f.to)
	if errors.Is(err, sandpit.PermissionDenied) {
		g.note(f, policy.Verdict{Reason: reasonWall})
	}
	return conn, err
}

// reasonWall says that the rules allow a connection which the dialer refuses: an address
// that has just become the machine's own, or a wrong decision here.
const reasonWall = "the dialer refuses an address inside that was not granted"

// boxConn is the sandbox's side of a connection. Bytes pass it no faster than they may.
type boxConn struct {
	*gonet.TCPConn

	g      *Gateway
	ep     tcpip.Endpoint
	ctx    context.Context //nolint:containedctx // the life of the connection
	cancel context.CancelFunc
	wide   atomic.Bool
}

// accept answers the sandbox that its connection is open.
func (g *Gateway) accept(r *tcp.ForwarderRequest) (*boxConn, error) {
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
	return &boxConn{TCPConn: gonet.NewTCPConn(&queue, ep), g: g, ep: ep, ctx: ctx, cancel: cancel}, nil
}

// widen gives the connection wide buffers, unless too many have them.
func (c *boxConn) widen() {
	if !c.wide.CompareAndSwap(false, true) {
		return
	}
	select {
	case c.g.wide <- struct{}{}:
		c.ep.SocketOptions().SetReceiveBufferSize(int64(c.g.link.window()), true)
		c.ep.SocketOptions().SetSendBufferSize(wideBuffer, true)
	default:
		c.wide.Store(false)
	}
}

// narrow is called when nothing more is carried.
func (c *boxConn) narrow() {
	if c.wide.Load() {
		<-c.g.wide
	}
}

// abort ends the connection at once; the sandbox sees it reset.
func (c *boxConn) abort() {
	c.cancel()
	c.ep.Abort()
}

// Close implements net.Conn.
func (c *boxConn) Close() error {
	c.cancel()
	return c.TCPConn.Close()
}

// Read implements net.Conn. What was read is handed out when it may pass.
func (c *boxConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p[:portion(c.g.meter.send, len(p))])
	if n > 0 {
		if late := await(c.ctx, c.g.meter.send, n); late != nil {
			return 0, late
		}
	}
	return n, err
}

// Write implements net.Conn.
func (c *boxConn) Write(p []byte) (int, error) {
	for done := 0; ; {
		part := p[done:][:portion(c.g.meter.receive, len(p)-done)]
		if err := await(c.ctx, c.g.meter.receive, len(part)); err != nil {
			return done, err
		}
		n, err := c.TCPConn.Write(part)
		if done += n; err != nil || done == len(p) {
			return done, err
		}
	}
}

// pipe carries bytes both ways until both sides are done, or one breaks. from is
// the sandbox's side for reading.
func (g *Gateway) pipe(f *flow, box *boxConn, from io.Reader, out net.Conn) {
	var once sync.Once
	end := func() {
		once.Do(func() {
			if t, ok := out.(*net.TCPConn); ok {
				_ = t.SetLinger(0) // the peer shall see it reset, too
			}
			_ = out.Close()
			box.abort()
		})
	}
	f.onEnd(end)
	var back sync.WaitGroup
	half := func(to net.Conn, from io.Reader) {
		if g.copyHalf(to, from, box.widen) != nil {
			end()
		}
	}
	back.Go(func() { half(box, out) })
	half(out, from)
	back.Wait()
	box.narrow()
	once.Do(func() {
		_ = out.Close()
		_ = box.Close()
	})
}

// copyHalf carries one direction, its end included.
func (g *Gateway) copyHalf(to net.Conn, from io.Reader, much func()) error {
	if err := g.streams.copy(to, from, much); err != nil {
		return err
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// enter counts a connection or a conversation by UDP, unless there are too many.
func (g *Gateway) enter() bool {
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

func (g *Gateway) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}
