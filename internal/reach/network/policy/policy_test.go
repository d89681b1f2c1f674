package policy_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

func parse(tb testing.TB, p sandpit.NetworkPolicy) *policy.Rules {
	tb.Helper()
	p.Online = true
	r, err := policy.Parse(p)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func TestBadRules(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "*", "*.", ".", "a..b", ".example.org", "-a.example", "exa mple.org", "*.*.example.org", "a.*.example.org", "example.org/8",
		"http://example.org", "example.org:", "example.org:0", "example.org:65536", "example.org:80x", "example.org:+80", "example.org:080",
		"1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.4/33", "10.0.0.1/8", "10.0.0.0/", "10.0.0.0/8:", "2001:db8::1:x", "[2001:db8::1", "[2001:db8::1]80",
		"[1.2.3.4]:80", "[]:80", "fe80::1%eth0", "::ffff:1.2.3.4", "::ffff:0.0.0.0/96", "224.0.0.1", "ff02::1", "exämple.org",
		"a\x00.example", strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 127) + "example",
	} {
		for _, p := range []sandpit.NetworkPolicy{{Online: true, Allow: []string{text}}, {Online: true, Deny: []string{text}}} {
			if _, err := policy.Parse(p); sandpit.CodeOf(err) != sandpit.Invalid {
				t.Errorf("rule %q: %v, want invalid", text, err)
			}
		}
	}
	if _, err := policy.Parse(sandpit.NetworkPolicy{Allow: []string{"example.org"}}); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("rules without a network: %v, want invalid", err)
	}
	if _, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Deny: make([]string, 1001)}); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("too many rules: %v, want invalid", err)
	}
	_, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Allow: []string{"10.0.0.1/8"}})
	if err == nil || err.Error() != `network rule "10.0.0.1/8": the range begins at 10.0.0.0/8` || sandpit.HintOf(err) == "" {
		t.Errorf("error: %v (hint %q)", err, sandpit.HintOf(err))
	}
}

// TestSpecial checks addresses that no sandbox may reach by default.
func TestSpecial(t *testing.T) {
	t.Parallel()
	bare, wide := parse(t, sandpit.NetworkPolicy{}), parse(t, sandpit.NetworkPolicy{Allow: []string{"0.0.0.0/0", "::/0", "a.example", "0.0.0.0/1"}})
	for addr, public := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "172.32.0.1": true, "100.128.0.1": true, "2606:4700::1111": true, "64:ff9b::808:808": true,
		"::ffff:8.8.8.8": true,
		"0.0.0.0":        false, "0.1.2.3": false, "10.255.255.255": false, "100.64.0.1": false, "100.127.255.255": false, "127.0.0.1": false,
		"127.255.255.254": false, "168.63.129.16": false, "169.254.169.254": false, "172.16.0.1": false, "172.31.255.255": false,
		"192.0.0.192": false, "192.0.2.1": false, "192.168.255.255": false, "198.19.0.1": false, "198.51.100.1": false, "203.0.113.1": false,
		"224.0.0.1": false, "239.255.255.250": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "::7f00:1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::ffff:0:127.0.0.1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b::a00:1": false, "64:ff9b:1::808:808": false, "100::1": false,
		"2001::1": false, "2001:db8::1": false, "2002:a00:1::1": false, "2002:7f00:1::": false, "3fff::1": false, "5f00::1": false, "4000::1": false,
		"fc00::1": false, "fd00:ec2::254": false, "fe80::1": false, "fe80::1%eth0": false, "febf::1": false, "fec0::1": false, "ff02::1": false,
		"e000::1": false,
	} {
		for name, r := range map[string]*policy.Rules{"no rules": bare, "wide rules": wide} {
			f := policy.Flow{Addr: netip.MustParseAddr(addr), Port: 80, Names: []string{"a.example"}}
			v := r.Connect(f)
			if v.Allowed != public || v.Reason == "" {
				t.Errorf("%s, %s: %+v, want allowed %v", addr, name, v, public)
			}
			if got := r.Answer(f.Addr, false); got != public {
				t.Errorf("%s, %s: in an answer %v, want %v", addr, name, got, public)
			}
		}
		f := policy.Flow{Addr: netip.MustParseAddr(addr), Port: 80, Local: true}
		if bare.Connect(f).Allowed || wide.Connect(f).Allowed || wide.Answer(f.Addr, true) {
			t.Errorf("%s is reached although it is the machine's own", addr)
		}
	}
}

// TestPrecedence pins what wins.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	flow := func(addr string, port uint16, names ...string) policy.Flow {
		return policy.Flow{Addr: netip.MustParseAddr(addr), Port: port, Names: names}
	}
	for name, tc := range map[string]struct {
		allow, deny []string
		flow        policy.Flow
		want        string // reason, allowed if it begins with "allow" or "no rule f"
	}{
		"nothing":                       {nil, nil, flow("8.8.8.8", 80), "no rule forbids it"},
		"deny wins":                     {[]string{"8.8.8.8"}, []string{"8.0.0.0/8"}, flow("8.8.8.8", 80), "deny 8.0.0.0/8"},
		"deny wins over what is closer": {[]string{"8.8.8.8:53"}, []string{"0.0.0.0/0"}, flow("8.8.8.8", 53), "deny 0.0.0.0/0"},
		"denied port":                   {nil, []string{"8.8.8.8:25"}, flow("8.8.8.8", 25), "deny 8.8.8.8:25"},
		"other port":                    {nil, []string{"8.8.8.8:25"}, flow("8.8.8.8", 26), "no rule forbids it"},
		"denied name":                   {nil, []string{"*.evil.example"}, flow("8.8.8.8", 22, "x.evil.example"), "deny *.evil.example"},
		"mapped":                        {nil, []string{"8.8.8.8"}, flow("::ffff:8.8.8.8", 80), "deny 8.8.8.8"},
		"translated":                    {nil, []string{"8.8.8.8"}, flow("64:ff9b::808:808", 80), "deny 8.8.8.8"},
		"not listed":                    {[]string{"9.9.9.9"}, nil, flow("8.8.8.8", 80), "no rule allows it"},
		"private by rule":               {[]string{"10.0.0.0/8"}, nil, flow("10.1.1.1", 80), "allow 10.0.0.0/8"},
		"private by wide rule":          {[]string{"8.0.0.0/6"}, nil, flow("10.1.1.1", 80), "a private or special address"},
		"private by name":               {[]string{"a.example"}, nil, flow("10.1.1.1", 22, "a.example"), "a private or special address"},
		"by name":                       {[]string{"a.example:22"}, nil, flow("8.8.8.8", 22, "b.example", "a.example"), "allow a.example:22"},
		"by name, other port":           {[]string{"a.example:22"}, nil, flow("8.8.8.8", 23, "a.example"), "no rule allows it"},
		"multicast by rule":             {[]string{"0.0.0.0/0"}, nil, flow("224.0.0.1", 80), "not a unicast address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := parse(t, sandpit.NetworkPolicy{Allow: tc.allow, Deny: tc.deny, Inside: tc.allow}).Connect(tc.flow)
			want := strings.HasPrefix(tc.want, "allow ") || tc.want == "no rule forbids it"
			if v.Reason != tc.want || v.Allowed != want {
				t.Errorf("got %+v, want %q", v, tc.want)
			}
		})
	}
}

// TestResolve decides about names.
func TestResolve(t *testing.T) {
	t.Parallel()
	list := parse(t, sandpit.NetworkPolicy{Allow: []string{"a.example", "*.b.example", "c.example:443", "8.8.8.8"}, Deny: []string{"x.b.example", "y.b.example:25"}})
	for name, want := range map[string]bool{
		"a.example": true, "b.example": false, "w.b.example": true, "v.w.b.example": true, "c.example": true, "x.b.example": false,
		"y.b.example": true, "d.example": false, "": false, "xb.example": false,
	} {
		if v := list.Resolve(name); v.Allowed != want {
			t.Errorf("%q: %+v, want %v", name, v, want)
		}
	}
	if v := list.Resolve("a.example", "q.cdn.example", "x.b.example"); v.Allowed {
		t.Errorf("an alias of a name that is denied: %+v", v)
	}
	for _, p := range []sandpit.NetworkPolicy{{}, {Allow: []string{"0.0.0.0/0"}}} {
		if v := parse(t, p).Resolve("anything.example"); !v.Allowed {
			t.Errorf("%+v: %+v", p, v)
		}
	}
	if v := parse(t, sandpit.NetworkPolicy{Allow: []string{"8.8.8.0/24"}}).Resolve("anything.example"); v.Allowed {
		t.Errorf("addresses only: %+v", v)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1.2.3.4", "10.0.0.0/8:80", "[::1]:80", "*.example.org:443", "::/0", "a"} {
		f.Add(s)
	}
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("169.254.169.254")}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Deny: []string{text}})
		if err != nil {
			if sandpit.CodeOf(err) != sandpit.Invalid {
				t.Errorf("%q: code %s", text, sandpit.CodeOf(err))
			}
			return
		}
		for _, a := range addrs { // denying never allows
			if r.Connect(policy.Flow{Addr: a, Port: 80}).Allowed {
				t.Errorf("deny %q allows %s", text, a)
			}
		}
		allow, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Allow: []string{text}})
		if err != nil {
			t.Fatalf("%q is a rule for deny only: %v", text, err)
		}
		if !slices.ContainsFunc([]byte(text), func(c byte) bool { return '0' <= c && c <= '9' }) && allow.Connect(policy.Flow{Addr: addrs[0], Port: 80, Names: []string{text}}).Allowed {
			t.Errorf("the name %q opens a private address", text)
		}
	})
}
