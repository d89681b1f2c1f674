package policy

import (
	"net/netip"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// Rules are a parsed policy. They are immutable and may be used concurrently.
type Rules struct {
	allow, deny []rule
	inside      []rule // the allow rules that may open non-public addresses
	headers     []Header
	limits      sandpit.NetworkLimits
	special     []netip.Prefix
	global6     []netip.Prefix
	denyNames   bool
}

// Parse parses a policy. Invalid: a rule, header or limit cannot be parsed.
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

// Limits returns the limits of the traffic; zero means no limit.
func (r *Rules) Limits() sandpit.NetworkLimits { return r.limits }

// Flow is a connection that the sandbox requests.
type Flow struct {
	Addr netip.Addr
	// Port is 0 for a protocol without ports.
	Port uint16
	// Names are the names for which the gateway returned Addr, in Normal form.
	Names []string
	// Local is true if Addr is an address of the machine.
	Local bool
	// Datagram is true if the connection itself has no visible name.
	Datagram bool
}

// Check is what the gateway must still verify about an allowed connection.
type Check int

// The checks.
const (
	CheckNothing Check = iota
	// CheckName requires that the client sends one of Verdict.Names.
	CheckName
	// CheckDenied requires that the client sends no name that Rules.Named denies.
	CheckDenied
	// CheckHeaders requires the client's name, because headers may be set for it. Names that
	// Rules.Named denies are denied too.
	CheckHeaders
)

// Verdict is a decision.
type Verdict struct {
	Allowed bool
	// Reason is the rule that decided, or a few words. Never empty.
	Reason string
	Check  Check
	// Names are the accepted names for CheckName.
	Names []string
}

func deny(reason string) Verdict  { return Verdict{Reason: reason} }
func allow(reason string) Verdict { return Verdict{Allowed: true, Reason: reason} }

// The ports on which clients send the name of the host.
const (
	portHTTP  = 80
	portHTTPS = 443
)

// Connect decides about a connection.
func (r *Rules) Connect(f Flow) Verdict {
	addr, inner := canonicalAddr(f.Addr)
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
		return deny("not a unicast address")
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

// permitFlow decides about a connection that no deny rule matches.
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

// permitByName collects all names that allow f, because the client may mean any of them.
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
		return deny("the name in an HTTP/3 connection cannot be verified")
	case speaksName(f):
		v.Check = CheckName
	}
	v.Allowed = true
	return v
}

// Named decides about the host name that a client sends, after Connect has allowed the
// connection itself. name is in Normal form, or "" if the client sends none.
func (r *Rules) Named(v Verdict, name string, port uint16) Verdict {
	switch v.Check {
	case CheckName:
		if name == "" {
			return deny("the client sends no host name")
		}
		if !slices.Contains(v.Names, name) {
			return deny("the client requests another name than it resolved: " + shortenName(name))
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

// Resolve decides whether a name may be resolved. chain has the names to which its aliases
// lead, all in Normal form. A deny rule for only one port does not prevent resolving.
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
		// A sandbox that may reach every address may also resolve names.
		if a := &r.allow[i]; a.hasName(name) || !a.isName() && a.prefix.Bits() == 0 {
			return allow("allow " + a.text)
		}
	}
	return deny("no rule allows it")
}

// isGranted reports whether rules may open a non-public address at a port.
func (r *Rules) isGranted(addr netip.Addr, port uint16) bool {
	return slices.ContainsFunc(r.inside, func(g rule) bool { return g.hasPort(port) && g.hasAddr(addr) })
}

// Answer reports whether an address may be in the DNS response for a name: a private address
// only if a rule opens it.
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
