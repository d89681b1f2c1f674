package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

func snapshot(owner, name string) store.Snapshot {
	return store.Snapshot{
		ID: sandpit.NewSnapshotID(), Owner: owner, Name: name, Sandbox: sandpit.NewID(), Provider: "gvisor",
		State: store.SnapshotCreating, Spec: sandpit.Spec{Image: "python", Labels: map[string]string{"a": "b"}}, CreatedAt: begin,
	}
}

// plenty are limits that no test meets.
var plenty = store.SnapshotLimits{Count: 9}

// TestSnapshots keeps snapshots, finds them, changes and forgets them.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	ctx := t.Context()
	insert := func(n store.Snapshot) {
		t.Helper()
		got, err := s.Snapshots().InsertSnapshot(ctx, n, plenty)
		if diff := cmp.Diff(n, got); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
	}
	a, b, c, d := snapshot("ann", "data"), snapshot("ann", ""), snapshot("ann", ""), snapshot("bob", "data")
	c.Brief = true
	for _, n := range []store.Snapshot{a, b, c, d} {
		insert(n)
	}
	_, err := s.Snapshots().InsertSnapshot(ctx, snapshot("ann", "data"), plenty)
	want(t, err, sandpit.AlreadyExists, "data")

	a.State, a.Size, a.Memory = store.SnapshotReady, 5, true
	if err := s.Snapshots().FinishSnapshot(ctx, a, plenty); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data", string(a.ID)} {
		got, err := s.Snapshots().Snapshot(ctx, "ann", name)
		if diff := cmp.Diff(a, got); err != nil || diff != "" {
			t.Error(err, diff)
		}
	}
	_, err = s.Snapshots().Snapshot(ctx, "bob", string(a.ID))
	want(t, err, sandpit.NotFound, string(a.ID))
	_, err = s.Snapshots().Snapshot(ctx, "ann", "")
	want(t, err, sandpit.NotFound, "not found")
	if err := s.Snapshots().SetSnapshotUse(ctx, a.ID, true, "of another version"); err != nil {
		t.Error(err)
	}
	if err := s.Snapshots().SetSnapshotDeleting(ctx, d.ID); err != nil {
		t.Error(err)
	}
	for i, tc := range []struct {
		f    store.SnapshotFilter
		want []store.Snapshot
	}{
		{store.SnapshotFilter{All: true}, []store.Snapshot{a, b, c, d}},
		{store.SnapshotFilter{Owner: "ann"}, []store.Snapshot{a, b, c}},
		{store.SnapshotFilter{Owner: "ann", Lasting: true}, []store.Snapshot{a}},
		{store.SnapshotFilter{All: true, Lasting: true}, []store.Snapshot{a}},
		{store.SnapshotFilter{All: true, Sandbox: d.Sandbox}, []store.Snapshot{d}},
		{store.SnapshotFilter{Owner: "eve"}, nil},
	} {
		list, err := s.Snapshots().ListSnapshots(ctx, tc.f)
		ids := make(map[sandpit.SnapshotID]bool)
		for _, n := range list {
			ids[n.ID] = true
		}
		missing := false
		for _, n := range tc.want {
			missing = missing || !ids[n.ID]
		}
		if err != nil || missing || len(list) != len(tc.want) {
			t.Errorf("%d: %+v, %v; want %d", i, list, err, len(tc.want))
		}
	}
	first, err := s.Snapshots().ListSnapshots(ctx, store.SnapshotFilter{All: true, Limit: 2})
	if err != nil || len(first) != 2 {
		t.Fatal(first, err)
	}
	rest, err := s.Snapshots().ListSnapshots(ctx, store.SnapshotFilter{All: true, After: first[1].ID})
	if err != nil || len(rest) != 2 || rest[0].ID <= first[1].ID {
		t.Error(rest, err)
	}

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	got, err := s.Snapshots().Snapshot(ctx, "ann", "data")
	a.Problem = "of another version"
	if diff := cmp.Diff(a, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if err := s.Snapshots().DeleteSnapshot(ctx, a.ID); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"delete": s.Snapshots().DeleteSnapshot(ctx, a.ID), "finish": s.Snapshots().FinishSnapshot(ctx, a, plenty),
		"use": s.Snapshots().SetSnapshotUse(ctx, a.ID, false, ""), "deleting": s.Snapshots().SetSnapshotDeleting(ctx, a.ID),
	} {
		if sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSnapshotBounds refuses rows without a valid meaning, and the environment.
func TestSnapshotBounds(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	ctx := t.Context()
	for what, change := range map[string]func(*store.Snapshot){
		"id": func(n *store.Snapshot) { n.ID = "x" }, "name": func(n *store.Snapshot) { n.Name = "../x" },
		"owner": func(n *store.Snapshot) { n.Owner = "\xff" }, "provider": func(n *store.Snapshot) { n.Provider = "" },
		"state": func(n *store.Snapshot) { n.State = "odd" }, "sandbox": func(n *store.Snapshot) { n.Sandbox = "x" },
		"size": func(n *store.Snapshot) { n.Size = -1 }, "spec": func(n *store.Snapshot) { n.Spec.Name = "\xff" },
	} {
		bad := snapshot("eve", "x")
		change(&bad)
		_, err := s.Snapshots().InsertSnapshot(ctx, bad, plenty)
		want(t, err, sandpit.Invalid, what)
	}
	secret := snapshot("eve", "x")
	secret.Spec.Env = map[string]string{"TOKEN": "secret"}
	if _, err := s.Snapshots().InsertSnapshot(ctx, secret, plenty); err != nil {
		t.Fatal(err)
	}
	if err := s.Snapshots().FinishSnapshot(ctx, secret, plenty); err != nil {
		t.Fatal(err)
	}
	got, err := s.Snapshots().Snapshot(ctx, "eve", "x")
	if err != nil || got.Spec.Env != nil {
		t.Errorf("%+v, %v: want no environment", got.Spec, err)
	}
}

// TestSnapshotLimits counts what each owner has. What is brief counts for nothing.
func TestSnapshotLimits(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	ctx := t.Context()
	insert := func(n store.Snapshot, most store.SnapshotLimits) error {
		_, err := s.Snapshots().InsertSnapshot(ctx, n, most)
		return err
	}
	two := store.SnapshotLimits{Count: 2, Bytes: 100}
	a, b := snapshot("ann", "a"), snapshot("ann", "b")
	brief := snapshot("ann", "")
	brief.Brief = true
	for _, n := range []store.Snapshot{a, b} {
		if err := insert(n, two); err != nil {
			t.Fatal(err)
		}
	}
	want(t, insert(snapshot("ann", "c"), two), sandpit.Exhausted, "2, 100 bytes")
	want(t, insert(snapshot("eve", "c"), store.SnapshotLimits{}), sandpit.Exhausted, "0, 0 bytes")
	if err := insert(brief, two); err != nil {
		t.Error(err)
	}
	if err := insert(snapshot("bob", "a"), two); err != nil {
		t.Error(err)
	}
	a.Size, b.Size, brief.Size = 60, 41, 1000
	for _, n := range []store.Snapshot{a, brief} {
		if err := s.Snapshots().FinishSnapshot(ctx, n, two); err != nil {
			t.Error(err)
		}
	}
	want(t, s.Snapshots().FinishSnapshot(ctx, b, two), sandpit.Exhausted, "100 bytes")
	b.Size = 40
	if err := s.Snapshots().FinishSnapshot(ctx, b, two); err != nil {
		t.Error(err)
	}
	want(t, insert(snapshot("ann", "c"), store.SnapshotLimits{Count: 9, Bytes: 100}), sandpit.Exhausted, "100 bytes")
}

// TestKeptBytes adds up the snapshots of an owner and the builds of its templates, without
// those of other owners and those of running operations.
func TestKeptBytes(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	ctx := t.Context()
	for _, n := range []struct {
		owner string
		size  int64
		brief bool
	}{{"ann", 5, false}, {"ann", 7, false}, {"ann", 1000, true}, {"bob", 2000, false}} {
		row := snapshot(n.owner, "")
		row.Size, row.Brief = n.size, n.brief
		if _, err := s.Snapshots().InsertSnapshot(ctx, row, plenty); err != nil {
			t.Fatal(err)
		}
	}
	ann, err := s.Templates().EnsureTemplate(ctx, template("ann", "tools"), 1)
	if err != nil {
		t.Fatal(err)
	}
	b := buildOf(ann)
	b.Size = 30
	if err := s.Templates().InsertBuild(ctx, b, store.TemplateLimits{Pending: 1}); err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[string]int64{"ann": 42, "bob": 2000, "cid": 0} {
		if got, err := s.Snapshots().KeptBytes(ctx, owner); err != nil || got != want {
			t.Errorf("%s keeps %d bytes, %v; want %d", owner, got, err, want)
		}
	}
}
