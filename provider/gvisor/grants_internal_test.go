package gvisor

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/dialer"
)

// TestPendingGrants bounds the grants of gateways that were never started, and gives each
// grant to one gateway.
func TestPendingGrants(t *testing.T) {
	t.Parallel()
	s := &gatewayStarter{grants: make(map[sandpit.ID]pendingGrant)}
	grant := &dialer.Grant{Resolvers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}}
	for range maxGrants {
		if err := s.setPendingGrant(sandpit.NewID(), grant); err != nil {
			t.Fatal(err)
		}
	}
	id := sandpit.NewID()
	if err := s.setPendingGrant(id, grant); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Fatalf("one too many: %v", err)
	}
	for old, p := range s.grants {
		p.since = time.Now().Add(-2 * grantLife)
		s.grants[old] = p
	}
	if err := s.setPendingGrant(id, grant); err != nil {
		t.Fatalf("after the others have expired: %v", err)
	}
	if len(s.grants) != 1 {
		t.Errorf("%d grants are left, want 1", len(s.grants))
	}
	if got, err := s.takeGrant(id); err != nil || len(got.Resolvers) != 1 || len(s.grants) != 0 {
		t.Errorf("taken %+v, %v; %d are left", got, err, len(s.grants))
	}
	if err := s.setPendingGrant(id, grant); err != nil {
		t.Fatal(err)
	}
	if err := s.setPendingGrant(id, nil); err != nil || len(s.grants) != 0 {
		t.Errorf("withdrawn: %v; %d are left", err, len(s.grants))
	}
}
