package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

func TestNetwork(t *testing.T) {
	t.Parallel()
	cfg := load(t, user("[network]\nallow = ['*.python.org:443']\nceiling_allow = ['*.org:443', '198.41.0.0/24']\nceiling_receive = '1m'\n",
		"SANDPIT_NETWORK_CEILING_DENY=bad.example.org,10.0.0.0/8", "SANDPIT_NETWORK_CEILING_CONNECTIONS=9"))
	want := config.Network{
		Allow: []string{"*.python.org:443"}, CeilingAllow: []string{"*.org:443", "198.41.0.0/24"},
		CeilingDeny: []string{"bad.example.org", "10.0.0.0/8"}, CeilingReceive: 1 << 20, CeilingConnections: 9,
	}
	if diff := cmp.Diff(want, cfg.Network); diff != "" {
		t.Errorf("network (-want +got):\n%s", diff)
	}
	const words = "online sandboxes: by default allow *.python.org:443; at most allow *.org:443 198.41.0.0/24; " +
		"always deny bad.example.org 10.0.0.0/8; receive at most 1m; connections at most 9"
	if got := cfg.Network.String(); got != words {
		t.Errorf("in words: %s, want %s", got, words)
	}
	if got := config.Default().Network.String(); !strings.Contains(got, "no ceiling") {
		t.Errorf("the default in words: %s", got)
	}
	if got := (config.Network{Forbid: true}).String(); !strings.Contains(got, "offline") {
		t.Errorf("a network that is forbidden in words: %s", got)
	}
}

// Defaults are for requests that have no rules, and for those that are online.
func TestNetworkFill(t *testing.T) {
	t.Parallel()
	n := config.Network{Allow: []string{"a.example"}, Deny: []string{"b.example"}}
	for _, tc := range []struct{ asked, want sandpit.NetworkPolicy }{
		{},
		{sandpit.NetworkPolicy{Online: true}, sandpit.NetworkPolicy{Online: true, Allow: n.Allow, Deny: n.Deny}},
		{sandpit.NetworkPolicy{Online: true, Allow: []string{"c.example"}}, sandpit.NetworkPolicy{Online: true, Allow: []string{"c.example"}}},
		{sandpit.NetworkPolicy{Online: true, Deny: []string{"c.example"}}, sandpit.NetworkPolicy{Online: true, Deny: []string{"c.example"}}},
	} {
		got := tc.asked.Clone()
		n.Fill(&got)
		if !got.Equal(tc.want) {
			t.Errorf("%+v: %+v, want %+v", tc.asked, got, tc.want)
		}
	}
}

// What makes no sense is refused before anything starts.
func TestNetworkRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"allow = ['10.0.0.1/8']":                               "the range begins at 10.0.0.0/8",
		"deny = ['a b']":                                       "a rule is an address",
		"ceiling_allow = 5":                                    "not a list of network rules",
		"ceiling_deny = ['http://a.example']":                  "network.ceiling_deny",
		"ceiling_receive = 5":                                  "too small",
		"ceiling_connections = 0":                              "network.ceiling_connections",
		"ceiling = ['a.example']":                              "unknown key",
		"allow = ['10.0.0.1']\nceiling_allow = ['0.0.0.0/0']":  "network.allow: is beyond the ceiling",
		"allow = ['a.example']\nceiling_allow = ['b.example']": "network.allow: is beyond the ceiling",
		"forbid = true\n[sandbox]\nnetwork_enabled = true":     "network.forbid: is true, and so is sandbox.network_enabled",
		"forbid = 'true'":                                      "without quotes",
		"ceiling_allow = ['" + strings.Repeat("a", 400) + "']": "at most 300",
		"ceiling_allow = ['*.example', '*.example:99999']\n":   "the port is not a number",
		"ceiling_deny = ['fe80::1%eth0']":                      "zone",
	} {
		_, err := config.Load(user("[network]\n" + text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
