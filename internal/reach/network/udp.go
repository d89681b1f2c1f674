package network

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/sandpit-dev/sandpit"
)

// datagramIdle is how long a UDP flow lasts after its last datagram.
const datagramIdle = time.Minute

// acceptUDP is called with the first datagram of each UDP flow. It must not block. false
// makes the stack report an unreachable port to the sandbox.
func (g *Gateway) acceptUDP(r *udp.ForwarderRequest) bool {
	id := r.ID()
	to := netip.AddrPortFrom(toAddr(id.LocalAddress).Unmap(), id.LocalPort)
	own := isGateway(to.Addr())
	if own && to.Port() != dnsPort {
		g.logRefusal("udp", to, "the gateway answers DNS only")
		return false
	}
	done, reason := g.enterDatagrams(own)
	if reason != "" {
		g.logRefusal("udp", to, reason)
		return true
	}
	var f *flow
	if !own {
		if f, _ = g.decideFlow("udp", to); f == nil {
			done()
			return false
		}
	}
	started := false
	box, ok := acceptDatagrams(r)
	if ok {
		g.goDo(func() {
			defer done()
			defer box.Close()
			if own {
				g.dns.serveDatagrams(box)
				return
			}
			defer g.forgetFlow(f)
			g.carryDatagrams(f, box)
		}, &started)
	}
	if !started {
		if ok {
			_ = box.Close()
		}
		if f != nil {
			g.forgetFlow(f)
		}
		done()
	}
	return true
}

// enterDatagrams reserves a UDP flow, or returns the reason for a refusal. DNS questions to
// the gateway have a limit of their own, so that they work when the others are used up.
func (g *Gateway) enterDatagrams(own bool) (leave func(), reason string) {
	select {
	case g.udpSem <- struct{}{}:
	default:
		return nil, "the sandbox has too many UDP flows"
	}
	free := func() { <-g.udpSem }
	switch {
	case own:
		return free, ""
	case !g.meter.begin.Allow():
		free()
		return nil, "the sandbox opens too many connections a second"
	case !g.reserveFlow():
		free()
		return nil, "the sandbox has too many connections"
	}
	return func() { free(); g.releaseFlow() }, ""
}

func acceptDatagrams(r *udp.ForwarderRequest) (*gonet.UDPConn, bool) {
	var queue waiter.Queue
	ep, err := r.CreateEndpoint(&queue)
	if err != nil {
		return nil, false // another datagram of the same flow was faster
	}
	return gonet.NewUDPConn(&queue, ep), true
}

// carryDatagrams forwards datagrams in both directions until there were none for a while.
func (g *Gateway) carryDatagrams(f *flow, box net.Conn) {
	out, err := g.dialOutside(g.ctx, f)
	if err != nil {
		return // counts as a lost datagram
	}
	end := func() {
		_ = out.Close()
		_ = box.Close()
	}
	f.onEnd(end)
	used := newIdle(datagramIdle, end)
	defer used.stopTimer()
	var back sync.WaitGroup
	back.Go(func() { defer end(); copyDatagrams(box, out, used, g.meter.receive) })
	copyDatagrams(out, box, used, g.meter.send)
	end()
	back.Wait()
}

// copyDatagrams forwards one direction. It drops datagrams above the limit.
func copyDatagrams(to, from net.Conn, used *idle, limit *rate.Limiter) {
	packet := make([]byte, 64<<10)
	for {
		n, err := from.Read(packet)
		if err != nil {
			return
		}
		used.recordTraffic()
		if !mayPass(limit, n) {
			continue
		}
		if _, err := to.Write(packet[:n]); err != nil {
			return
		}
	}
}

// idle calls a function after a period without traffic.
type idle struct {
	period time.Duration
	timer  *time.Timer
}

func newIdle(period time.Duration, f func()) *idle {
	return &idle{period, time.AfterFunc(period, f)}
}

func (i *idle) recordTraffic() { i.timer.Reset(i.period) }
func (i *idle) stopTimer()     { i.timer.Stop() }

// logRefusal logs a connection that was refused before a decision of the policy.
func (g *Gateway) logRefusal(proto string, to netip.AddrPort, reason string) {
	g.log.addDecision(sandpit.NetworkDecision{Protocol: proto, Address: to.String(), Reason: reason})
}
