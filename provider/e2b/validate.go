package e2b

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// validateSpec returns an error for a spec that this provider can never create.
func (p *Provider) validateSpec(s sandpit.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := checkMounts(s.Mounts); err != nil {
		return err
	}
	switch {
	case s.Resources.PIDs != 0:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "E2B cannot limit the number of processes of a sandbox"), "omit the limit")
	case strings.HasPrefix(string(s.Image), sandpit.TemplatePrefix):
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "image %.100q: E2B has no templates of this server", s.Image),
			"name a template of your account at E2B")
	}
	_, err := toNetwork(s.Network)
	return err
}

// checkResources compares requested limits with those of the template, which decides.
func checkResources(asked sandpit.Resources, one item) error {
	const mib = 1 << 20
	for _, limit := range []struct {
		what      string
		asked, is float64
	}{
		{"processors", asked.CPUs, one.CPUs},
		{"MiB of memory", float64(asked.Memory) / mib, float64(one.Memory)},
		{"MiB of disk", float64(asked.Disk) / mib, float64(one.Disk)},
	} {
		if limit.asked != 0 && limit.asked != limit.is {
			return sandpit.WithHint(
				sandpit.Errorf(sandpit.Unsupported, "limit of %g %s: with E2B the template decides, and this one has %g", limit.asked, limit.what, limit.is),
				"omit the limit, or use a template that was built with it")
		}
	}
	return nil
}

// allAddresses is E2B's rule for all addresses.
const allAddresses = "0.0.0.0/0"

// toNetwork converts a policy to E2B's terms.
//
// Invalid: a rule cannot be parsed. Unsupported: E2B cannot enforce it.
func toNetwork(n sandpit.NetworkPolicy) (networkBody, error) {
	if _, err := policy.Parse(n); err != nil {
		return networkBody{}, err
	}
	switch {
	case len(n.Headers) > 0:
		return networkBody{}, sandpit.Errorf(sandpit.Unsupported, "network headers: this provider cannot set them")
	case n.Limits != (sandpit.NetworkLimits{}):
		return networkBody{}, sandpit.Errorf(sandpit.Unsupported, "network limits: E2B cannot enforce them")
	case len(n.Inside) > 0 && len(n.Allow) > 0:
		if i := slices.IndexFunc(n.Allow, isPrivate); i >= 0 {
			return networkBody{}, sandpit.Errorf(sandpit.Unsupported, "network rule %.100q: sandboxes of E2B cannot reach networks of this machine", n.Allow[i])
		}
	case len(n.Allow) > 0 && len(n.Deny) > 0:
		return networkBody{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "network rules: E2B cannot deny a part of what other rules allow"),
			"use rules that allow or rules that deny")
	}
	for _, rule := range slices.Concat(n.Allow, n.Deny) {
		if hasPort(rule) {
			return networkBody{}, sandpit.Errorf(sandpit.Unsupported, "network rule %.100q: E2B's rules cannot name a port", rule)
		}
	}
	for _, rule := range n.Deny {
		if !isRange(rule) {
			return networkBody{}, sandpit.Errorf(sandpit.Unsupported, "network rule %.100q: E2B can deny addresses and ranges only", rule)
		}
	}
	body := networkBody{Allow: n.Allow, Deny: n.Deny}
	if len(n.Allow) > 0 {
		body.Deny = []string{allAddresses} // E2B's rules that allow take precedence
	}
	return body, nil
}

func isRange(rule string) bool {
	if _, err := netip.ParsePrefix(rule); err == nil {
		return true
	}
	_, err := netip.ParseAddr(rule)
	return err == nil
}

// isPrivate reports whether a rule names addresses that are not public.
func isPrivate(rule string) bool {
	if prefix, err := netip.ParsePrefix(rule); err == nil {
		return !policy.Public(prefix.Addr())
	}
	addr, err := netip.ParseAddr(rule)
	return err == nil && !policy.Public(addr)
}

// hasPort reports whether a valid rule ends in a port.
func hasPort(rule string) bool {
	if isRange(rule) {
		return false
	}
	return strings.Contains(rule, ":")
}
