package network

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// Explain returns the decisions about a TCP connection to "name:port" or "address:port", one
// for each address of the target. It opens no connection, and does not change the log or the
// counters. For a name it asks the resolvers.
//
// Invalid: the target has neither form.
func (g *Gateway) Explain(ctx context.Context, target string) ([]sandpit.NetworkDecision, error) {
	name, addr, port, err := policy.SplitTarget(target)
	if err != nil {
		return nil, err
	}
	var list []sandpit.NetworkDecision
	defer func() {
		for i := range list {
			list[i].At, list[i].Count = time.Now(), 1
		}
	}()
	rules := g.currentRules()
	if name == "" {
		list = append(list, g.explainDecision(rules, "", netip.AddrPortFrom(addr, port)))
		return list, nil
	}
	v, addrs := g.dns.lookupAddresses(ctx, rules, name)
	if len(addrs) == 0 || !v.Allowed {
		list = append(list, sandpit.NetworkDecision{Protocol: "dns", Name: name, Allowed: v.Allowed, Reason: v.Reason})
		return list, nil
	}
	for _, a := range addrs {
		if !rules.Answer(a, g.machine.IsLocal(a)) {
			list = append(list, sandpit.NetworkDecision{
				Protocol: "dns", Name: name, Address: a.String(), Reason: reasonPrivateAnswer,
			})
			continue
		}
		list = append(list, g.explainDecision(rules, name, netip.AddrPortFrom(a, port)))
	}
	return list, nil
}

// lookupAddresses returns the addresses of a name, or none if the rules forbid resolving it.
func (r *resolver) lookupAddresses(ctx context.Context, rules *policy.Rules, name string) (policy.Verdict, []netip.Addr) {
	v := rules.Resolve(name)
	if !v.Allowed {
		return v, nil
	}
	fqdn, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return policy.Verdict{Reason: "not a name"}, nil
	}
	reason := "it has no address"
	var addrs []netip.Addr
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
		_, records, err := r.askResolvers(ctx, dnsmessage.Question{Name: fqdn, Type: kind, Class: dnsmessage.ClassINET})
		if err != nil {
			reason = reasonNoResolver
			continue
		}
		if v := rules.Resolve(name, records.followAliases(name)...); !v.Allowed {
			return v, nil
		}
		for _, a := range records.answers {
			if addr, ok := addressOf(a); ok {
				addrs = append(addrs, addr)
			}
		}
	}
	if len(addrs) == 0 {
		return policy.Verdict{Reason: reason}, nil
	}
	return v, addrs
}

// explainDecision decides about a hypothetical connection. name is the name that the client
// would send.
func (g *Gateway) explainDecision(rules *policy.Rules, name string, to netip.AddrPort) sandpit.NetworkDecision {
	f := policy.Flow{Addr: to.Addr(), Port: to.Port(), Names: g.names.namesOf(to.Addr()), Local: g.machine.IsLocal(to.Addr())}
	if name != "" && !slices.Contains(f.Names, name) {
		f.Names = append(f.Names, name)
	}
	d := sandpit.NetworkDecision{Protocol: "tcp", Address: to.String(), Name: name}
	if isGateway(to.Addr()) {
		d.Allowed, d.Reason = to.Port() == dnsPort, "the gateway answers DNS only"
		return d
	}
	v := rules.Connect(f)
	wanted := v.Names
	if v.Allowed && name != "" {
		v = rules.Named(v, name, to.Port())
	}
	d.Allowed, d.Reason = v.Allowed, v.Reason
	if v.Allowed && v.Check == policy.CheckName {
		d.Reason += ", for a client that asks for " + strings.Join(wanted, " or ")
	}
	for _, h := range rules.HeadersFor(name, to.Port()) {
		if v.Allowed {
			d.Reason += ", with header " + h.Name
		}
	}
	return d
}
