package manager_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// saved returns the bytes that all owners have saved.
func saved(r *rig) int64 {
	for _, s := range r.Shares() {
		if s.Name == "bytes of saved sandboxes" {
			return s.Used
		}
	}
	return -1
}

// filledBox creates a sandbox that takes so many bytes when it is saved.
func (r *rig) filledBox(t *testing.T, s *stage, owner string, bytes int64) sandpit.ID {
	t.Helper()
	id := r.create(t, requestOf(owner)).ID
	s.fill(id, bytes)
	return id
}

// TestSavedSandboxesAreCounted has one owner have as many sandboxes that do not run as it
// may.
func TestSavedSandboxesAreCounted(t *testing.T) {
	t.Parallel()
	r, s := onStage(t, manager.Options{MaxSaved: 2})
	ctx := t.Context()
	first, second, third := r.filledBox(t, s, "ann", 1), r.filledBox(t, s, "ann", 1), r.filledBox(t, s, "ann", 1)
	bob := r.filledBox(t, s, "bob", 1)
	for _, save := range []error{r.Stop(ctx, first), r.Suspend(ctx, second), r.Stop(ctx, bob), r.Archive(ctx, first)} {
		if save != nil {
			t.Fatal(save)
		}
	}
	for name, save := range map[string]func(context.Context, sandpit.ID) error{"stop": r.Stop, "suspend": r.Suspend} {
		err := save(ctx, third)
		wantCode(t, err, sandpit.Exhausted)
		wantText(t, err, `quota exceeded: owner "ann" has 2 of 2 stopped, suspended or archived sandboxes`)
		if sandpit.HintOf(err) == "" {
			t.Errorf("%s: there is no hint", name)
		}
		r.wantState(t, third, sandpit.StateRunning)
	}
	r.close(t)
	r.o.Providers = map[string]sandpit.Provider{"stage": s}
	r.open(t)
	wantCode(t, r.Stop(ctx, third), sandpit.Exhausted)
	if err := r.Pause(ctx, third); err != nil { // in memory it is no matter
		t.Error(err)
	}
	wantCode(t, r.Stop(ctx, third), sandpit.Exhausted)
	r.wantState(t, third, sandpit.StatePaused)
	if err := r.Resume(ctx, second); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(ctx, third); err != nil {
		t.Errorf("with a place again: %v", err)
	}
	if err := r.Delete(ctx, first); err != nil {
		t.Fatal(err)
	}
	if err := r.Suspend(ctx, second); err != nil {
		t.Errorf("with a place again: %v", err)
	}
}

// TestSavedBytesAreReserved saves sandboxes, which say that they are half as large as they
// are, up to what their owner may have.
func TestSavedBytesAreReserved(t *testing.T) {
	t.Parallel()
	r, s := onStage(t, manager.Options{MaxSavedBytes: 100})
	ctx := t.Context()
	first, second := r.filledBox(t, s, "ann", 60), r.filledBox(t, s, "ann", 60)
	if err := r.Stop(ctx, first); err != nil {
		t.Fatal(err)
	}
	for name, save := range map[string]func(context.Context, sandpit.ID) error{
		"stop": r.Stop, "suspend": r.Suspend, "checkpoint": r.Checkpoint,
	} {
		err := save(ctx, second)
		if sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
			t.Errorf("%s: %v, want it exhausted with a hint", name, err)
		}
		r.wantState(t, second, sandpit.StateRunning)
		if n := saved(r); n != 60 {
			t.Errorf("after %s was refused %d bytes count, want 60", name, n)
		}
	}
	s.fill(second, 40)
	if err := r.Checkpoint(ctx, second); err != nil {
		t.Error(err)
	}
	if err := r.Checkpoint(ctx, second); err == nil { // both are there for a moment
		t.Error("a checkpoint does not count")
	}
	if err := r.Start(ctx, first); err != nil {
		t.Fatal(err)
	}
	if n := saved(r); n != 40 {
		t.Errorf("%d bytes count, want the 40 of the checkpoint", n)
	}
	if err := r.Suspend(ctx, first); err != nil {
		t.Error(err)
	}
	r.Reconcile(ctx)
	if n := saved(r); n != 100 {
		t.Errorf("%d bytes count, want 100", n)
	}
	r.close(t)
	r.o.Providers = map[string]sandpit.Provider{"stage": s}
	r.open(t)
	if n := saved(r); n != 100 {
		t.Errorf("after a restart %d bytes count, want 100", n)
	}
	for _, id := range []sandpit.ID{first, second} {
		if err := r.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if n := saved(r); n != 0 {
		t.Errorf("%d bytes count at the end", n)
	}
}

// TestSavesDoNotRace saves many at the same time.
func TestSavesDoNotRace(t *testing.T) {
	t.Parallel()
	r, s := onStage(t, manager.Options{MaxSavedBytes: 100, MaxSaved: 5})
	for name, size := range map[string]int64{"ann": 40, "bob": 1} {
		var ids []sandpit.ID
		for range 8 {
			ids = append(ids, r.filledBox(t, s, name, size))
		}
		var group sync.WaitGroup
		var stopped atomic.Int32
		for _, id := range ids {
			group.Go(func() {
				if err := r.Stop(t.Context(), id); err == nil {
					stopped.Add(1)
				} else {
					wantCode(t, err, sandpit.Exhausted)
				}
			})
		}
		group.Wait()
		if n, want := stopped.Load(), int32(min(5, 100/size)); n > want || n == 0 {
			t.Errorf("%d of %s's were stopped, want %d", n, name, want)
		}
	}
}

// TestActionThatDoesNotFit has policies and a deadline save a sandbox for which there is no
// room: it stays as it is, an event tells why, and it is saved when there is room.
func TestActionThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy   store.Policy
		deadline sandpit.Action
		pause    bool
		before   sandpit.State
		want     sandpit.State
		event    string
	}{
		"suspend":        {policy: store.Policy{AutoSuspend: time.Minute}, before: sandpit.StateRunning, want: sandpit.StatePaused, event: "manager: pause exhausted"},
		"suspend paused": {policy: store.Policy{AutoSuspend: time.Minute}, pause: true, before: sandpit.StatePaused, want: sandpit.StatePaused, event: "manager: pause exhausted"},
		"stop":           {policy: store.Policy{AutoStop: time.Minute, IdleTimeout: -1}, before: sandpit.StateRunning, want: sandpit.StateStopped, event: "manager: stop exhausted"},
		"idle":           {policy: store.Policy{IdleTimeout: time.Minute, IdleAction: sandpit.ActionStop}, before: sandpit.StateRunning, want: sandpit.StateStopped, event: "manager: stop exhausted"},
		"deadline":       {deadline: sandpit.ActionStop, before: sandpit.StateRunning, want: sandpit.StateStopped, event: "manager: stop exhausted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, s := onStage(t, manager.Options{MaxSavedBytes: 100})
				ctx := t.Context()
				other := r.filledBox(t, s, "ann", 90)
				if err := r.Stop(ctx, other); err != nil {
					t.Fatal(err)
				}
				request := requestOf("ann")
				request.Policy = tc.policy
				if tc.deadline != "" {
					request.Lease = sandpit.Lease{Deadline: time.Now().Add(time.Minute), Action: tc.deadline}
				}
				id := r.create(t, request).ID
				s.fill(id, 20)
				if tc.pause {
					if err := r.Pause(ctx, id); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(10*time.Minute + 30*time.Second) // it is tried each minute, and not at this moment
				r.wantState(t, id, tc.before)
				found := false
				for _, e := range r.events(t, id) {
					found = found || e == tc.event
				}
				if !found {
					t.Errorf("events %q, want %q", r.events(t, id), tc.event)
				}
				if !tc.pause {
					h, err := r.Use(ctx, id)
					if err != nil {
						t.Fatalf("it cannot be used: %v", err)
					}
					h.Release()
				}
				if err := r.Delete(ctx, other); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Hour)
				r.wantState(t, id, tc.want)
				if n := saved(r); n != 20 {
					t.Errorf("%d bytes count, want 20", n)
				}
			})
		})
	}
}

// fullDisk is a disk of 2000 bytes that keeps 100 free.
func fullDisk(free *atomic.Int64) *diskspace.Disk {
	return diskspace.NewDisk(diskspace.DiskOptions{MinFree: 100, Measure: func() (int64, int64, error) { return free.Load(), 2000, nil }})
}

// TestAlmostFullDisk keeps a disk from becoming full: nothing is created or saved, and
// everything can be deleted.
func TestAlmostFullDisk(t *testing.T) {
	t.Parallel()
	var free atomic.Int64
	free.Store(2000)
	r, s := onStage(t, manager.Options{Disk: fullDisk(&free)})
	ctx := t.Context()
	id, small := r.filledBox(t, s, "ann", 1000), r.filledBox(t, s, "ann", 10)
	free.Store(300)
	err := r.Stop(ctx, id)
	wantCode(t, err, sandpit.Exhausted)
	wantText(t, err, "the server's disk is almost full")
	r.wantState(t, id, sandpit.StateRunning)
	if err := r.Stop(ctx, small); err != nil {
		t.Errorf("save what fits: %v", err)
	}
	free.Store(99)
	for name, do := range map[string]func() error{
		"create":   func() error { _, err := r.Create(ctx, requestOf("bob")); return err },
		"suspend":  func() error { return r.Suspend(ctx, id) },
		"snapshot": func() error { return r.Checkpoint(ctx, id) },
	} {
		if err := do(); sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
			t.Errorf("%s: %v, want it exhausted with a hint", name, err)
		}
	}
	if err := r.Start(ctx, small); err != nil {
		t.Errorf("start a sandbox, which frees the disk: %v", err)
	}
	for _, one := range []sandpit.ID{id, small} {
		if err := r.Delete(ctx, one); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	free.Store(100)
	r.create(t, requestOf("bob"))
}

// TestShareOfTheDisk bounds what an owner keeps on a disk that others need, too.
func TestShareOfTheDisk(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		keys map[string]bool
		want sandpit.Code
	}{
		"alone":           {nil, ""},
		"with others":     {map[string]bool{"ann": false, "bob": false}, sandpit.Exhausted},
		"administrator's": {map[string]bool{"ann": true, "bob": false}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var free atomic.Int64
			free.Store(2000)
			r, s := onStage(t, manager.Options{
				Disk:      fullDisk(&free),
				KeyOwners: func(context.Context) (map[string]bool, error) { return tc.keys, nil },
			})
			first, second := r.filledBox(t, s, "ann", 600), r.filledBox(t, s, "ann", 500)
			if err := r.Stop(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			err := r.Stop(t.Context(), second)
			wantCode(t, err, tc.want)
			if tc.want != "" {
				wantText(t, err, `quota exceeded: saved data of owner "ann" takes`)
			}
		})
	}
}

// TestSnapshotsAreReserved has snapshots, and copies for forks, be refused before they are
// made.
func TestSnapshotsAreReserved(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxSavedBytes: 4 << 20, MaxSnapshotBytes: 4 << 20})
	ctx := t.Context()
	b := r.create(t, manager.CreateRequest{Owner: "ann"})
	inside(t, r, b.ID, "head -c 3000000 /dev/zero > large")
	if _, err := r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: b.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Snapshots().Create(ctx, b.ID, ""); err != nil {
		t.Fatal(err)
	}
	if n := saved(r); n != 0 {
		t.Errorf("%d bytes of a fork that is over count", n)
	}
	inside(t, r, b.ID, "head -c 3000000 /dev/zero > more")
	before := len(r.worldSnapshots(t))
	_, err := r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: b.ID})
	wantCode(t, err, sandpit.Exhausted)
	_, err = r.Snapshots().Create(ctx, b.ID, "")
	wantCode(t, err, sandpit.Exhausted)
	if n := len(r.worldSnapshots(t)); n != before {
		t.Errorf("%d snapshots, want %d", n, before)
	}
	if n := saved(r); n != 0 {
		t.Errorf("%d bytes of what was refused count", n)
	}
}

// worldSnapshots are those that the provider has.
func (r *rig) worldSnapshots(t *testing.T) []sandpit.Snapshot {
	t.Helper()
	list, err := r.cable.ListSnapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestFailedStopKeepsCheckpoint has a stop fail that finds no room beside a checkpoint, which
// still counts afterwards.
func TestFailedStopKeepsCheckpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{MaxSavedBytes: 100})
		b := r.create(t, requestOf("ann"))
		s.fill(b.ID, 60)
		if err := r.Checkpoint(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			wantCode(t, r.Stop(t.Context(), b.ID), sandpit.Exhausted)
		}
	})
}
