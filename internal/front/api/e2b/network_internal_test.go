package e2b

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// TestPolicy has E2B's rules mean the same in our words, or be refused.
func TestPolicy(t *testing.T) {
	t.Parallel()
	s := egress{internet: true}
	for name, tc := range map[string]struct {
		allow, deny []string
		internet    *bool
		want        sandpit.NetworkPolicy
		code        sandpit.Code
	}{
		"nothing is said":        {want: sandpit.NetworkPolicy{Online: true}},
		"no internet":            {internet: new(false), want: sandpit.NetworkPolicy{Online: true, Deny: allAddresses}},
		"internet":               {internet: new(true), want: sandpit.NetworkPolicy{Online: true}},
		"allowed only":           {allow: []string{"192.0.2.1"}, want: sandpit.NetworkPolicy{Online: true}},
		"all but one denied":     {allow: []string{"a.example"}, deny: []string{"0.0.0.0/0"}, want: sandpit.NetworkPolicy{Online: true, Allow: []string{"a.example"}}},
		"no internet but for":    {allow: []string{"a.example"}, internet: new(false), want: sandpit.NetworkPolicy{Online: true, Allow: []string{"a.example"}}},
		"one denied":             {deny: []string{"192.0.2.0/24"}, want: sandpit.NetworkPolicy{Online: true, Deny: []string{"192.0.2.0/24"}}},
		"apart":                  {allow: []string{"198.51.100.1"}, deny: []string{"192.0.2.0/24"}, want: sandpit.NetworkPolicy{Online: true, Deny: []string{"192.0.2.0/24"}}},
		"one within the other":   {allow: []string{"192.0.2.1"}, deny: []string{"192.0.2.0/24"}, code: sandpit.Unsupported},
		"a name without the all": {allow: []string{"a.example"}, deny: []string{"192.0.2.0/24"}, code: sandpit.Invalid},
		"a name denied":          {allow: []string{"192.0.2.1"}, deny: []string{"a.example"}, code: sandpit.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := s.toPolicy(&network{Allow: tc.allow, Deny: tc.deny}, tc.internet)
			if sandpit.CodeOf(err) != tc.code {
				t.Fatalf("%v, want code %q", err, tc.code)
			}
			if tc.code != "" {
				return
			}
			if diff := cmp.Diff(tc.want.Equal(got), true); diff != "" {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
	if p, err := (egress{}).toPolicy(nil, new(true)); err != nil || p.Online {
		t.Errorf("a server that gives no network gives %+v, %v", p, err)
	}
}

// TestSavedPolicy has a sandbox that begins as a snapshot have the network of that, unless
// its maker wants another that it can have.
func TestSavedPolicy(t *testing.T) {
	t.Parallel()
	s := egress{internet: true}
	offline, online := sandpit.NetworkPolicy{}, sandpit.NetworkPolicy{Online: true, Deny: []string{"192.0.2.0/24"}, Limits: sandpit.NetworkLimits{Connections: 5}}
	closed, other := sandpit.NetworkPolicy{Online: true, Deny: allAddresses}, &network{Deny: []string{"198.51.100.0/24"}}
	for name, tc := range map[string]struct {
		saved    sandpit.NetworkPolicy
		network  *network
		internet *bool
		want     sandpit.NetworkPolicy // the zero value is that of the snapshot
		code     sandpit.Code
	}{
		"offline, nothing is said": {saved: offline},
		"offline, internet":        {saved: offline, internet: new(true)},
		"offline, no internet":     {saved: offline, internet: new(false)},
		"offline, rules":           {saved: offline, network: other, code: sandpit.Conflict},
		"online, nothing is said":  {saved: online},
		"online, internet":         {saved: online, internet: new(true)},
		"online, no internet":      {saved: online, internet: new(false), want: closed},
		"online, rules":            {saved: online, network: other, want: sandpit.NetworkPolicy{Online: true, Deny: other.Deny, Limits: online.Limits}},
		"online, headers":          {saved: online, network: rules("a.example", "A", "1"), want: sandpit.NetworkPolicy{Online: true, Headers: policyHeaders([]header{{"a.example", "A", ""}}), Limits: online.Limits}},
		"offline, headers":         {saved: offline, network: rules("a.example", "A", "1"), code: sandpit.Conflict},
		"what is not there":        {saved: online, network: &network{Proxy: map[string]any{"x": nil}}, code: sandpit.Unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := s.savedPolicy(sandpit.Snapshot{Spec: sandpit.Spec{Network: tc.saved}}, createRequest{Network: tc.network, Internet: tc.internet})
			if sandpit.CodeOf(err) != tc.code || tc.code == "" && !tc.want.Equal(got) {
				t.Errorf("%+v, %v; want %+v, %q", got, err, tc.want, tc.code)
			}
		})
	}
	got, err := (egress{}).savedPolicy(sandpit.Snapshot{Spec: sandpit.Spec{Network: online}}, createRequest{Internet: new(true)})
	if err != nil || !got.Equal(closed) {
		t.Errorf("a server that gives no network gives %+v, %v", got, err)
	}
}

// rules has a header set in requests to a host.
func rules(host, name, value string) *network {
	var t transform
	t.Transform.Headers = map[string]string{name: value}
	return &network{Rules: map[string][]transform{host: {t}}}
}

// TestHeaders has rules become headers whose values are stored apart and never shown.
func TestHeaders(t *testing.T) {
	t.Parallel()
	n := rules("b.example", "Authorization", "Bearer 1")
	n.Rules["b.example"] = append(n.Rules["b.example"], transform{}, rules("", "authorization", "Bearer 2").Rules[""][0], rules("", "X-B", "b").Rules[""][0])
	n.Rules["a.example"] = rules("", "X-A", "a").Rules[""]
	p, err := (egress{internet: true}).toPolicy(n, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []sandpit.NetworkHeader{
		{Host: "a.example", Name: "X-A", Value: "${E2B_0}"},
		{Host: "b.example", Name: "authorization", Value: "${E2B_1}"},
		{Host: "b.example", Name: "X-B", Value: "${E2B_2}"},
	}
	if diff := cmp.Diff(want, p.Headers); diff != "" {
		t.Error(diff)
	}
	secrets, err := n.toSecrets()
	if diff := cmp.Diff(map[string]string{"E2B_0": "a", "E2B_1": "Bearer 2", "E2B_2": "b"}, secrets); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	told := toNetwork(sandpit.Sandbox{Spec: sandpit.Spec{Network: p}}).Rules
	if got := told["b.example"][0].Transform.Headers; len(told) != 2 || len(told["b.example"]) != 1 || got["X-B"] != "${E2B_2}" || got["authorization"] != "${E2B_1}" {
		t.Errorf("it is shown as %v", told)
	}
	if p, err := (egress{}).toPolicy(n, nil); sandpit.CodeOf(err) != sandpit.PermissionDenied {
		t.Errorf("a server that gives no network gives %+v, %v", p, err)
	}
}

// FuzzPairs has any metadata of a query read without harm.
func FuzzPairs(f *testing.F) {
	for _, text := range []string{"a=b", "a%2520b=%2526", "%zz", "=&=", "a=%25"} {
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text string) { _, _ = parseMetadata(text) })
}

// FuzzPlace has any token of a page either be refused or name one place.
func FuzzPlace(f *testing.F) {
	f.Add("")
	f.Add(position{noDeadline, "s0000000000000000000"}.String())
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePosition(text)
		if err != nil {
			return
		}
		again, err := parsePosition(p.String())
		if err != nil || !again.at.Equal(p.at) || again.id != p.id {
			t.Errorf("%q: %v, then %v, %v", text, p, again, err)
		}
	})
}
