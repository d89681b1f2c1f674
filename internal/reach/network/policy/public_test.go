package policy_test

import (
	"net/netip"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// TestPublic writes addresses that are not public in every form.
func TestPublic(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"1.1.1.1": true, "::ffff:1.1.1.1": true, "2606:4700::1": true, "64:ff9b::101:101": true,
		"127.0.0.1": false, "10.0.0.1": false, "172.16.0.1": false, "192.168.0.1": false, "100.64.0.1": false, "169.254.169.254": false, "0.0.0.0": false,
		"255.255.255.255": false, "224.0.0.1": false, "::1": false, "::": false, "::ffff:10.0.0.1": false, "::10.0.0.1": false, "64:ff9b::a00:1": false,
		"64:ff9b:1::1": false, "2002:a00:1::": false, "fe80::1%eth0": false, "fd00::1": false, "ff02::1": false, "168.63.129.16": false,
	} {
		if got := policy.Public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if policy.Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}
