package manager_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func (i *cabled) Snapshot(ctx context.Context, id sandpit.SnapshotID) (s sandpit.Snapshot, err error) {
	err = i.over(ctx, fake.OpSnapshot, func(ctx context.Context) error { s, err = i.Instance.Snapshot(ctx, id); return err })
	return s, err
}

func (i *cabled) Rollback(ctx context.Context, id sandpit.SnapshotID) error {
	return i.over(ctx, fake.OpRollback, func(ctx context.Context) error { return i.Instance.Rollback(ctx, id) })
}

func (c *cable) RemoveSnapshot(ctx context.Context, id sandpit.SnapshotID) error {
	ctx, err := c.pass(ctx, fake.OpRemoveSnapshot)
	if err != nil {
		return err
	}
	return c.Provider.RemoveSnapshot(ctx, id)
}

func (c *cable) ListSnapshots(ctx context.Context) ([]sandpit.Snapshot, error) {
	ctx, err := c.pass(ctx, fake.OpListSnapshots)
	if err != nil {
		return nil, err
	}
	return c.Provider.ListSnapshots(ctx)
}

func (c *cable) ImportSnapshot(ctx context.Context, id sandpit.SnapshotID, from io.Reader) (sandpit.Snapshot, error) {
	ctx, err := c.pass(ctx, fake.OpImportSnapshot)
	if err != nil {
		return sandpit.Snapshot{}, err
	}
	return c.Provider.ImportSnapshot(ctx, id, from)
}

// owned asks for a sandbox of ann's.
func owned() manager.CreateRequest {
	return manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{
		Name: "work", Labels: map[string]string{"project": "x"}, Env: map[string]string{"TOKEN": "secret"}, WorkDir: "/srv",
	}}
}

func from(owner, snapshot string) manager.CreateRequest {
	return manager.CreateRequest{Owner: owner, Spec: sandpit.Spec{Image: sandpit.Image("snapshot:" + snapshot)}}
}

func (r *rig) snapshot(tb testing.TB, id sandpit.ID, name string) sandpit.Snapshot {
	tb.Helper()
	s, err := r.Snapshots().Create(tb.Context(), id, name)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// wantSnapshots expects so many rows, and as many snapshots in the world.
func (r *rig) wantSnapshots(tb testing.TB, n int) {
	tb.Helper()
	list, err := r.store.Snapshots().ListSnapshots(tb.Context(), store.SnapshotFilter{All: true})
	if err != nil || len(list) != n {
		tb.Errorf("%d rows %+v, %v; want %d", len(list), list, err, n)
	}
	if there := r.world.Snapshots(); len(there) != n {
		tb.Errorf("snapshots %q, want %d", there, n)
	}
}

// path is where a file of a sandbox is.
func (r *rig) path(tb testing.TB, id sandpit.ID, name string) string {
	tb.Helper()
	view, ok := r.world.Look(id)
	if !ok {
		tb.Fatalf("there is no sandbox %s", id)
	}
	return filepath.Join(view.Dir, name)
}

func (r *rig) put(tb testing.TB, id sandpit.ID, name, text string) {
	tb.Helper()
	if err := os.WriteFile(r.path(tb, id, name), []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

func (r *rig) wantFile(tb testing.TB, id sandpit.ID, name, want string) {
	tb.Helper()
	if text, err := os.ReadFile(r.path(tb, id, name)); err != nil || string(text) != want {
		tb.Errorf("%s is %q, %v; want %q", name, text, err, want)
	}
}

// TestSnapshots takes snapshots through their life.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxSnapshots: 2})
	ctx := t.Context()
	box := r.create(t, owned())
	r.put(t, box.ID, "a", "one")
	s := r.snapshot(t, box.ID, "first")
	if s.Name != "first" || s.Owner != "ann" || s.Provider != "fake" || s.Sandbox != box.ID || s.Spec.Env != nil || s.Size == 0 || s.CreatedAt.IsZero() {
		t.Errorf("made %+v", s)
	}
	_, err := r.Snapshots().Create(ctx, box.ID, "first")
	wantCode(t, err, sandpit.AlreadyExists)
	for _, name := range []string{"../x", string(sandpit.NewSnapshotID())} {
		_, err = r.Snapshots().Create(ctx, box.ID, name)
		wantCode(t, err, sandpit.Invalid)
	}
	_, err = r.Snapshots().Create(ctx, sandpit.NewID(), "")
	wantCode(t, err, sandpit.NotFound)
	if err := r.Pause(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	second := r.snapshot(t, box.ID, "") // of a paused one
	if err := r.Stop(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	_, err = r.Snapshots().Create(ctx, box.ID, "third")
	wantCode(t, err, sandpit.Conflict)
	if err := r.Start(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	_, err = r.Snapshots().Create(ctx, box.ID, "third")
	wantCode(t, err, sandpit.Exhausted)
	r.wantSnapshots(t, 2)

	for _, name := range []string{"first", string(s.ID)} {
		made := r.create(t, from("ann", name))
		r.wantFile(t, made.ID, "a", "one")
		if image, _ := made.Spec.Image.Snapshot(); image != s.ID || made.Spec.WorkDir != "/srv" || len(made.Spec.Labels) != 0 || made.Spec.Env != nil {
			t.Errorf("made %+v", made.Spec)
		}
	}
	for owner, name := range map[string]string{"bob": "first", "": "first", "ann": "none", "eve": string(s.ID)} {
		_, err := r.Create(ctx, from(owner, name))
		wantCode(t, err, sandpit.NotFound)
		_, err = r.Snapshots().Get(ctx, owner, name)
		wantCode(t, err, sandpit.NotFound)
		wantCode(t, r.Snapshots().Delete(ctx, owner, name), sandpit.NotFound)
		wantCode(t, r.Snapshots().Export(ctx, owner, name, io.Discard), sandpit.NotFound)
		_, err = r.Snapshots().Diff(ctx, manager.DiffRequest{Owner: owner, To: manager.Side{Snapshot: name}})
		wantCode(t, err, sandpit.NotFound)
	}
	if err := r.Delete(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	list, err := r.Snapshots().List(ctx, store.SnapshotFilter{Owner: "ann"})
	if err != nil || len(list) != 2 { // they survive their sandbox
		t.Errorf("there are %+v, %v", list, err)
	}
	r.create(t, from("ann", "first"))
	for _, name := range []string{"first", string(second.ID)} {
		if err := r.Snapshots().Delete(ctx, "ann", name); err != nil {
			t.Error(err)
		}
	}
	wantCode(t, r.Snapshots().Delete(ctx, "ann", "first"), sandpit.NotFound)
	_, err = r.Create(ctx, from("ann", "first"))
	wantCode(t, err, sandpit.NotFound)
	r.wantSnapshots(t, 0)
	want := []string{"ann: create ok", "ann: snapshot ok", "ann: snapshot already_exists", "ann: pause ok", "ann: snapshot ok"}
	if got := r.events(t, box.ID); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
		t.Errorf("events %q, want them to begin with %q", got, want)
	}
}

// TestSnapshotFixes asks for a sandbox that is other than its snapshot.
func TestSnapshotFixes(t *testing.T) {
	t.Parallel()
	other := fake.NewWorld(t.TempDir())
	t.Cleanup(func() {
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
	r := newRig(t, manager.Options{Provider: "one", Providers: map[string]sandpit.Provider{"one": other.NewProvider(), "two": other.NewProvider()}})
	ctx := t.Context()
	if _, err := r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "ann", Name: "data"}); err != nil {
		t.Fatal(err)
	}
	req := having("ann", "data")
	req.Spec.Resources.PIDs = 100
	s := r.snapshot(t, r.create(t, req).ID, "first")
	made := r.create(t, from("ann", "first"))
	if !slices.Equal(made.Spec.Mounts, req.Spec.Mounts) || made.Spec.Resources != req.Spec.Resources {
		t.Errorf("made %+v, want what the snapshot has", made.Spec)
	}
	for what, change := range map[string]func(*manager.CreateRequest){
		"mounts":   func(c *manager.CreateRequest) { c.Spec.Mounts = []sandpit.Mount{{Volume: "data", Target: "/other"}} },
		"limits":   func(c *manager.CreateRequest) { c.Spec.Resources.PIDs = 200 },
		"network":  func(c *manager.CreateRequest) { c.Spec.Network.Online = true },
		"provider": func(c *manager.CreateRequest) { c.Provider = "two" },
	} {
		bad := from("ann", "first")
		change(&bad)
		_, err := r.Create(ctx, bad)
		wantCode(t, err, sandpit.Invalid)
		wantText(t, err, what)
	}
	if err := other.Spoil(s.ID, "of another engine"); err != nil {
		t.Fatal(err)
	}
	r.Tidy(ctx)
	if seen, err := r.Snapshots().Get(ctx, "ann", "first"); err != nil || seen.Unloadable != "of another engine" {
		t.Errorf("the snapshot is %+v, %v", seen, err)
	}
	_, err := r.Create(ctx, from("ann", "first"))
	wantCode(t, err, sandpit.Unsupported)
	wantText(t, err, "of another engine")
	if d, err := r.Snapshots().Diff(ctx, manager.DiffRequest{Owner: "ann", To: manager.Side{Snapshot: "first"}}); err != nil || len(d.Changes) == 0 {
		t.Errorf("compare what cannot be loaded: %+v, %v", d, err)
	}
}

// TestSnapshotsFail has the provider fail at each step: nothing half made stays.
func TestSnapshotsFail(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	ctx := t.Context()
	box := r.create(t, owned())
	for _, after := range []bool{false, true} {
		r.world.Inject(fake.Fault{Op: fake.OpSnapshot, Err: errOrdered, After: after})
		_, err := r.Snapshots().Create(ctx, box.ID, "first")
		wantCode(t, err, sandpit.Unavailable)
		r.wantSnapshots(t, 0)
	}
	stop := r.world.Inject(fake.Fault{Op: fake.OpRemoveSnapshot, Err: errOrdered, Times: -1})
	r.snapshot(t, box.ID, "first")
	wantCode(t, r.Snapshots().Delete(ctx, "ann", "first"), sandpit.Unavailable)
	_, err := r.Snapshots().Get(ctx, "ann", "first") // it is as good as gone
	wantCode(t, err, sandpit.NotFound)
	r.Tidy(ctx)
	r.wantSnapshots(t, 1)
	stop()
	r.Tidy(ctx)
	r.wantSnapshots(t, 0)
	r.snapshot(t, box.ID, "first") // the name is free

	small := newRig(t, manager.Options{MaxSnapshotBytes: 100})
	box = small.create(t, owned())
	small.put(t, box.ID, "a", strings.Repeat("x", 10_000))
	_, err = small.Snapshots().Create(ctx, box.ID, "large")
	wantCode(t, err, sandpit.Exhausted)
	small.wantSnapshots(t, 0)
}

// TestSnapshotsCrash ends the manager while a snapshot is made, copied or removed.
func TestSnapshotsCrash(t *testing.T) {
	t.Parallel()
	for _, op := range []fake.Op{fake.OpSnapshot, fake.OpRemoveSnapshot, fake.OpCreate, fake.OpImportSnapshot} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{})
			ctx := t.Context()
			box := r.create(t, owned())
			r.snapshot(t, box.ID, "kept")
			var file bytes.Buffer
			if err := r.Snapshots().Export(ctx, "ann", "kept", &file); err != nil {
				t.Fatal(err)
			}
			if op == fake.OpRemoveSnapshot {
				r.snapshot(t, box.ID, "data")
			}
			r.cable.hang(op)
			ended := make(chan error, 1)
			go func() {
				var err error
				switch op {
				case fake.OpRemoveSnapshot:
					err = r.Snapshots().Delete(ctx, "ann", "data")
				case fake.OpCreate:
					_, err = r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: box.ID})
				case fake.OpImportSnapshot:
					_, err = r.Snapshots().Import(ctx, manager.ImportRequest{Owner: "ann", Name: "data"}, &file)
				default:
					_, err = r.Snapshots().Create(ctx, box.ID, "data")
				}
				ended <- err
			}()
			eventually(t, "the call hangs", func() bool { return r.cable.holding() == 1 })
			r.crash(t)
			if err := <-ended; err == nil {
				t.Error("what was interrupted tells of no error")
			}
			r.open(t)
			eventually(t, "what was half done is gone", func() bool {
				rows, err := r.store.Snapshots().ListSnapshots(ctx, store.SnapshotFilter{All: true})
				return err == nil && len(rows) == 1 && len(r.world.Snapshots()) == 1
			})
			r.create(t, from("ann", "kept"))
			r.wantState(t, box.ID, sandpit.StateRunning)
		})
	}
}

// TestStraySnapshots has snapshots without a row, and rows without a snapshot.
func TestStraySnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	ctx := t.Context()
	box := r.create(t, owned())
	lost := r.snapshot(t, box.ID, "lost")
	stray := sandpit.NewSnapshotID()
	h, err := r.Use(ctx, box.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Instance().(sandpit.Snapshotter).Snapshot(ctx, stray); err != nil {
		t.Fatal(err)
	}
	h.Release()
	foreign, err := r.cable.Provider.Create(ctx, sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	others := sandpit.NewSnapshotID()
	if _, err := foreign.(sandpit.Snapshotter).Snapshot(ctx, others); err != nil {
		t.Fatal(err)
	}
	if err := r.cable.Provider.RemoveSnapshot(ctx, lost.ID); err != nil {
		t.Fatal(err)
	}
	r.Tidy(ctx)
	if !slices.Contains(r.world.Snapshots(), stray) {
		t.Error("a snapshot without a row was removed at once")
	}
	r.Tidy(ctx)
	if left := r.world.Snapshots(); !slices.Equal(left, []sandpit.SnapshotID{others}) {
		t.Errorf("there are %q, want %s, which has no owner here", left, others)
	}
	if seen, err := r.Snapshots().Get(ctx, "ann", "lost"); err != nil || !strings.Contains(seen.Unloadable, "gone") {
		t.Errorf("a snapshot that is gone: %+v, %v", seen, err)
	}
	_, err = r.Create(ctx, from("ann", "lost"))
	wantCode(t, err, sandpit.Unsupported)
	if err := r.Snapshots().Delete(ctx, "ann", "lost"); err != nil {
		t.Error(err)
	}
}

// TestSnapshotsAreHeld makes sandboxes of a snapshot and removes it at the same time.
func TestSnapshotsAreHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	ctx := t.Context()
	box := r.create(t, owned())
	r.put(t, box.ID, "a", "one")
	for range 10 {
		r.snapshot(t, box.ID, "data")
		var group sync.WaitGroup
		var made sandpit.Sandbox
		var createErr, removeErr error
		group.Go(func() { made, createErr = r.Create(ctx, from("ann", "data")) })
		group.Go(func() { removeErr = r.Snapshots().Delete(ctx, "ann", "data") })
		group.Wait()
		switch sandpit.CodeOf(createErr) {
		case "":
			r.wantFile(t, made.ID, "a", "one")
			if err := r.Delete(ctx, made.ID); err != nil {
				t.Error(err)
			}
		case sandpit.NotFound:
		default:
			t.Error(createErr)
		}
		if removeErr != nil {
			wantCode(t, removeErr, sandpit.Conflict)
			if err := r.Snapshots().Delete(ctx, "ann", "data"); err != nil {
				t.Error(err)
			}
		}
		r.wantSnapshots(t, 0)
	}
}

// TestFork copies a sandbox.
func TestFork(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{
		Environ: func(s sandpit.Sandbox) map[string]string { return map[string]string{"ID": string(s.ID)} },
	})
	ctx := t.Context()
	req := owned()
	req.Lease.Deadline, req.Lease.Action = time.Now().Add(time.Hour), sandpit.ActionStop
	req.Policy.IdleTimeout = -1
	box := r.create(t, req)
	r.put(t, box.ID, "a", "one")
	made, err := r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: box.ID, Count: 3, Labels: map[string]string{"copy": "yes"}, Env: map[string]string{"N": "1"}})
	if err != nil || len(made) != 3 {
		t.Fatal(made, err)
	}
	ids := map[sandpit.ID]bool{box.ID: true}
	for _, c := range made {
		ids[c.ID] = true
		r.wantFile(t, c.ID, "a", "one")
		r.wantState(t, c.ID, sandpit.StateRunning)
		if got := inside(t, r, c.ID, "echo $ID"); got != string(c.ID) {
			t.Errorf("a copy is %s, and takes itself for %q", c.ID, got)
		}
		s := c.Spec
		if s.Image != box.Spec.Image {
			t.Errorf("a copy has the image %q, want %q", s.Image, box.Spec.Image)
		}
		if s.Name != "" || s.Labels["project"] != "x" || s.Labels["copy"] != "yes" || s.Env["TOKEN"] != "secret" || s.Env["N"] != "1" ||
			c.Lease.Owner != "ann" || !c.Lease.Deadline.Equal(box.Lease.Deadline) || c.Lease.Action != sandpit.ActionStop {
			t.Errorf("a copy is %+v", c)
		}
	}
	if len(ids) != 4 {
		t.Errorf("there are %d sandboxes", len(ids))
	}
	r.put(t, made[0].ID, "a", "two")
	r.wantFile(t, made[1].ID, "a", "one")
	r.wantFile(t, box.ID, "a", "one")
	r.wantSnapshots(t, 0)
	grandchildren, err := r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: made[0].ID})
	if err != nil || len(grandchildren) != 1 {
		t.Fatal(grandchildren, err)
	}
	r.wantFile(t, grandchildren[0].ID, "a", "two")
	d, err := r.Snapshots().Diff(ctx, manager.DiffRequest{From: manager.Side{Sandbox: box.ID}, To: manager.Side{Sandbox: grandchildren[0].ID}, Patch: true})
	if err != nil || len(d.Changes) != 1 || d.Changes[0].Path != "/a" || !strings.Contains(d.Changes[0].Patch, "+two") {
		t.Errorf("compare: %+v, %v", d, err)
	}
	_, err = r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: box.ID, Count: manager.MaxForks + 1})
	wantCode(t, err, sandpit.Invalid)
	req.Spec.Name = "asleep"
	req.Lease.Deadline, req.Lease.Action = time.Now().Add(2*time.Second), sandpit.ActionPause
	asleep := r.create(t, req)
	eventually(t, "it is paused at its deadline", func() bool { s, err := r.Get(asleep.ID); return err == nil && s.State == sandpit.StatePaused })
	late, err := r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: asleep.ID})
	if err != nil || len(late) != 1 || !late[0].Lease.Deadline.After(asleep.Lease.Deadline) {
		t.Errorf("copies after its deadline: %+v, %v", late, err)
	}
	_, err = r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: sandpit.NewID()})
	wantCode(t, err, sandpit.NotFound)
}

// TestForkFails makes all copies or none.
func TestForkFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxSandboxes: 6, Parallel: 1})
	ctx := t.Context()
	box := r.create(t, owned())
	none := func() {
		t.Helper()
		eventually(t, "there is one sandbox", func() bool { return len(r.List(manager.Filter{})) == 1 && r.Rooms() == 1 })
		r.wantSnapshots(t, 0)
		r.wantState(t, box.ID, sandpit.StateRunning)
	}
	r.world.Inject(fake.Fault{Op: fake.OpSnapshot, Err: errOrdered})
	_, err := r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: box.ID, Count: 3})
	wantCode(t, err, sandpit.Unavailable)
	none()
	_, err = r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: box.ID, Count: 6})
	wantCode(t, err, sandpit.Exhausted)
	none()
	r.world.Inject(fake.Fault{Op: fake.OpCreate, Err: errOrdered, After: true})
	_, err = r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: box.ID, Count: 3})
	wantCode(t, err, sandpit.Unavailable)
	none()

	stop := r.world.Inject(fake.Fault{Op: fake.OpRemoveSnapshot, Err: errOrdered, Times: -1})
	if _, err = r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: box.ID}); err != nil {
		t.Errorf("a snapshot that cannot be removed now fails the fork: %v", err)
	}
	r.wantSnapshots(t, 1)
	if list, err := r.Snapshots().List(ctx, store.SnapshotFilter{All: true}); err != nil || len(list) != 0 {
		t.Errorf("another owner sees %+v, %v", list, err)
	}
	stop()
	r.Tidy(ctx)
	r.wantSnapshots(t, 0)

	gone, cancel := context.WithCancel(ctx)
	r.cable.hang(fake.OpCreate)
	ended := make(chan error, 1)
	go func() { _, err := r.Snapshots().Fork(gone, manager.ForkRequest{Sandbox: box.ID}); ended <- err }()
	eventually(t, "a copy is being made", func() bool { return r.cable.holding() == 1 })
	cancel()
	wantCode(t, <-ended, sandpit.Canceled)
	r.cable.release()
	eventually(t, "what no caller waits for is removed", func() bool {
		return len(r.List(manager.Filter{})) == 2 && len(r.world.Snapshots()) == 0
	})
}

// TestForkEach makes as many copies as there is room for, and tells of the others.
func TestForkEach(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxSandboxes: 4})
	ctx := t.Context()
	box := r.create(t, owned())
	end := time.Now().Add(time.Hour).Truncate(time.Second)
	all, err := r.Snapshots().ForkEach(ctx, manager.ForkRequest{Sandbox: box.ID, Count: 5, Lease: sandpit.Lease{Deadline: end, Action: sandpit.ActionStop}})
	if err != nil || len(all) != 5 {
		t.Fatal(all, err)
	}
	made := 0
	for _, c := range all {
		if c.Err != nil {
			wantCode(t, c.Err, sandpit.Exhausted)
			continue
		}
		made++
		if c.Sandbox.ID == "" || !c.Sandbox.Lease.Deadline.Equal(end) || c.Sandbox.Lease.Action != sandpit.ActionStop {
			t.Errorf("a copy is %+v", c.Sandbox)
		}
	}
	if made != 3 {
		t.Errorf("%d copies, want 3", made)
	}
	r.wantSnapshots(t, 0)
	all, err = r.Snapshots().ForkEach(ctx, manager.ForkRequest{Sandbox: sandpit.NewID()})
	if wantCode(t, err, sandpit.NotFound); len(all) != 0 {
		t.Errorf("copies of nothing: %+v", all)
	}
}

// TestRollback brings a sandbox back.
func TestRollback(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Drain: 10 * time.Millisecond})
	ctx := t.Context()
	box := r.create(t, owned())
	r.put(t, box.ID, "a", "one")
	r.snapshot(t, box.ID, "before")
	r.put(t, box.ID, "a", "two")
	h, err := r.Use(ctx, box.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	if err := r.Snapshots().RollBack(ctx, box.ID, "before"); err != nil {
		t.Fatal(err)
	}
	r.wantFile(t, box.ID, "a", "one")
	r.wantState(t, box.ID, sandpit.StateRunning)
	if h.Context().Err() == nil {
		t.Error("its user continues")
	}
	wantText(t, context.Cause(h.Context()), "rolled back")
	again, err := r.Use(ctx, box.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Guest().ListProcesses(ctx); err != nil {
		t.Errorf("after it: %v", err)
	}
	again.Release()

	r.put(t, box.ID, "a", "three")
	if err := r.Pause(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	for op, after := range map[fake.Op]bool{fake.OpRollback: false} {
		r.world.Inject(fake.Fault{Op: op, Err: errOrdered, After: after})
		wantCode(t, r.Snapshots().RollBack(ctx, box.ID, "before"), sandpit.Unavailable)
		r.wantState(t, box.ID, sandpit.StatePaused)
	}
	if err := r.Snapshots().RollBack(ctx, box.ID, "before"); err != nil {
		t.Fatal(err)
	}
	r.wantFile(t, box.ID, "a", "one")
	r.wantState(t, box.ID, sandpit.StateRunning)
	r.world.Inject(fake.Fault{Op: fake.OpRollback, Err: errOrdered})
	wantCode(t, r.Snapshots().RollBack(ctx, box.ID, "before"), sandpit.Unavailable)
	r.wantState(t, box.ID, sandpit.StateRunning)

	request := owned()
	request.Spec.Name = "other"
	other := r.create(t, request)
	wantCode(t, r.Snapshots().RollBack(ctx, other.ID, "before"), sandpit.Invalid)
	bobs := r.create(t, manager.CreateRequest{Owner: "bob"})
	wantCode(t, r.Snapshots().RollBack(ctx, bobs.ID, "before"), sandpit.NotFound)
	wantCode(t, r.Snapshots().RollBack(ctx, box.ID, "none"), sandpit.NotFound)
	if err := r.Stop(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.Snapshots().RollBack(ctx, box.ID, "before"), sandpit.Conflict)
}

// TestRollbackCrash ends the manager while a sandbox is rolled back.
func TestRollbackCrash(t *testing.T) {
	t.Parallel()
	for _, paused := range []bool{false, true} {
		r := newRig(t, manager.Options{Drain: 10 * time.Millisecond})
		ctx := t.Context()
		box := r.create(t, owned())
		r.snapshot(t, box.ID, "before")
		if paused {
			if err := r.Pause(ctx, box.ID); err != nil {
				t.Fatal(err)
			}
		}
		r.cable.hang(fake.OpRollback)
		ended := make(chan error, 1)
		go func() { ended <- r.Snapshots().RollBack(ctx, box.ID, "before") }()
		eventually(t, "the call hangs", func() bool { return r.cable.holding() == 1 })
		r.crash(t)
		if err := <-ended; err == nil {
			t.Error("what was interrupted tells of no error")
		}
		r.open(t)
		eventually(t, "it runs", func() bool { return r.state(box.ID) == sandpit.StateRunning })
		if err := r.Snapshots().RollBack(ctx, box.ID, "before"); err != nil {
			t.Error(err)
		}
	}
}

// TestDiff compares what owners may see.
func TestDiff(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	ctx := t.Context()
	box := r.create(t, owned())
	r.put(t, box.ID, "a", "one\n")
	r.put(t, box.ID, "b", "x")
	s := r.snapshot(t, box.ID, "before")
	r.put(t, box.ID, "a", "two\n")
	r.put(t, box.ID, "c", "new")
	if err := os.Remove(r.path(t, box.ID, "b")); err != nil {
		t.Fatal(err)
	}
	told := func(r manager.DiffRequest, d sandpit.FileDiff, err error) string {
		if err != nil {
			t.Errorf("%+v: %v", r, err)
		}
		var lines []string
		for _, c := range d.Changes {
			if c.Type == "file" {
				lines = append(lines, string(c.Kind)+" "+c.Path)
			}
		}
		return strings.Join(lines, ", ")
	}
	now, then := manager.Side{Sandbox: box.ID}, manager.Side{Snapshot: string(s.ID)}
	// What a fake sandbox has not is as in its image, which is empty.
	for want, req := range map[string]manager.DiffRequest{
		"changed /a, restored /b, written /c": {Owner: "ann", From: then, To: now},
		"changed /a, written /b, restored /c": {Owner: "ann", From: now, To: then},
		"written /a, written /c":              {Owner: "ann", To: now},
		"written /a, written /b":              {Owner: "ann", To: manager.Side{Snapshot: "before"}},
	} {
		d, err := r.Snapshots().Diff(ctx, req)
		if got := told(req, d, err); got != want {
			t.Errorf("%+v: %s, want %s", req, got, want)
		}
	}
	_, err := r.Snapshots().Diff(ctx, manager.DiffRequest{Owner: "ann"})
	wantCode(t, err, sandpit.Invalid)
	_, err = r.Snapshots().Diff(ctx, manager.DiffRequest{Owner: "bob", From: then, To: now})
	wantCode(t, err, sandpit.NotFound)
	r.world.Inject(fake.Fault{Op: fake.OpReadLayer, Err: errOrdered})
	_, err = r.Snapshots().Diff(ctx, manager.DiffRequest{Owner: "ann", To: now})
	wantCode(t, err, sandpit.Unavailable)
	if err := r.Stop(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	_, err = r.Snapshots().Diff(ctx, manager.DiffRequest{Owner: "ann", To: now})
	wantCode(t, err, sandpit.Conflict)
}

// TestExport carries a snapshot from one manager to another.
func TestExport(t *testing.T) {
	t.Parallel()
	r, away := newRig(t, manager.Options{}), newRig(t, manager.Options{MaxSnapshotBytes: 1 << 20})
	ctx := t.Context()
	box := r.create(t, owned())
	r.put(t, box.ID, "a", "one")
	r.snapshot(t, box.ID, "data")
	var file bytes.Buffer
	if err := r.Snapshots().Export(ctx, "ann", "data", &file); err != nil {
		t.Fatal(err)
	}
	s, err := away.Snapshots().Import(ctx, manager.ImportRequest{Owner: "bob", Name: "theirs"}, bytes.NewReader(file.Bytes()))
	if err != nil || s.Owner != "bob" || s.Name != "theirs" || s.Size == 0 {
		t.Fatalf("imported %+v, %v", s, err)
	}
	away.wantFile(t, away.create(t, from("bob", "theirs")).ID, "a", "one")
	_, err = away.Snapshots().Import(ctx, manager.ImportRequest{Owner: "bob", Name: "theirs"}, bytes.NewReader(file.Bytes()))
	wantCode(t, err, sandpit.AlreadyExists)
	_, err = away.Snapshots().Import(ctx, manager.ImportRequest{Owner: "bob", Name: "../x"}, bytes.NewReader(file.Bytes()))
	wantCode(t, err, sandpit.Invalid)
	_, err = away.Snapshots().Import(ctx, manager.ImportRequest{Owner: "bob", Provider: "none"}, bytes.NewReader(file.Bytes()))
	wantCode(t, err, sandpit.Unsupported)
	_, err = away.Snapshots().Import(ctx, manager.ImportRequest{Owner: "bob"}, bytes.NewReader(file.Bytes()[:1500]))
	wantCode(t, err, sandpit.Invalid)
	_, err = away.Snapshots().Import(ctx, manager.ImportRequest{Owner: "bob"}, strings.NewReader("no snapshot"))
	wantCode(t, err, sandpit.Invalid)
	r.put(t, box.ID, "large", strings.Repeat("x", 2<<20))
	r.snapshot(t, box.ID, "large")
	file.Reset()
	if err := r.Snapshots().Export(ctx, "ann", "large", &file); err != nil {
		t.Fatal(err)
	}
	if _, err = away.Snapshots().Import(ctx, manager.ImportRequest{Owner: "bob"}, &file); err == nil {
		t.Error("more was imported than the owner may have")
	}
	away.wantSnapshots(t, 1)

	r.volume(t, "v")
	r.snapshot(t, r.create(t, having("ann", "v")).ID, "mounted")
	file.Reset()
	if err := r.Snapshots().Export(ctx, "ann", "mounted", &file); err != nil {
		t.Fatal(err)
	}
	_, err = away.Snapshots().Import(ctx, manager.ImportRequest{Owner: "bob"}, &file)
	wantCode(t, err, sandpit.Invalid)
	wantText(t, err, "volumes")
	away.wantSnapshots(t, 1)
	wantCode(t, r.Snapshots().Export(ctx, "ann", "data", &broken{}), sandpit.Unavailable)
	if err := r.Snapshots().Delete(ctx, "ann", "data"); err != nil { // no user is left
		t.Error(err)
	}
}

// broken is a stream whose reader has gone.
type broken struct{}

func (*broken) Write([]byte) (int, error) {
	return 0, sandpit.Errorf(sandpit.Unavailable, "no reader")
}
