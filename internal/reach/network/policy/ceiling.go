package policy

import (
	"net/netip"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// Ceiling is the administrator's bound on policies. It is immutable and may be used
// concurrently.
type Ceiling struct {
	offline bool
	bounds  sandpit.NetworkPolicy
	rules   *Rules
	granted []rule // rules of all owners may open non-public addresses within these
}

// NewCeiling parses a ceiling. Each allow rule of a policy must lie within one of p's allow
// rules, if there are any; p's deny rules are added to every policy; limits are at most p's.
// Offline forbids online sandboxes. Private addresses, special ones and those of the machine
// can be opened within p's allow rules or, without any, within usual, the allow rules of
// policies without any.
//
// Invalid: a rule or limit cannot be parsed, or p has headers.
func NewCeiling(offline bool, p sandpit.NetworkPolicy, usual []string) (*Ceiling, error) {
	p = p.Clone()
	p.Online, p.Inside = true, p.Allow
	if len(p.Allow) == 0 {
		p.Inside = slices.Clone(usual)
	}
	if len(p.Headers) > 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "a ceiling has no headers")
	}
	rules, err := Parse(p)
	if err != nil {
		return nil, err
	}
	granted := slices.DeleteFunc(slices.Clone(rules.inside), func(r rule) bool { return r.isName() || !rules.namesSpecial(r.prefix) })
	return &Ceiling{offline: offline, bounds: p, rules: rules, granted: granted}, nil
}

// Requester is the caller that sets a policy.
type Requester struct {
	// Administrator permits opening all non-public addresses within the ceiling.
	Administrator bool
	// IsLocal reports whether an address is the machine's own.
	IsLocal func(netip.Addr) bool
}

// Bound returns the policy with the ceiling applied: the ceiling's allow rules if the policy
// has none, its deny rules and its limits. It replaces the policy's Inside.
//
// PermissionDenied: the policy exceeds the ceiling, or opens non-public addresses that are not
// granted. Invalid: the policy cannot be parsed.
func (c *Ceiling) Bound(p sandpit.NetworkPolicy, by Requester) (sandpit.NetworkPolicy, error) {
	p = p.Clone()
	p.Inside = nil
	asked, err := Parse(p)
	if err != nil || !p.Online {
		return p, err
	}
	if c.offline {
		return p, beyondCeiling("a sandbox with a network", "this server forbids it by network.forbid")
	}
	if len(c.rules.allow) > 0 {
		for i := range asked.allow {
			if !c.coversRule(&asked.allow[i], by.IsLocal) {
				return p, beyondCeiling("network rule "+clipRule(asked.allow[i].text), "each allow rule must lie within one of network.ceiling_allow of this server")
			}
		}
		if len(p.Allow) == 0 {
			p.Allow = slices.Clone(c.bounds.Allow)
			asked.allow = c.rules.allow
		}
	}
	if p.Inside, err = c.grantRules(asked.allow, by); err != nil {
		return p, err
	}
	for _, d := range c.bounds.Deny {
		if !slices.Contains(p.Deny, d) {
			p.Deny = append(p.Deny, d)
		}
	}
	if err := c.boundLimits(&p.Limits); err != nil {
		return p, err
	}
	_, err = Parse(p) // now there may be too many rules
	return p, err
}

// grantRules returns the rules that may open non-public addresses.
func (c *Ceiling) grantRules(rules []rule, by Requester) ([]string, error) {
	var inside []string
	for i := range rules {
		r := &rules[i]
		if r.isName() || !c.opensPrefix(r.prefix, by.IsLocal) {
			continue
		}
		if !by.Administrator && !c.isGranted(r) {
			return nil, sandpit.WithHint(
				sandpit.Errorf(sandpit.PermissionDenied, "network rule %s opens private or special addresses, or the machine's own", clipRule(r.text)),
				"remove the rule, ask an administrator to set it, or add it to network.ceiling_allow in the server's configuration")
		}
		inside = append(inside, r.text)
	}
	return inside, nil
}

// isGranted reports whether every owner may open the addresses of r.
func (c *Ceiling) isGranted(r *rule) bool {
	return slices.ContainsFunc(c.granted, func(g rule) bool {
		return (g.port == 0 || g.port == r.port) && g.prefix.Bits() <= r.prefix.Bits() && g.prefix.Contains(r.prefix.Addr())
	})
}

func beyondCeiling(what, hint string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "%s exceeds the ceiling of this server", what), hint)
}

// clipRule bounds a client's text.
func clipRule(text string) string { return text[:min(len(text), maxRuleLen)] }

// coversRule reports whether a rule lies within one of the ceiling's.
func (c *Ceiling) coversRule(r *rule, local func(netip.Addr) bool) bool {
	within := func(bound rule) bool {
		switch {
		case bound.port != 0 && bound.port != r.port:
			return false
		case r.isName() && bound.isName():
			return bound.hasNames(r)
		case r.isName() || bound.isName():
			return false
		}
		return bound.prefix.Bits() <= r.prefix.Bits() && bound.prefix.Contains(r.prefix.Addr()) &&
			(!c.opensPrefix(r.prefix, local) || c.rules.namesSpecial(bound.prefix))
	}
	if slices.ContainsFunc(c.rules.allow, within) {
		return true
	}
	// A name may have any public address, so it lies within a ceiling of all public addresses.
	return r.isName() && c.hasAll(r.port, 4) && c.hasAll(r.port, 16)
}

// opensPrefix reports whether a rule for p opens addresses that wider rules do not open.
func (c *Ceiling) opensPrefix(p netip.Prefix, local func(netip.Addr) bool) bool {
	if !c.rules.namesSpecial(p) {
		return false
	}
	addr, inner := canonicalAddr(p.Addr())
	return c.rules.isSpecial(addr) || inner.IsValid() && c.rules.isSpecial(inner) || local(addr)
}

// hasAll reports whether all addresses of size bytes are allowed at a port.
func (c *Ceiling) hasAll(port uint16, size int) bool {
	return slices.ContainsFunc(c.rules.allow, func(b rule) bool {
		return !b.isName() && b.prefix.Bits() == 0 && b.prefix.Addr().BitLen() == size*8 && (b.port == 0 || b.port == port)
	})
}

// hasNames reports whether r matches all names that o matches.
func (r *rule) hasNames(o *rule) bool {
	if o.below && o.name == r.name {
		return r.below
	}
	return (r.below || !o.below) && r.hasName(o.name)
}

func (c *Ceiling) boundLimits(l *sandpit.NetworkLimits) error {
	most := c.bounds.Limits
	if !boundLimit(&l.Receive, most.Receive) {
		return beyondCeiling("network limit receive", "network.ceiling_receive of this server is lower")
	}
	if !boundLimit(&l.Send, most.Send) {
		return beyondCeiling("network limit send", "network.ceiling_send of this server is lower")
	}
	if !boundLimit(&l.Connections, most.Connections) {
		return beyondCeiling("network limit connections", "network.ceiling_connections of this server is lower")
	}
	if !boundLimit(&l.ConnectionRate, most.ConnectionRate) {
		return beyondCeiling("network limit connection_rate", "network.ceiling_connection_rate of this server is lower")
	}
	return nil
}

// boundLimit sets an unset limit to the ceiling's, and reports false for a higher one.
func boundLimit[T int | int64](asked *T, most T) bool {
	if most != 0 && *asked == 0 {
		*asked = most
	}
	return most == 0 || *asked <= most
}
