package network

import (
	"net/netip"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// flow is an allowed connection.
type flow struct {
	asked policy.Flow
	to    netip.AddrPort
	proto string

	mu          sync.Mutex
	named       string // the host name that the client sent; "" before it is checked
	checked     bool   // named was checked
	readingName bool   // named is being read; its reader decides afterwards
	end         func() // closes the flow; nil before there is something to close
	ended       bool
}

// stillAllowed decides again with new rules.
func (f *flow) stillAllowed(rules *policy.Rules) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := rules.Connect(f.asked)
	if v.Allowed && f.checked {
		v = rules.Named(v, f.named, f.asked.Port)
	}
	// A name that was not checked at the start of the connection cannot be read any more.
	return v.Allowed && (f.checked || f.readingName || v.Check != policy.CheckName)
}

// setName sets the checked host name.
func (f *flow) setName(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named, f.checked, f.readingName = name, true, false
}

// onEnd sets the function that closes the flow, and calls it at once if the flow was closed
// before.
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

// decideFlow decides about a connection and logs the decision. It returns a nil flow for a
// denied connection.
func (g *Gateway) decideFlow(proto string, to netip.AddrPort) (*flow, policy.Verdict) {
	f := &flow{to: to, proto: proto, asked: policy.Flow{
		Addr: to.Addr(), Port: to.Port(), Names: g.names.namesOf(to.Addr()),
		Local: g.machine.IsLocal(to.Addr().Unmap()), Datagram: proto != "tcp",
	}}
	g.mu.Lock()
	v := g.rules.Connect(f.asked)
	f.readingName = v.Check != policy.CheckNothing
	if v.Allowed && g.ctx.Err() == nil {
		g.flows[f] = struct{}{} // from now on new rules apply to it
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

// logFlow logs a decision about a flow.
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
