package daemon

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// TestOwnerQuota tells no quota that was chosen from one that was not.
func TestOwnerQuota(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]manager.Quotas{"": {Share: true}, "owner_quota = 0": {}, "owner_quota = 5": {Owner: 5}} {
		s := &service{cfg: configured(t, "[manager]", line), providers: &providers{}}
		if got := s.managerOptions().Quotas; got.Owner != want.Owner || got.Share != want.Share {
			t.Errorf("%q: %+v, want %+v", line, got, want)
		}
	}
}

// TestKeyOwners has keys of an owner and of an administrator.
func TestKeyOwners(t *testing.T) {
	t.Parallel()
	cfg := configured(t)
	db, err := store.Open(t.Context(), cfg.StateDir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for id, admin := range map[string]bool{"alice": false, "root": true} {
		if _, _, err := api.NewKeys(db, clock.System{}, nil).Create(t.Context(), api.NewKey{Owner: id, Admin: admin}); err != nil {
			t.Fatal(err)
		}
	}
	owners, err := (&service{store: db}).keyOwners(t.Context())
	if err != nil || len(owners) != 3 || owners["alice"] || !owners["root"] || !owners[api.LocalOwner] {
		t.Errorf("owners %v, %v", owners, err)
	}
}
