package e2b

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// network is what a sandbox may reach, and be reached by, as E2B's clients say it.
type network struct {
	Allow  []string `json:"allowOut"`
	Deny   []string `json:"denyOut"`
	Public *bool    `json:"allowPublicTraffic,omitempty"`

	// MaskHost and HTTPSPorts as Host and HTTPS in Ingress.
	MaskHost   string `json:"maskRequestHost,omitempty"`
	HTTPSPorts []int  `json:"httpsPorts,omitempty"`

	// Rules are for requests to hosts.
	Rules map[string][]transform `json:"rules,omitempty"`

	// What is not there.
	Proxy map[string]any `json:"egressProxy,omitempty"`
}

// allAddresses is what stands for all addresses.
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
		return p, sandpit.Errorf(sandpit.Unsupported, "network.egressProxy is not there in sandpit")
	}
	headers, err := n.toHeaders()
	if err != nil {
		return p, err
	}
	if !e.internet {
		for name, there := range map[string]bool{"allowOut": len(n.Allow) > 0, "rules": len(headers) > 0} {
			if there {
				return p, sandpit.Errorf(sandpit.PermissionDenied, "network.%s: this server gives sandboxes of E2B's clients no network", name)
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
		// There allowing goes before denying, here the other way round.
		if err := checkDisjoint(n.Allow, denied); err != nil {
			return p, err
		}
		p.Deny = denied
	default:
		p.Deny = denied // all that is not denied is allowed
	}
	return p, nil
}

// savedPolicy is what a sandbox may reach that begins as a snapshot, in which it is fixed
// whether there is a network.
func (e egress) savedPolicy(n sandpit.Snapshot, in createRequest) (sandpit.NetworkPolicy, error) {
	p, err := e.toPolicy(in.Network, in.Internet)
	if err != nil {
		return p, err
	}
	closed, saved := !p.Online || isClosed(p), n.Spec.Network
	switch {
	case !closed && len(p.Allow)+len(p.Deny)+len(p.Headers) == 0: // which earlier clients say who want nothing of it
		return sandpit.NetworkPolicy{}, nil // as the snapshot has it
	case saved.Online && closed:
		return sandpit.NetworkPolicy{Online: true, Deny: slices.Clone(allAddresses)}, nil
	case saved.Online:
		p.Limits = saved.Limits
		return p, nil
	case closed:
		return sandpit.NetworkPolicy{}, nil
	}
	return p, sandpit.Errorf(sandpit.Conflict, "snapshot %s is of a sandbox without a network, and what begins as it cannot be given one", n.ID)
}

// isClosed reports whether nothing can be reached.
func isClosed(p sandpit.NetworkPolicy) bool { return slices.Equal(p.Deny, allAddresses) }

// checkDisjoint refuses rules of which one allows what the other denies.
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
				return sandpit.Errorf(sandpit.Unsupported, "network: %.100q is allowed within %.100q, which is denied; sandpit cannot do that", a, d)
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

// toNetwork tells what a sandbox may reach.
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

// setNetwork replaces what a sandbox may reach.
func (h *sandboxHandlers) setNetwork(c *call) (int, any, error) {
	var in struct {
		network

		Internet *bool `json:"allow_internet_access"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	if in.MaskHost != "" || len(in.HTTPSPorts) > 0 {
		return 0, nil, sandpit.Errorf(sandpit.Unsupported, "network: maskRequestHost and httpsPorts are fixed when a sandbox is made")
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
			return 0, nil, sandpit.Errorf(sandpit.Conflict, "sandbox %s was made without a network, and cannot be given one", b.ID)
		}
		return http.StatusNoContent, nil, nil
	}
	if !p.Online {
		p, secrets = sandpit.NetworkPolicy{Online: true, Deny: allAddresses}, nil
	}
	p.Limits = b.Spec.Network.Limits
	return http.StatusNoContent, nil, h.manager.Network().Set(c.r.Context(), b.ID, p, secrets)
}
