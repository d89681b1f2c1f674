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

// everything is what stands for all addresses.
var everything = []string{"0.0.0.0/0", "::/0"}

// policy puts what is asked for into our own words. What these cannot say is refused.
func (s *Server) policy(n *network, internet *bool) (p sandpit.NetworkPolicy, err error) {
	if n == nil {
		n = &network{}
	}
	if len(n.Proxy) > 0 {
		return p, sandpit.Errorf(sandpit.Unsupported, "network.egressProxy is not there in sandpit")
	}
	headers, err := n.headers()
	if err != nil {
		return p, err
	}
	if !s.o.Internet {
		for name, there := range map[string]bool{"allowOut": len(n.Allow) > 0, "rules": len(headers) > 0} {
			if there {
				return p, sandpit.Errorf(sandpit.PermissionDenied, "network.%s: this server gives sandboxes of E2B's clients no network", name)
			}
		}
		return p, nil
	}
	p.Online, p.Headers = true, policyHeaders(headers)
	denied := slices.DeleteFunc(slices.Clone(n.Deny), func(rule string) bool { return slices.Contains(everything, rule) })
	closed := internet != nil && !*internet || len(denied) < len(n.Deny)
	switch {
	case closed && len(n.Allow) == 0:
		p.Deny = slices.Clone(everything)
	case closed:
		p.Allow = n.Allow // and nothing else
	case len(n.Allow) > 0 && len(denied) > 0:
		// There allowing goes before denying, here the other way round.
		if err := apart(n.Allow, denied); err != nil {
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
func (s *Server) savedPolicy(n sandpit.Snapshot, in created) (sandpit.NetworkPolicy, error) {
	p, err := s.policy(in.Network, in.Internet)
	if err != nil {
		return p, err
	}
	closed, saved := !p.Online || isClosed(p), n.Spec.Network
	switch {
	case !closed && len(p.Allow)+len(p.Deny)+len(p.Headers) == 0: // which earlier clients say who want nothing of it
		return sandpit.NetworkPolicy{}, nil // as the snapshot has it
	case saved.Online && closed:
		return sandpit.NetworkPolicy{Online: true, Deny: slices.Clone(everything)}, nil
	case saved.Online:
		p.Limits = saved.Limits
		return p, nil
	case closed:
		return sandpit.NetworkPolicy{}, nil
	}
	return p, sandpit.Errorf(sandpit.Conflict, "snapshot %s is of a sandbox without a network, and what begins as it cannot be given one", n.ID)
}

// isClosed reports whether nothing can be reached.
func isClosed(p sandpit.NetworkPolicy) bool { return slices.Equal(p.Deny, everything) }

// apart refuses rules of which one allows what the other denies.
func apart(allow, deny []string) error {
	for _, a := range allow {
		allowed, err := rangeOf(a)
		if err != nil {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "network.allowOut %.100q: a name needs everything else to be denied", a),
				"add 0.0.0.0/0 to denyOut")
		}
		for _, d := range deny {
			denied, err := rangeOf(d)
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

func rangeOf(rule string) (netip.Prefix, error) {
	if !strings.Contains(rule, "/") {
		addr, err := netip.ParseAddr(rule)
		if err != nil {
			return netip.Prefix{}, err
		}
		return addr.Prefix(addr.BitLen())
	}
	return netip.ParsePrefix(rule)
}

// networkOf tells what a sandbox may reach.
func networkOf(b sandpit.Sandbox) network {
	m, made := markOf(b)
	n := network{
		Allow: b.Spec.Network.Allow, Deny: b.Spec.Network.Deny, Public: new(made && !m.Private),
		MaskHost: m.Host, HTTPSPorts: m.HTTPS,
	}
	if !b.Spec.Network.Online || len(n.Allow) > 0 {
		n.Deny = everything[:1]
	}
	if len(b.Spec.Network.Headers) > 0 {
		n.Rules = rulesOf(b.Spec.Network.Headers)
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
func (s *Server) setNetwork(c *call) (int, any, error) {
	var in struct {
		network

		Internet *bool `json:"allow_internet_access"`
	}
	if err := c.read(&in); err != nil {
		return 0, nil, err
	}
	if in.MaskHost != "" || len(in.HTTPSPorts) > 0 {
		return 0, nil, sandpit.Errorf(sandpit.Unsupported, "network: maskRequestHost and httpsPorts are fixed when a sandbox is made")
	}
	b, err := s.find(c)
	if err != nil {
		return 0, nil, err
	}
	p, err := s.policy(&in.network, in.Internet)
	if err != nil {
		return 0, nil, err
	}
	secrets, err := in.secrets()
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
		p, secrets = sandpit.NetworkPolicy{Online: true, Deny: everything}, nil
	}
	p.Limits = b.Spec.Network.Limits
	return http.StatusNoContent, nil, s.o.Manager.Network().Set(c.r.Context(), b.ID, p, secrets)
}
