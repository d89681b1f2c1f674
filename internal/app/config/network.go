package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// Network is the [network] section: what online sandboxes reach by default, and what no
// sandbox may reach.
type Network struct {
	// Forbid keeps every sandbox offline.
	Forbid bool
	// Allow and Deny are the rules of an online sandbox whose request has none. None allows every
	// public address.
	Allow, Deny []string
	// CeilingAllow, if not empty, are rules that must contain each allow rule of a sandbox, and
	// within which every owner may open addresses that are not public.
	CeilingAllow []string
	// CeilingDeny are deny rules of every online sandbox.
	CeilingDeny []string
	// CeilingReceive and CeilingSend are the maximum bytes per second, CeilingConnections the
	// maximum concurrent connections, CeilingConnectionRate the maximum new connections per
	// second. 0 is unlimited.
	CeilingReceive, CeilingSend               int64
	CeilingConnections, CeilingConnectionRate int
}

// ceilingPolicy is the part of the section that bounds sandboxes.
func (n Network) ceilingPolicy() sandpit.NetworkPolicy {
	return sandpit.NetworkPolicy{Allow: n.CeilingAllow, Deny: n.CeilingDeny, Limits: sandpit.NetworkLimits{
		Receive: n.CeilingReceive, Send: n.CeilingSend,
		Connections: n.CeilingConnections, ConnectionRate: n.CeilingConnectionRate,
	}}
}

// Ceiling returns the ceiling of every sandbox. Invalid: a rule is invalid, which Load has
// reported already.
func (n Network) Ceiling() (*policy.Ceiling, error) {
	return policy.NewCeiling(n.Forbid, n.ceilingPolicy(), n.Allow)
}

// Fill gives an online policy that has no rules those of the section.
func (n Network) Fill(p *sandpit.NetworkPolicy) {
	if p.Online && len(p.Allow)+len(p.Deny) == 0 {
		p.Allow, p.Deny = append([]string(nil), n.Allow...), append([]string(nil), n.Deny...)
	}
}

// String says in a few words what online sandboxes reach.
func (n Network) String() string {
	if n.Forbid {
		return "every sandbox is offline"
	}
	var parts []string
	add := func(what string, words ...string) {
		if text := strings.Join(words, " "); text != "" && text != "0" {
			parts = append(parts, what+" "+text)
		}
	}
	add("by default allow", n.Allow...)
	add("by default deny", n.Deny...)
	add("at most allow", n.CeilingAllow...)
	add("always deny", n.CeilingDeny...)
	add("receive at most", renderSize(n.CeilingReceive))
	add("send at most", renderSize(n.CeilingSend))
	add("connections at most", strconv.Itoa(n.CeilingConnections))
	add("new connections a second at most", strconv.Itoa(n.CeilingConnectionRate))
	if len(parts) == 0 {
		return "an online sandbox reaches public addresses unless its request says otherwise; no ceiling is set"
	}
	return "online sandboxes: " + strings.Join(parts, "; ")
}

func networkSettings() []setting {
	return []setting{
		defineSetting(KeyNetworkForbid, func(c *Config) *bool { return &c.Network.Forbid }, setBool,
			"Whether every sandbox is offline, even if its request asks for a network."),
		defineSetting(KeyNetworkAllow, func(c *Config) *[]string { return &c.Network.Allow }, setRules,
			"The allow rules of online sandboxes whose requests have no rules. In the variable, rules are separated by commas or spaces.").describedBy("every public address"),
		defineSetting(KeyNetworkDeny, func(c *Config) *[]string { return &c.Network.Deny }, setRules,
			"The deny rules of these sandboxes."),
		defineSetting(KeyCeilingAllow, func(c *Config) *[]string { return &c.Network.CeilingAllow }, setRules,
			"Each allow rule of a sandbox must lie within one of these rules; a sandbox without allow rules has these. Ordinary owners may open private and special addresses, and the machine's own, only within these rules, or within allow if there are none.").describedBy("no bound"),
		defineSetting(KeyCeilingDeny, func(c *Config) *[]string { return &c.Network.CeilingDeny }, setRules,
			"Deny rules that apply to every sandbox."),
		defineSetting(KeyCeilingReceive, func(c *Config) *int64 { return &c.Network.CeilingReceive }, sizeOf(1<<10, "1k", `"10m"`),
			"The most bytes that a sandbox may receive per second. At least 1k.").describedBy("no bound"),
		defineSetting(KeyCeilingSend, func(c *Config) *int64 { return &c.Network.CeilingSend }, sizeOf(1<<10, "1k", `"10m"`),
			"The most bytes that a sandbox may send per second. At least 1k.").describedBy("no bound"),
		defineSetting(KeyCeilingConnections, func(c *Config) *int { return &c.Network.CeilingConnections }, numberOf("connections", 1, 1<<20),
			"The most simultaneous connections of a sandbox. 1 to 1048576.").describedBy("no bound"),
		defineSetting(KeyCeilingConnectionRate, func(c *Config) *int { return &c.Network.CeilingConnectionRate }, numberOf("connections", 1, 1<<20),
			"The most new connections of a sandbox per second. 1 to 1048576.").describedBy("no bound"),
	}
}

// setRules reads a list of network rules.
func setRules(field *[]string, v any) error {
	rules, ok := listOf(v)
	if !ok {
		return fmt.Errorf("%s is not a list of network rules; use for example [\"*.python.org:443\"]", shortValue(v))
	}
	if _, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Allow: rules}); err != nil {
		if hint := sandpit.HintOf(err); hint != "" {
			return fmt.Errorf("%w; %s", err, hint)
		}
		return err
	}
	*field = rules
	return nil
}

// checkNetwork refuses defaults that are beyond the ceiling.
func (l *loader) checkNetwork() {
	n := l.cfg.Network
	if n.Forbid && l.cfg.Sandbox.NetworkEnabled {
		l.addConflict(KeyNetworkForbid, "is true, and so is sandbox.network_enabled; leave one of them out")
		return
	}
	ceiling, err := n.Ceiling()
	if err != nil {
		l.addConflict(KeyCeilingAllow, err.Error())
		return
	}
	usual := sandpit.NetworkPolicy{Online: !n.Forbid}
	n.Fill(&usual)
	if _, err := ceiling.Bound(usual, policy.Requester{IsLocal: func(netip.Addr) bool { return false }}); err != nil {
		l.addConflict(KeyNetworkAllow, "is beyond the ceiling: "+cmp.Or(sandpit.HintOf(err), err.Error()))
	}
}
