package daytona

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestPolicy converts network settings to policies and back.
func TestPolicy(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in              networkSettings
		online, offline bool
		allow, deny     []string
		blocked         bool
		ranges, domains string
	}{
		"default":           {online: true},
		"not blocked":       {in: networkSettings{BlockAll: new(false)}, online: true},
		"blocked":           {in: networkSettings{BlockAll: new(true)}, online: true, deny: allAddresses, blocked: true},
		"ranges":            {in: networkSettings{Allow: new("192.0.2.0/24, 2001:db8::/32")}, online: true, allow: []string{"192.0.2.0/24", "2001:db8::/32"}, ranges: "192.0.2.0/24,2001:db8::/32"},
		"domains":           {in: networkSettings{Domains: new("*.example.org,example.com")}, online: true, allow: []string{"*.example.org", "example.com"}, domains: "*.example.org,example.com"},
		"both":              {in: networkSettings{Allow: new("192.0.2.0/24"), Domains: new("example.com")}, online: true, allow: []string{"192.0.2.0/24", "example.com"}, ranges: "192.0.2.0/24", domains: "example.com"},
		"empty":             {in: networkSettings{Allow: new("")}, online: true, deny: allAddresses, blocked: true},
		"blocked, and more": {in: networkSettings{BlockAll: new(true), Allow: new("192.0.2.0/24")}, online: true, deny: allAddresses, blocked: true},
	} {
		p, offline, err := egress{internet: true}.newPolicy(tc.in)
		if err != nil || p.Online != tc.online || offline != tc.offline || !slices.Equal(p.Allow, tc.allow) || !slices.Equal(p.Deny, tc.deny) {
			t.Errorf("%s: %+v, offline %v, %v", name, p, offline, err)
		}
		blocked, ranges, domains := describePolicy(p)
		if blocked != tc.blocked || text(ranges) != tc.ranges || text(domains) != tc.domains {
			t.Errorf("%s is described as %v %q %q", name, blocked, text(ranges), text(domains))
		}
	}
	if p, offline, err := (egress{}).newPolicy(networkSettings{BlockAll: new(true)}); err != nil || !offline || p.Online {
		t.Errorf("blocked on a server without a network: %+v %v %v", p, offline, err)
	}
	if p, offline, err := (egress{}).newPolicy(networkSettings{}); err != nil || offline || p.Online {
		t.Errorf("the default of a server without a network: %+v %v %v", p, offline, err)
	}
	for _, in := range []networkSettings{
		{Allow: new("example.org")}, {Allow: new("192.0.2.1")}, {Allow: new(strings.Repeat("192.0.2.0/24,", 11))}, {Domains: new(strings.Repeat("a.example,", 11))},
	} {
		if p, _, err := (egress{}).newPolicy(in); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%+v: %+v, %v", in, p, err)
		}
	}
}

// TestPolicyChanges changes a policy: what a request leaves out stays.
func TestPolicyChanges(t *testing.T) {
	t.Parallel()
	p := sandpit.NetworkPolicy{Online: true, Allow: []string{"example.com"}}
	for i, step := range []struct {
		in              networkSettings
		blocked         bool
		ranges, domains string
	}{
		{networkSettings{Allow: new("192.0.2.0/24")}, false, "192.0.2.0/24", "example.com"},
		{networkSettings{BlockAll: new(false)}, false, "192.0.2.0/24", "example.com"},
		{networkSettings{Domains: new("")}, false, "192.0.2.0/24", ""},
		{networkSettings{Allow: new("")}, true, "", ""},
		{networkSettings{Domains: new("example.org")}, false, "", "example.org"},
		{networkSettings{BlockAll: new(true)}, true, "", ""},
		{networkSettings{BlockAll: new(false)}, false, "", ""},
	} {
		var err error
		p, err = step.in.mergeInto(p).toPolicy()
		blocked, ranges, domains := describePolicy(p)
		if err != nil || blocked != step.blocked || text(ranges) != step.ranges || text(domains) != step.domains {
			t.Errorf("step %d: %v %q %q, %v", i, blocked, text(ranges), text(domains), err)
		}
	}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
