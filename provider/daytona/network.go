package daytona

import (
	"context"
	"net/http"
	"net/netip"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// maxRules is how many entries each of the two lists may have.
const maxRules = 10

// domainPattern is a name, or "*." and a name.
var domainPattern = pattern.New(`^(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)

// toSettings converts a network policy. code is that of a policy that the API cannot express:
// Unsupported for a new sandbox, Invalid for a change.
func toSettings(n sandpit.NetworkPolicy, code sandpit.Code) (networkSettings, error) {
	refuse := func(format string, args ...any) (networkSettings, error) {
		return networkSettings{}, sandpit.WithHint(sandpit.Errorf(code, format, args...), "Daytona has a list of address ranges and one of names, all of them allowed")
	}
	switch {
	case !n.Online:
		return networkSettings{BlockAll: true}, nil
	case len(n.Deny) > 0:
		return refuse("network rule deny %q: Daytona has only rules that allow", n.Deny[0])
	case len(n.Headers) > 0:
		return refuse("network headers: Daytona cannot set headers in a sandbox's requests")
	case n.Limits != (sandpit.NetworkLimits{}):
		return refuse("network limits: Daytona cannot limit a sandbox's traffic")
	}
	var ranges, names []string
	for _, rule := range n.Allow {
		prefix, err := parseRange(rule)
		switch {
		case err == nil:
			ranges = append(ranges, prefix.String())
		case domainPattern().MatchString(rule):
			names = append(names, rule)
		case rule == "" || !strings.Contains(rule, ":"):
			return networkSettings{}, sandpit.Errorf(sandpit.Invalid, "network rule allow %.100q: want an address, a range or a name", rule)
		default:
			return refuse("network rule allow %.100q: Daytona has no rules for ports", rule)
		}
	}
	if len(ranges) > maxRules || len(names) > maxRules {
		return refuse("%d address ranges and %d names: Daytona allows %d of each", len(ranges), len(names), maxRules)
	}
	s := networkSettings{}
	if len(ranges) > 0 {
		s.Ranges = new(strings.Join(ranges, ","))
	}
	if len(names) > 0 {
		s.Domains = new(strings.Join(names, ","))
	}
	return s, nil
}

// parseRange returns the range of an address or range.
func parseRange(rule string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(rule); err == nil {
		return addr.Prefix(addr.BitLen())
	}
	p, err := netip.ParsePrefix(rule)
	return p.Masked(), err
}

// SetNetworkPolicy implements sandpit.NetworkPolicer.
func (i *Instance) SetNetworkPolicy(ctx context.Context, n sandpit.NetworkPolicy) error {
	return i.b.whileLocked(ctx, "set the network policy", func(ctx context.Context) error {
		b, err := i.b.readBox(ctx)
		if err != nil {
			return err
		}
		spec, err := specOf(b)
		if err != nil {
			return sandpit.Errorf(sandpit.Internal, "read the spec: %w", err)
		}
		if n.Online != spec.Network.Online {
			return sandpit.Errorf(sandpit.Conflict, "whether a sandbox has a network cannot be changed after its creation")
		}
		settings, err := toSettings(n, sandpit.Invalid)
		if err != nil || !n.Online {
			return err
		}
		err = i.b.p.control.call(ctx, cloudapi.Call{
			Operation: "set the network policy", Sandbox: i.b.id, Method: http.MethodPost, Path: sandboxPath(i.b.ref, "network-settings"),
			Body: settings, Repeatable: true, Missing: sandpit.Gone,
		})
		if err != nil {
			return err
		}
		spec.Network = n.Clone()
		return i.b.p.writeSpec(ctx, i.b, b, spec)
	})
}

// writeSpec replaces the spec in the labels of a sandbox.
func (p *Provider) writeSpec(ctx context.Context, one *sandbox, b box, spec sandpit.Spec) error {
	labels, err := p.newLabels(one.id, spec, b.Labels[labelAttempt])
	if err != nil {
		return err
	}
	return p.control.call(ctx, cloudapi.Call{
		Operation: "set the labels", Sandbox: one.id, Method: http.MethodPut, Path: sandboxPath(one.ref, "labels"),
		Body: map[string]any{"labels": labels}, Missing: sandpit.Gone,
	})
}
