package policy_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

func ceiling(tb testing.TB, p sandpit.NetworkPolicy) *policy.Ceiling {
	tb.Helper()
	c, err := policy.NewCeiling(false, p, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// ownAddress is one that the machine has in these tests, besides its private ones.
const ownAddress = "93.184.215.1"

func isOwn(a netip.Addr) bool { return a == netip.MustParseAddr(ownAddress) }

// ordinary and administrator are requesters of policies.
var (
	ordinary      = policy.Requester{IsLocal: isOwn}
	administrator = policy.Requester{IsLocal: isOwn, Administrator: true}
)

// TestCeilingRules tries every form of rule against every form of ceiling.
func TestCeilingRules(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ ceiling, within, beyond []string }{
		"none": {nil, []string{"0.0.0.0/0", "a.example"}, []string{"10.0.0.1"}},
		"an address": {
			[]string{"93.184.215.14"},
			[]string{"93.184.215.14", "93.184.215.14:443"},
			[]string{"93.184.215.15", "93.184.215.0/24", "0.0.0.0/0", "::/0", "a.example", "*.example", "::5db8:d70e"},
		},
		"a port": {
			[]string{"93.184.215.0/24:443"},
			[]string{"93.184.215.14:443", "93.184.215.0/25:443", "93.184.215.0/24:443"},
			[]string{"93.184.215.14", "93.184.215.14:80", "93.184.214.0/23:443"},
		},
		"a name": {
			[]string{"a.example"},
			[]string{"a.example", "A.example.", "a.example:443"},
			[]string{"b.example", "*.a.example", "x.a.example", "a.example.evil", "93.184.215.14", "0.0.0.0/0"},
		},
		"names below": {
			[]string{"*.example:443"},
			[]string{"a.example:443", "*.example:443", "*.a.example:443", "b.a.example:443"},
			[]string{"example:443", "a.example", "a.example:80", "xexample:443", "*.evil:443"},
		},
		"everything public": {
			[]string{"0.0.0.0/0", "::/0"},
			[]string{"0.0.0.0/0", "::/0", "93.184.215.14", "93.184.215.0/24:80", "a.example", "*.example:443", "2606:2800::/32"},
			// What a wide rule does not open, one within it must not either.
			[]string{"10.0.0.1", "10.0.0.0/8", "169.254.169.254", "127.0.0.1:80", "fd00::/8", "::1", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", ownAddress},
		},
		"everything of one kind": {
			[]string{"0.0.0.0/0"}, []string{"93.184.215.14"}, []string{"a.example", "2606:2800::1", "::/0"},
		},
		"everything at a port": {
			[]string{"0.0.0.0/0:443", "[::/0]:443"}, []string{"a.example:443"}, []string{"a.example", "a.example:80"},
		},
		"private on purpose": {
			[]string{"10.1.0.0/16", ownAddress, "fd00:1::/32"},
			[]string{"10.1.2.3", "10.1.0.0/24:80", ownAddress + ":53", "fd00:1::5"},
			[]string{"10.2.0.1", "10.0.0.0/8", "192.168.0.1", "fd00:2::1", "64:ff9b::a01:203"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := ceiling(t, sandpit.NetworkPolicy{Allow: tc.ceiling})
			for _, r := range tc.within {
				got, err := c.Bound(sandpit.NetworkPolicy{Online: true, Allow: []string{r}}, ordinary)
				if err != nil || !slices.Equal(got.Allow, []string{r}) {
					t.Errorf("%s: %v, %v, want it as it is", r, got.Allow, err)
				}
			}
			for _, r := range tc.beyond {
				_, err := c.Bound(sandpit.NetworkPolicy{Online: true, Allow: slices.Concat(tc.ceiling, []string{r})}, ordinary)
				if sandpit.CodeOf(err) != sandpit.PermissionDenied || !strings.Contains(err.Error(), r) || sandpit.HintOf(err) == "" {
					t.Errorf("%s: %v, want it denied, with a hint", r, err)
				}
			}
		})
	}
}

// TestInside has addresses that are not public opened by administrators, and within what
// the configuration grants.
func TestInside(t *testing.T) {
	t.Parallel()
	inner := []string{
		"10.0.0.1", "10.0.0.0/8", "10.0.0.0/24:80", "127.0.0.1:5432", "169.254.169.254", "100.64.0.1", "192.168.0.0/16", "0.0.0.0/8", "240.0.0.0/4",
		"168.63.129.16", "fd00::/8", "::1", "fe80::1", "[fd00:ec2::254]:80", "64:ff9b::a00:1", "2002:a00:1::1", "4000::1", ownAddress, ownAddress + ":443",
	}
	outer := []string{"0.0.0.0/0", "::/0", "8.8.8.8", "8.0.0.0/6", "93.184.0.0/16", "2606:4700::1111", "64:ff9b::808:808", "a.example", "*.lan:80", "4000::/8"}
	open := ceiling(t, sandpit.NetworkPolicy{})
	for _, rule := range slices.Concat(inner, outer) {
		asked := sandpit.NetworkPolicy{Online: true, Allow: []string{rule, "8.8.4.4"}, Inside: []string{rule}}
		closed := slices.Contains(inner, rule)
		got, err := open.Bound(asked, ordinary)
		if (err != nil) != closed || closed && (sandpit.CodeOf(err) != sandpit.PermissionDenied || !strings.Contains(sandpit.HintOf(err), "network.ceiling_allow")) {
			t.Errorf("%s of an ordinary owner: %v (%s)", rule, err, sandpit.HintOf(err))
		}
		if err == nil && len(got.Inside) > 0 {
			t.Errorf("%s of an ordinary owner opens %q", rule, got.Inside)
		}
		want := []string{rule}
		if !closed {
			want = nil
		}
		if got, err := open.Bound(asked, administrator); err != nil || !slices.Equal(got.Inside, want) {
			t.Errorf("%s of an administrator: %v, opens %q", rule, err, got.Inside)
		}
	}
	usual, err := policy.NewCeiling(false, sandpit.NetworkPolicy{}, []string{"10.1.0.0/16:443", "0.0.0.0/0", "a.example"})
	if err != nil {
		t.Fatal(err)
	}
	for rule, granted := range map[string]bool{
		"10.1.0.0/16:443": true, "10.1.2.3:443": true, "10.1.2.3": false, "10.1.2.3:80": false, "10.2.0.1:443": false, "10.0.0.0/8:443": false,
	} {
		got, err := usual.Bound(sandpit.NetworkPolicy{Online: true, Allow: []string{rule}}, ordinary)
		if (err == nil) != granted || granted && !slices.Equal(got.Inside, []string{rule}) {
			t.Errorf("%s where the usual rules grant 10.1.0.0/16:443: %v, opens %q", rule, err, got.Inside)
		}
	}
	// What has no rules has the ceiling's, the inside included.
	full := ceiling(t, sandpit.NetworkPolicy{Allow: []string{"0.0.0.0/0", "10.1.2.3:443"}})
	if got, err := full.Bound(sandpit.NetworkPolicy{Online: true}, ordinary); err != nil || !slices.Equal(got.Inside, []string{"10.1.2.3:443"}) {
		t.Errorf("no rules below a ceiling: %v, opens %q", err, got.Inside)
	}
	// An administrator is below the ceiling, too.
	if _, err := full.Bound(sandpit.NetworkPolicy{Online: true, Allow: []string{"10.1.2.4"}}, administrator); sandpit.CodeOf(err) != sandpit.PermissionDenied {
		t.Errorf("beyond the ceiling, by an administrator: %v", err)
	}
}

// TestGranted has rules open what Inside contains and nothing else.
func TestGranted(t *testing.T) {
	t.Parallel()
	r := parse(t, sandpit.NetworkPolicy{
		Allow:  []string{"10.0.0.0/8", "192.168.0.1", ownAddress, "a.example", "127.0.0.1"},
		Inside: []string{"10.1.0.0/16:443", ownAddress, "127.0.0.1", "172.16.0.1"},
	})
	for target, want := range map[string]bool{
		"10.1.2.3:443": true, "10.1.2.3:80": false, "10.2.0.1:443": false, "192.168.0.1:80": false, ownAddress + ":1": true,
		"172.16.0.1:80": false, "127.0.0.1:9": true, "127.0.0.2:9": false,
	} {
		to := netip.MustParseAddrPort(target)
		f := policy.Flow{Addr: to.Addr(), Port: to.Port(), Names: []string{"a.example"}, Local: isOwn(to.Addr()) || to.Addr().IsLoopback()}
		if v := r.Connect(f); v.Allowed != want {
			t.Errorf("%s: %+v, want allowed %v", target, v, want)
		}
	}
	for addr, want := range map[string]bool{"10.1.2.3": true, "10.2.0.1": false, "192.168.0.1": false, ownAddress: true, "172.16.0.1": false} {
		if got := r.Answer(netip.MustParseAddr(addr), addr == ownAddress); got != want {
			t.Errorf("%s in an answer: %v, want %v", addr, got, want)
		}
	}
}

// TestCeilingFills has what a policy leaves open become the ceiling.
func TestCeilingFills(t *testing.T) {
	t.Parallel()
	c := ceiling(t, sandpit.NetworkPolicy{
		Allow: []string{"*.example"}, Deny: []string{"10.0.0.0/8", "bad.example"},
		Limits: sandpit.NetworkLimits{Receive: 4096, Send: 2048, Connections: 5, ConnectionRate: 3},
	})
	for name, tc := range map[string]struct{ asked, want sandpit.NetworkPolicy }{
		"offline": {},
		"nothing": {
			sandpit.NetworkPolicy{Online: true},
			sandpit.NetworkPolicy{
				Online: true, Allow: []string{"*.example"}, Deny: []string{"10.0.0.0/8", "bad.example"},
				Limits: sandpit.NetworkLimits{Receive: 4096, Send: 2048, Connections: 5, ConnectionRate: 3},
			},
		},
		"less": {
			sandpit.NetworkPolicy{
				Online: true, Allow: []string{"a.example:443"}, Deny: []string{"bad.example", "b.example"},
				Limits: sandpit.NetworkLimits{Receive: 1024, Connections: 5},
			},
			sandpit.NetworkPolicy{
				Online: true, Allow: []string{"a.example:443"}, Deny: []string{"bad.example", "b.example", "10.0.0.0/8"},
				Limits: sandpit.NetworkLimits{Receive: 1024, Send: 2048, Connections: 5, ConnectionRate: 3},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := tc.asked.Clone()
			got, err := c.Bound(tc.asked, ordinary)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Equal(tc.want) {
				t.Errorf("(-want +got):\n%s", cmp.Diff(tc.want, got))
			}
			if again, err := c.Bound(got, ordinary); err != nil || !again.Equal(got) {
				t.Errorf("once more: %+v, %v", again, err)
			}
			if !tc.asked.Equal(before) {
				t.Error("what was asked has changed")
			}
		})
	}
	for name, l := range map[string]sandpit.NetworkLimits{
		"receive": {Receive: 4097}, "send": {Send: 1 << 20}, "connections": {Connections: 6}, "connection_rate": {ConnectionRate: 4},
	} {
		_, err := c.Bound(sandpit.NetworkPolicy{Online: true, Limits: l}, ordinary)
		if sandpit.CodeOf(err) != sandpit.PermissionDenied || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want it denied", name, err)
		}
	}
}

func TestCeilingRefuses(t *testing.T) {
	t.Parallel()
	for _, p := range []sandpit.NetworkPolicy{
		{Allow: []string{"10.0.0.1/8"}},
		{Deny: []string{"a b"}},
		{Limits: sandpit.NetworkLimits{Send: 1}},
		{Headers: []sandpit.NetworkHeader{{Host: "a.example", Name: "A", Value: "${T}"}}},
	} {
		if _, err := policy.NewCeiling(false, p, nil); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%+v: %v, want invalid", p, err)
		}
	}
	c, err := policy.NewCeiling(true, sandpit.NetworkPolicy{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Bound(sandpit.NetworkPolicy{}, ordinary); err != nil {
		t.Errorf("offline: %v", err)
	}
	if _, err := c.Bound(sandpit.NetworkPolicy{Online: true}, ordinary); sandpit.CodeOf(err) != sandpit.PermissionDenied {
		t.Errorf("online: %v, want it denied", err)
	}
	many := ceiling(t, sandpit.NetworkPolicy{Deny: []string{"10.0.0.0/8"}})
	if _, err := many.Bound(sandpit.NetworkPolicy{Online: true, Deny: slices.Repeat([]string{"9.9.9.9"}, 1000)}, ordinary); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("too many rules together: %v, want invalid", err)
	}
}

// FuzzCeiling looks for a policy that is let through and reaches what the ceiling
// alone would not.
func FuzzCeiling(f *testing.F) {
	f.Add("0.0.0.0/0", "10.0.0.1", "10.0.0.1", uint16(80), "a.example")
	f.Add("*.example:443", "*.a.example:443", "93.184.215.14", uint16(443), "x.a.example")
	f.Add("::/0", "64:ff9b::a00:1", "64:ff9b::a00:1", uint16(1), "")
	f.Fuzz(func(t *testing.T, limit, asked, addr string, port uint16, name string) {
		c, err := policy.NewCeiling(false, sandpit.NetworkPolicy{Allow: []string{limit}}, nil)
		if err != nil {
			return
		}
		got, err := c.Bound(sandpit.NetworkPolicy{Online: true, Allow: []string{asked}}, ordinary)
		peer, addrErr := netip.ParseAddr(addr)
		if err != nil || addrErr != nil {
			return
		}
		flow := policy.Flow{Addr: peer, Port: port, Names: []string{policy.Normal(name)}, Local: isOwn(peer.Unmap())}
		most := parse(t, sandpit.NetworkPolicy{Allow: []string{limit}, Inside: []string{limit}})
		bounded := parse(t, got)
		if bounded.Connect(flow).Allowed && !most.Connect(flow).Allowed {
			t.Errorf("%q within %q reaches %v:%d of %q", asked, limit, peer, port, name)
		}
		if bounded.Resolve(flow.Names[0]).Allowed && !most.Resolve(flow.Names[0]).Allowed {
			t.Errorf("%q within %q resolves %q", asked, limit, name)
		}
		free, err := ceiling(t, sandpit.NetworkPolicy{}).Bound(sandpit.NetworkPolicy{Online: true, Allow: []string{asked}, Inside: []string{limit}}, ordinary)
		if err == nil && parse(t, free).Connect(flow).Allowed && (flow.Local || !policy.Public(peer)) {
			t.Errorf("%q without a ceiling reaches %v:%d of %q", asked, peer, port, name)
		}
	})
}
