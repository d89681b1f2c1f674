package policy

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// The bounds of a policy.
const (
	maxRules   = 1000 // allow and deny together
	maxRuleLen = 300  // bytes of one rule
	maxNameLen = 253
)

// rule is one line of a policy.
type rule struct {
	text   string
	prefix netip.Prefix // of addresses; invalid for a rule for a name
	name   string       // lower case, without the final dot
	below  bool         // names below name, but not itself
	port   uint16       // 0 is any
}

// Range is the range of a rule for addresses.
type Range struct {
	Prefix netip.Prefix
	Port   uint16 // 0 is any
}

// Ranges returns the ranges of the rules for addresses. It skips rules for names. Invalid: a
// rule cannot be parsed.
func Ranges(rules []string) ([]Range, error) {
	var list []Range
	for _, text := range rules {
		r, err := parseRule(text)
		if err != nil {
			return nil, err
		}
		if !r.isName() {
			list = append(list, Range{r.prefix, r.port})
		}
	}
	return list, nil
}

func parseRule(text string) (rule, error) {
	r := rule{text: text}
	if len(text) > maxRuleLen {
		return r, sandpit.Errorf(sandpit.Invalid, "network rule of %d bytes: want at most %d", len(text), maxRuleLen)
	}
	subject, err := r.splitPort()
	if err != nil {
		return r, err
	}
	if isAddress, err := r.parseAddress(subject); isAddress || err != nil {
		return r, err
	}
	return r, r.parseName(subject)
}

func (r *rule) invalidRule(why string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "network rule %q: %s", r.text, why),
		"a rule is an address, a range such as 203.0.113.0/24, a name, or *.name; each may end in :port")
}

// splitPort splits the port off. An IPv6 address with a port is in brackets.
func (r *rule) splitPort() (subject string, err error) {
	subject = r.text
	var port string
	var found bool
	if rest, bracket := strings.CutPrefix(subject, "["); bracket {
		subject, port, found = strings.Cut(rest, "]")
		if !found || !strings.Contains(subject, ":") {
			return "", r.invalidRule("brackets are for an IPv6 address")
		}
		if port == "" {
			return subject, nil
		}
		if port, found = strings.CutPrefix(port, ":"); !found {
			return "", r.invalidRule("want a port after the brackets")
		}
	} else if strings.Count(subject, ":") == 1 {
		subject, port, found = strings.Cut(subject, ":")
	}
	if !found {
		return subject, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return "", r.invalidRule("the port is not a number from 1 to 65535")
	}
	r.port = uint16(n)
	return subject, nil
}

// parseAddress parses subject as an address or a range. It reports whether subject looks like
// one.
func (r *rule) parseAddress(subject string) (bool, error) {
	var err error
	if strings.Contains(subject, "/") {
		r.prefix, err = netip.ParsePrefix(subject)
		if err != nil {
			return true, r.invalidRule("not a range of addresses")
		}
	} else {
		a, err := netip.ParseAddr(subject)
		if err != nil {
			if strings.Contains(subject, ":") {
				return true, r.invalidRule("not an address")
			}
			return false, nil
		}
		r.prefix = netip.PrefixFrom(a.WithZone(""), a.BitLen())
		if a.Zone() != "" {
			return true, r.invalidRule("an address with a zone is not supported")
		}
	}
	switch {
	case r.prefix.Addr().Is4In6():
		return true, r.invalidRule("use the IPv4 form of the address")
	case r.prefix != r.prefix.Masked():
		return true, r.invalidRule("the range begins at " + r.prefix.Masked().String())
	case r.prefix.Addr().IsMulticast():
		return true, r.invalidRule("multicast is not supported")
	}
	return true, nil
}

func (r *rule) parseName(subject string) error {
	r.name = Normal(subject)
	if rest, ok := strings.CutPrefix(r.name, "*."); ok {
		r.name, r.below = rest, true
	}
	if r.name == "" || len(r.name) > maxNameLen {
		return r.invalidRule("not a name")
	}
	labels := strings.Split(r.name, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return r.invalidRule("not a name")
		}
	}
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return r.invalidRule("neither an address nor a name")
	}
	return nil
}

// Normal returns the form of a name for comparisons: lower case, without the final dot.
func Normal(name string) string {
	lower := []byte(name)
	for i, c := range lower { // only ASCII: other bytes do not change
		if 'A' <= c && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	return strings.TrimSuffix(string(lower), ".")
}

func (r *rule) isName() bool { return r.name != "" }

func (r *rule) hasPort(port uint16) bool { return r.port == 0 || r.port == port }

func (r *rule) hasAddr(a netip.Addr) bool { return !r.isName() && a.IsValid() && r.prefix.Contains(a) }

func (r *rule) hasName(name string) bool {
	if !r.isName() {
		return false
	}
	if r.below {
		return strings.HasSuffix(name, "."+r.name)
	}
	return name == r.name
}
