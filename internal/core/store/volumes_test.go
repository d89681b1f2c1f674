package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

func volume(owner, name string) store.Volume {
	return store.Volume{
		ID: sandpit.NewID(), Owner: owner, Name: name, Provider: "gvisor", State: store.VolumeCreating, CreatedAt: begin,
	}
}

// TestVolumes keeps volumes, finds them, and forgets them.
func TestVolumes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	ctx := t.Context()
	insert := func(v store.Volume, most int) error {
		t.Helper()
		got, err := s.Volumes().InsertVolume(ctx, v, most)
		if diff := cmp.Diff(v, got); err == nil && diff != "" {
			t.Error(diff)
		}
		return err
	}
	a, b, c := volume("ann", "data"), volume("ann", "more"), volume("bob", "data")
	for _, v := range []store.Volume{a, b, c} {
		if err := insert(v, 2); err != nil {
			t.Fatal(err)
		}
	}
	want(t, insert(volume("ann", "third"), 2), sandpit.Exhausted, "2 volumes")
	want(t, insert(volume("ann", "data"), 9), sandpit.AlreadyExists, "data")
	want(t, insert(volume("eve", "data"), 0), sandpit.Exhausted, "0 volumes")
	for what, change := range map[string]func(*store.Volume){
		"id": func(v *store.Volume) { v.ID = "x" }, "name": func(v *store.Volume) { v.Name = "../x" },
		"owner": func(v *store.Volume) { v.Owner = "\xff" }, "provider": func(v *store.Volume) { v.Provider = "" },
		"state": func(v *store.Volume) { v.State = "odd" },
	} {
		bad := volume("eve", "x")
		change(&bad)
		want(t, insert(bad, 9), sandpit.Invalid, what)
	}

	list := func(f store.VolumeFilter) (ids map[sandpit.ID]bool) {
		t.Helper()
		all, err := s.Volumes().ListVolumes(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		ids = make(map[sandpit.ID]bool)
		for i, v := range all {
			ids[v.ID] = true
			if i > 0 && all[i-1].ID >= v.ID {
				t.Error("not in the order of IDs")
			}
		}
		return ids
	}
	if err := s.Volumes().SetVolumeState(ctx, a.ID, store.VolumeReady); err != nil {
		t.Fatal(err)
	}
	first := min(a.ID, b.ID)
	for what, tc := range map[string]struct {
		f    store.VolumeFilter
		want map[sandpit.ID]bool
	}{
		"an owner's": {store.VolumeFilter{Owner: "ann"}, map[sandpit.ID]bool{a.ID: true, b.ID: true}},
		"nobody's":   {store.VolumeFilter{}, map[sandpit.ID]bool{}},
		"all":        {store.VolumeFilter{All: true}, map[sandpit.ID]bool{a.ID: true, b.ID: true, c.ID: true}},
		"unfinished": {store.VolumeFilter{All: true, Unfinished: true}, map[sandpit.ID]bool{b.ID: true, c.ID: true}},
		"a page":     {store.VolumeFilter{Owner: "ann", Limit: 1}, map[sandpit.ID]bool{first: true}},
		"the next":   {store.VolumeFilter{Owner: "ann", After: first}, map[sandpit.ID]bool{max(a.ID, b.ID): true}},
	} {
		if diff := cmp.Diff(tc.want, list(tc.f)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	a.State = store.VolumeReady
	got, err := s.Volumes().Volume(ctx, "ann", "data")
	if diff := cmp.Diff(a, got); err != nil || diff != "" {
		t.Errorf("after a restart: %v\n%s", err, diff)
	}
	_, err = s.Volumes().Volume(ctx, "eve", "data")
	want(t, err, sandpit.NotFound, "data")
	if err := s.Volumes().DeleteVolume(ctx, a.ID); err != nil {
		t.Error(err)
	}
	want(t, s.Volumes().DeleteVolume(ctx, a.ID), sandpit.NotFound, "volume not found")
	want(t, s.Volumes().SetVolumeState(ctx, a.ID, store.VolumeReady), sandpit.NotFound, "volume not found")
	want(t, s.Volumes().SetVolumeState(ctx, b.ID, "odd"), sandpit.Invalid, "state")
}

// TestDamagedVolumes reads edited rows.
func TestDamagedVolumes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	v := volume("ann", "data")
	if _, err := s.Volumes().InsertVolume(t.Context(), v, 1); err != nil {
		t.Fatal(err)
	}
	raw(t, dir, `UPDATE volumes SET name = '../../etc'`)
	_, err := s.Volumes().ListVolumes(t.Context(), store.VolumeFilter{All: true})
	want(t, err, sandpit.Internal, "name")
	raw(t, dir, `UPDATE volumes SET name = 'data', id = '../x'`)
	_, err = s.Volumes().Volume(t.Context(), "ann", "data")
	want(t, err, sandpit.Internal, "id")
}
