package e2b

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// network is the network policy of a sandbox in the words of E2B's clients.
type network struct {
	Allow  []string `json:"allowOut"`
	Deny   []string `json:"denyOut"`
	Public *bool    `json:"allowPublicTraffic,omitempty"`

	// MaskHost and HTTPSPorts as Host and HTTPS in Ingress.
	MaskHost   string `json:"maskRequestHost,omitempty"`
	HTTPSPorts []int  `json:"httpsPorts,omitempty"`

	// Rules change requests to hosts.
	Rules map[string][]transform `json:"rules,omitempty"`

	// Proxy is unsupported.
	Proxy map[string]any `json:"egressProxy,omitempty"`
}

// allAddresses are the rules for all addresses.
var allAddresses = []string{"0.0.0.0/0", "::/0"}

// egress converts what E2B's clients say about the network of a sandbox.
type egress struct {
	internet bool // sandboxes may have a network
}

// toPolicy converts a request to a policy. Requests that a policy cannot express are refused.
func (e egress) toPolicy(n *network, internet *bool) (p sandpit.NetworkPolicy, err error) {
	if n == nil {
		n = &network{}
	}
	if len(n.Proxy) > 0 {
		return p, sandpit.Errorf(sandpit.Unsupported, "network.egressProxy: sandpit does not support it")
	}
	headers, err := n.toHeaders()
	if err != nil {
		return p, err
	}
	if !e.internet {
		for name, there := range map[string]bool{"allowOut": len(n.Allow) > 0, "rules": len(headers) > 0} {
			if there {
				return p, sandpit.Errorf(sandpit.PermissionDenied, "network.%s: this server does not give sandboxes of E2B clients a network", name)
			}
		}
		return p, nil
	}
	p.Online, p.Headers = true, policyHeaders(headers)
	denied := slices.DeleteFunc(slices.Clone(n.Deny), func(rule string) bool { return slices.Contains(allAddresses, rule) })
	closed := internet != nil && !*internet || len(denied) < len(n.Deny)
	switch {
	case closed && len(n.Allow) == 0:
		p.Deny = slices.Clone(allAddresses)
	case closed:
		p.Allow = n.Allow // and nothing else
	case len(n.Allow) > 0 && len(denied) > 0:
		// In E2B, allowing takes precedence over denying; in sandpit, denying does.
		if err := checkDisjoint(n.Allow, denied); err != nil {
			return p, err
		}
		p.Deny = denied
	default:
		p.Deny = denied // everything that is not denied is allowed
	}
	return p, nil
}

// savedPolicy returns the policy of a sandbox that starts from a snapshot. The snapshot fixes
// whether there is a network.
func (e egress) savedPolicy(n sandpit.Snapshot, in createRequest) (sandpit.NetworkPolicy, error) {
	p, err := e.toPolicy(in.Network, in.Internet)
	if err != nil {
		return p, err
	}
	closed, saved := !p.Online || isClosed(p), n.Spec.Network
	switch {
	case !closed && len(p.Allow)+len(p.Deny)+len(p.Headers) == 0: // what earlier clients send if they want no change
		return sandpit.NetworkPolicy{}, nil // that of the snapshot
	case saved.Online && closed:
		return sandpit.NetworkPolicy{Online: true, Deny: slices.Clone(allAddresses)}, nil
	case saved.Online:
		p.Limits = saved.Limits
		return p, nil
	case closed:
		return sandpit.NetworkPolicy{}, nil
	}
	return p, sandpit.Errorf(sandpit.Conflict, "snapshot %s: its sandbox had no network, and sandboxes that start from it cannot have one", n.ID)
}

// isClosed reports whether a policy denies everything.
func isClosed(p sandpit.NetworkPolicy) bool { return slices.Equal(p.Deny, allAddresses) }

// checkDisjoint returns an error if one rule allows what another one denies.
func checkDisjoint(allow, deny []string) error {
	for _, a := range allow {
		allowed, err := parseRange(a)
		if err != nil {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "network.allowOut %.100q: a name needs everything else to be denied", a),
				"add 0.0.0.0/0 to denyOut")
		}
		for _, d := range deny {
			denied, err := parseRange(d)
			if err != nil {
				return sandpit.Errorf(sandpit.Invalid, "network.denyOut %.100q: want an address or a range of them", d)
			}
			if allowed.Overlaps(denied) {
				return sandpit.Errorf(sandpit.Unsupported, "network: %.100q is allowed within %.100q, which is denied; sandpit does not support this", a, d)
			}
		}
	}
	return nil
}

func parseRange(rule string) (netip.Prefix, error) {
	if !strings.Contains(rule, "/") {
		addr, err := netip.ParseAddr(rule)
		if err != nil {
			return netip.Prefix{}, err
		}
		return addr.Prefix(addr.BitLen())
	}
	return netip.ParsePrefix(rule)
}

// toNetwork describes the network policy of a sandbox.
func toNetwork(b sandpit.Sandbox) network {
	m, made := markOf(b)
	n := network{
		Allow: b.Spec.Network.Allow, Deny: b.Spec.Network.Deny, Public: new(made && !m.Private),
		MaskHost: m.Host, HTTPSPorts: m.HTTPS,
	}
	if !b.Spec.Network.Online || len(n.Allow) > 0 {
		n.Deny = allAddresses[:1]
	}
	if len(b.Spec.Network.Headers) > 0 {
		n.Rules = toRules(b.Spec.Network.Headers)
	}
	if n.Allow == nil {
		n.Allow = []string{}
	}
	if n.Deny == nil {
		n.Deny = []string{}
	}
	return n
}

// setNetwork replaces the network policy of a sandbox.
func (h *sandboxHandlers) setNetwork(c *call) (int, any, error) {
	var in struct {
		network

		Internet *bool `json:"allow_internet_access"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	if in.MaskHost != "" || len(in.HTTPSPorts) > 0 {
		return 0, nil, sandpit.Errorf(sandpit.Unsupported, "network: maskRequestHost and httpsPorts are fixed at the creation of a sandbox")
	}
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	p, err := h.egress.toPolicy(&in.network, in.Internet)
	if err != nil {
		return 0, nil, err
	}
	secrets, err := in.toSecrets()
	if err != nil {
		return 0, nil, err
	}
	if !b.Spec.Network.Online {
		if p.Online && !isClosed(p) {
			return 0, nil, sandpit.Errorf(sandpit.Conflict, "sandbox %s was created without a network and cannot get one", b.ID)
		}
		return http.StatusNoContent, nil, nil
	}
	if !p.Online {
		p, secrets = sandpit.NetworkPolicy{Online: true, Deny: allAddresses}, nil
	}
	p.Limits = b.Spec.Network.Limits
	return http.StatusNoContent, nil, h.manager.Network().Set(c.r.Context(), b.ID, p, secrets)
}
