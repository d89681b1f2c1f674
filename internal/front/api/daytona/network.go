package daytona

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// maxAllowed is the maximum number of entries of an allow list.
const maxAllowed = 10

// allAddresses are the rules for all addresses.
var allAddresses = []string{"0.0.0.0/0", "::/0"}

// networkSettings is what requests say about the network of a sandbox.
type networkSettings struct {
	BlockAll *bool   `json:"networkBlockAll"`
	Allow    *string `json:"networkAllowList"`
	Domains  *string `json:"domainAllowList"`
}

// egress converts what Daytona's clients say about the network of a sandbox.
type egress struct {
	internet bool // sandboxes have a network unless their request says otherwise
}

// isBlocked reports whether the sandbox may reach nothing.
func (n networkSettings) isBlocked() bool { return n.BlockAll != nil && *n.BlockAll }

// toPolicy returns the policy that settings ask for. An allow list that is present but empty
// allows nothing.
func (n networkSettings) toPolicy() (sandpit.NetworkPolicy, error) {
	p := sandpit.NetworkPolicy{Online: true}
	if n.isBlocked() {
		p.Deny = slices.Clone(allAddresses)
		return p, nil
	}
	ranges, err := splitList("networkAllowList", n.Allow)
	if err != nil {
		return p, err
	}
	for _, entry := range ranges {
		if _, err := netip.ParsePrefix(entry); err != nil {
			return p, sandpit.Errorf(sandpit.Invalid, "networkAllowList: %.100q is not a range of addresses such as 192.0.2.0/24", entry)
		}
	}
	domains, err := splitList("domainAllowList", n.Domains)
	if err != nil {
		return p, err
	}
	p.Allow = slices.Concat(ranges, domains)
	if n.Allow != nil || n.Domains != nil {
		if len(p.Allow) == 0 {
			p.Deny = slices.Clone(allAddresses)
		}
	}
	return p, nil
}

// mergeInto returns the settings with the lists that they leave out as a policy has them.
func (n networkSettings) mergeInto(p sandpit.NetworkPolicy) networkSettings {
	_, ranges, domains := describePolicy(p)
	if n.Allow == nil {
		n.Allow = ranges
	}
	if n.Domains == nil {
		n.Domains = domains
	}
	return n
}

// splitList returns the entries of a list that are separated by commas.
func splitList(name string, list *string) (entries []string, err error) {
	if list == nil {
		return nil, nil
	}
	for entry := range strings.SplitSeq(*list, ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			entries = append(entries, entry)
		}
	}
	if len(entries) > maxAllowed {
		return nil, sandpit.Errorf(sandpit.Invalid, "%s: %d entries, want at most %d", name, len(entries), maxAllowed)
	}
	return entries, nil
}

// newPolicy returns the policy of a new sandbox, and whether the sandbox must have no network.
func (e egress) newPolicy(n networkSettings) (p sandpit.NetworkPolicy, offline bool, err error) {
	if n == (networkSettings{}) || !n.isBlocked() && n.Allow == nil && n.Domains == nil {
		return sandpit.NetworkPolicy{Online: e.internet}, false, nil
	}
	if n.isBlocked() && !e.internet {
		return sandpit.NetworkPolicy{}, true, nil
	}
	p, err = n.toPolicy()
	return p, false, err
}

// describePolicy describes a policy in the words of Daytona's clients. An empty list is nil.
func describePolicy(p sandpit.NetworkPolicy) (blocked bool, ranges, domains *string) {
	if !p.Online || isClosed(p) {
		return true, nil, nil
	}
	var addresses, names []string
	for _, entry := range p.Allow {
		if _, err := netip.ParsePrefix(entry); err == nil {
			addresses = append(addresses, entry)
		} else {
			names = append(names, entry)
		}
	}
	if len(addresses) > 0 {
		ranges = joinList(addresses)
	}
	if len(names) > 0 {
		domains = joinList(names)
	}
	return false, ranges, domains
}

// isClosed reports whether a policy denies everything.
func isClosed(p sandpit.NetworkPolicy) bool { return slices.Equal(p.Deny, allAddresses) }

// setNetwork changes the network policy of a sandbox. What the request leaves out stays.
func (h *sandboxHandlers) setNetwork(c *call) (int, any, error) {
	var in networkSettings
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	b, err := h.findSandbox(c)
	if err != nil {
		return 0, nil, err
	}
	if in == (networkSettings{}) {
		return h.describer.respond(c, b.ID)
	}
	p, err := in.mergeInto(b.Spec.Network).toPolicy()
	if err != nil {
		return 0, nil, err
	}
	switch {
	case !b.Spec.Network.Online && isClosed(p): // it is closed already
		return h.describer.respond(c, b.ID)
	case !b.Spec.Network.Online:
		return 0, nil, refuse(http.StatusBadRequest, sandpit.Conflict, "sandbox %s was created without a network and cannot get one", b.ID)
	}
	p.Limits = b.Spec.Network.Limits
	if err := h.manager.Network().Set(c.r.Context(), b.ID, p, nil); err != nil {
		return 0, nil, err
	}
	return h.describer.respond(c, b.ID)
}
