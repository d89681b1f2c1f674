package policy

import (
	"net/netip"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// Rules are a policy that was understood. They never change, and any number of
// goroutines may use them.
type Rules struct {
	allow, deny []rule
	inside      []rule // what of allow may open addresses that are not public
	headers     []Header
	limits      sandpit.NetworkLimits
	special     []netip.Prefix
	global6     []netip.Prefix
	denyNames   bool
}

// Parse understands the rules of a policy. Invalid: one of them it does not.
func Parse(p sandpit.NetworkPolicy) (*Rules, error) {
	if n := max(len(p.Allow)+len(p.Deny), len(p.Inside)); n > maxRules {
		return nil, sandpit.Errorf(sandpit.Invalid, "%d network rules: want at most %d", n, maxRules)
	}
	if !p.Online && !p.Equal(sandpit.NetworkPolicy{}) {
		return nil, sandpit.Errorf(sandpit.Invalid, "network rules are for online sandboxes only")
	}
	if err := checkLimits(p.Limits); err != nil {
		return nil, err
	}
	headers, err := parseHeaders(p.Headers)
	if err != nil {
		return nil, err
	}
	r := &Rules{headers: headers, limits: p.Limits, special: specialRanges(), global6: global6()}
	for _, list := range []struct {
		from []string
		to   *[]rule
	}{{p.Allow, &r.allow}, {p.Deny, &r.deny}, {p.Inside, &r.inside}} {
		for _, text := range list.from {
			parsed, err := parseRule(text)
			if err != nil {
				return nil, err
			}
			*list.to = append(*list.to, parsed)
		}
	}
	r.denyNames = slices.ContainsFunc(r.deny, func(d rule) bool { return d.isName() })
	return r, nil
}

// Limits bound what passes; zero is no limit.
func (r *Rules) Limits() sandpit.NetworkLimits { return r.limits }

// Flow is a connection that the sandbox asks for.
type Flow struct {
	Addr netip.Addr
	// Port is 0 for what has no ports.
	Port uint16
	// Names are those that the gateway has answered Addr for, in Normal form.
	Names []string
	// Local says that Addr is the machine's own.
	Local bool
	// Datagram says that no name can be seen in the connection itself.
	Datagram bool
}

// Check says what is still to be found out about a connection that is allowed.
type Check int

// The checks.
const (
	CheckNothing Check = iota
	// CheckName wants one of Verdict.Names to be what the client calls its peer.
	CheckName
	// CheckDenied wants the client not to call its peer what Rules.Named denies.
	CheckDenied
	// CheckHeaders wants to know what the client calls its peer, since headers may be
	// set for that; what Rules.Named denies is denied, too.
	CheckHeaders
)

// Verdict is a decision.
type Verdict struct {
	Allowed bool
	// Reason is the rule that decided, or a few words. Never empty.
	Reason string
	Check  Check
	// Names go with CheckName.
	Names []string
}

func deny(reason string) Verdict  { return Verdict{Reason: reason} }
func allow(reason string) Verdict { return Verdict{Allowed: true, Reason: reason} }

// The ports on which a client says whom it wants to talk to.
const (
	portHTTP  = 80
	portHTTPS = 443
)

// Connect decides about a connection.
func (r *Rules) Connect(f Flow) Verdict {
	addr, inner := canonicalAddr(f.Addr)
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
		return deny("not the address of a peer")
	}
	for i := range r.deny {
		d := &r.deny[i]
		named := slices.ContainsFunc(f.Names, d.hasName)
		if d.hasPort(f.Port) && (named || d.hasAddr(addr) || d.hasAddr(inner)) {
			return deny("deny " + d.text)
		}
	}
	private := f.Local || r.isSpecial(addr) || inner.IsValid() && r.isSpecial(inner)
	v := r.permitFlow(f, addr, private)
	switch {
	case !v.Allowed:
	case r.hasHeaders(f.Names, f.Port) && f.Datagram:
		return deny("headers are set for this host, which HTTP/3 would hide") // clients then use TCP
	case v.Check != CheckNothing:
	case r.hasHeaders(f.Names, f.Port):
		v.Check = CheckHeaders
	case r.denyNames && speaksName(f):
		v.Check = CheckDenied
	}
	return v
}

func speaksName(f Flow) bool { return !f.Datagram && (f.Port == portHTTP || f.Port == portHTTPS) }

// permitFlow decides about what no deny rule matches.
func (r *Rules) permitFlow(f Flow, addr netip.Addr, private bool) Verdict {
	for i := range r.allow {
		a := &r.allow[i]
		if a.hasPort(f.Port) && a.hasAddr(addr) && (!private || r.namesSpecial(a.prefix) && r.isGranted(addr, f.Port)) {
			return allow("allow " + a.text)
		}
	}
	switch {
	case private && f.Local:
		return deny("an address of the machine itself")
	case private:
		return deny("a private or special address")
	case len(r.allow) == 0:
		return allow("no rule forbids it")
	}
	return r.permitByName(f)
}

// permitByName collects all names that allow f, since any of them may be the one
// that the client means.
func (r *Rules) permitByName(f Flow) Verdict {
	var v Verdict
	for _, name := range f.Names {
		i := slices.IndexFunc(r.allow, func(a rule) bool { return a.hasPort(f.Port) && a.hasName(name) })
		if i < 0 {
			continue
		}
		if v.Reason == "" {
			v.Reason = "allow " + r.allow[i].text
		}
		v.Names = append(v.Names, name)
	}
	switch {
	case len(v.Names) == 0:
		return deny("no rule allows it")
	case f.Datagram && f.Port == portHTTPS:
		// The names in QUIC are encrypted; clients then use TCP.
		return deny("the name in a connection of HTTP/3 cannot be verified")
	case speaksName(f):
		v.Check = CheckName
	}
	v.Allowed = true
	return v
}

// Named decides about the name that a client calls its peer, after Connect has
// allowed the connection itself; name is in Normal form, "" if it gives none.
func (r *Rules) Named(v Verdict, name string, port uint16) Verdict {
	switch v.Check {
	case CheckName:
		if name == "" {
			return deny("the client does not say which name it wants")
		}
		if !slices.Contains(v.Names, name) {
			return deny("the client wants another name than was resolved: " + shortenName(name))
		}
	case CheckNothing:
		return v
	case CheckDenied, CheckHeaders:
	}
	for i := range r.deny {
		if d := &r.deny[i]; d.hasPort(port) && name != "" && d.hasName(name) {
			return deny("deny " + d.text)
		}
	}
	v.Check, v.Names = CheckNothing, nil
	return v
}

// shortenName bounds a name that comes from a sandbox.
func shortenName(name string) string { return textlen.Cut(name, maxNameLen) }

// Resolve decides whether a name may be resolved; chain holds the names that it
// turned out to stand for, all in Normal form. A rule for one port alone does not
// keep a name from being resolved.
func (r *Rules) Resolve(name string, chain ...string) Verdict {
	for _, n := range append([]string{name}, chain...) {
		for i := range r.deny {
			if d := &r.deny[i]; d.port == 0 && d.hasName(n) {
				return deny("deny " + d.text)
			}
		}
	}
	if len(r.allow) == 0 {
		return allow("no rule forbids it")
	}
	for i := range r.allow {
		// Who may reach every address may also know them.
		if a := &r.allow[i]; a.hasName(name) || !a.isName() && a.prefix.Bits() == 0 {
			return allow("allow " + a.text)
		}
	}
	return deny("no rule allows it")
}

// isGranted reports whether rules may open an address that is not public at a port.
func (r *Rules) isGranted(addr netip.Addr, port uint16) bool {
	return slices.ContainsFunc(r.inside, func(g rule) bool { return g.hasPort(port) && g.hasAddr(addr) })
}

// Answer reports whether an address may be in the answer to a question about a
// name: private ones only if a rule opens them.
func (r *Rules) Answer(a netip.Addr, local bool) bool {
	addr, inner := canonicalAddr(a)
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
		return false
	}
	if !local && !r.isSpecial(addr) && (!inner.IsValid() || !r.isSpecial(inner)) {
		return true
	}
	names := func(a rule) bool { return a.hasAddr(addr) && r.namesSpecial(a.prefix) }
	granted := func(g rule) bool { return g.hasAddr(addr) }
	return slices.ContainsFunc(r.allow, names) && slices.ContainsFunc(r.inside, granted)
}
