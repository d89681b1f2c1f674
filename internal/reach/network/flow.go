package network

import (
	"net/netip"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// flow is a connection that was allowed.
type flow struct {
	asked policy.Flow
	to    netip.AddrPort
	proto string

	mu      sync.Mutex
	named   string // what the client called its peer; "" as long as nobody asked
	checked bool   // named was asked for
	asking  bool   // it is just being asked for: whoever asks decides afterwards
	end     func() // closes it; nil as long as there is nothing to close
	ended   bool
}

// stillAllowed decides again, by other rules.
func (f *flow) stillAllowed(rules *policy.Rules) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := rules.Connect(f.asked)
	if v.Allowed && f.checked {
		v = rules.Named(v, f.named, f.asked.Port)
	}
	// A name that nobody asked for when the connection began is not seen any more.
	return v.Allowed && (f.checked || f.asking || v.Check != policy.CheckName)
}

// setName says which name it is.
func (f *flow) setName(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named, f.checked, f.asking = name, true, false
}

// onEnd sets what closes the flow, and does it at once if that was already asked
// for.
func (f *flow) onEnd(end func()) {
	f.mu.Lock()
	ended := f.ended
	f.end = end
	f.mu.Unlock()
	if ended {
		end()
	}
}

func (f *flow) closeFlow() {
	f.mu.Lock()
	f.ended = true
	end := f.end
	f.mu.Unlock()
	if end != nil {
		end()
	}
}

// decideFlow decides about a connection and writes the decision down. The flow it
// returns is nil if it is denied.
func (g *Gateway) decideFlow(proto string, to netip.AddrPort) (*flow, policy.Verdict) {
	f := &flow{to: to, proto: proto, asked: policy.Flow{
		Addr: to.Addr(), Port: to.Port(), Names: g.names.namesOf(to.Addr()),
		Local: g.machine.IsLocal(to.Addr().Unmap()), Datagram: proto != "tcp",
	}}
	g.mu.Lock()
	v := g.rules.Connect(f.asked)
	f.asking = v.Check != policy.CheckNothing
	if v.Allowed && g.ctx.Err() == nil {
		g.flows[f] = struct{}{} // from now on new rules reach it
	}
	g.mu.Unlock()
	if !v.Allowed {
		g.logFlow(f, v)
		return nil, v
	}
	if v.Check == policy.CheckNothing {
		g.logFlow(f, v)
	}
	return f, v
}

// logFlow writes a decision about a flow down.
func (g *Gateway) logFlow(f *flow, v policy.Verdict) {
	d := sandpit.NetworkDecision{Protocol: f.proto, Address: f.to.String(), Allowed: v.Allowed, Reason: v.Reason}
	if f.to.Port() == 0 {
		d.Address = f.to.Addr().String()
	}
	f.mu.Lock()
	d.Name = f.named
	f.mu.Unlock()
	if d.Name == "" && len(f.asked.Names) > 0 {
		d.Name = f.asked.Names[0]
	}
	g.log.addDecision(d)
}

func (g *Gateway) forgetFlow(f *flow) {
	g.mu.Lock()
	delete(g.flows, f)
	g.mu.Unlock()
}

// closeFlows closes the flows that match.
func (g *Gateway) closeFlows(match func(*flow) bool) {
	g.mu.Lock()
	list := make([]*flow, 0, len(g.flows))
	for f := range g.flows {
		list = append(list, f)
	}
	g.mu.Unlock()
	for _, f := range list {
		if match(f) {
			f.closeFlow()
		}
	}
}
