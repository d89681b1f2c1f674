package manager_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// requestOf is the request for a sandbox whose stage knows its owner.
func requestOf(owner string) manager.CreateRequest {
	return manager.CreateRequest{Owner: owner, Spec: sandpit.Spec{Labels: map[string]string{"owner": owner}}}
}

// TestSetUpHoldsNoSlot has one owner's programs never become ready, in more sandboxes than
// there are slots.
func TestSetUpHoldsNoSlot(t *testing.T) {
	t.Parallel()
	endless := func(ctx context.Context, _ sandpit.Instance, _ sandpit.Spec) error { <-ctx.Done(); return ctx.Err() }
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{Parallel: 2})
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				request := requestOf("ann")
				request.Setup = endless
				_, err := r.Create(ctx, request)
				wantCode(t, err, sandpit.Canceled)
			})
		}
		synctest.Wait()
		s.set(time.Second, nil)
		for _, owner := range []string{"bob", "ann"} {
			begin := time.Now()
			r.create(t, requestOf(owner))
			if took := time.Since(begin); took != time.Second {
				t.Errorf("%s's sandbox took %v, want a second", owner, took)
			}
		}
		s.set(0, nil)
		cancel()
		group.Wait()
	})
}

// TestReadyCheckHoldsNoSlot is the same for the ready check of a template.
func TestReadyCheckHoldsNoSlot(t *testing.T) {
	t.Parallel()
	r := templateRig(t, &shop{}, manager.Options{Parallel: 1})
	recipe := sandpit.Recipe{
		From: "host", Start: "sleep 100", StartAnew: true, Ready: sandpit.Ready{Command: "test -e ~/ready"},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	template, _ := r.begin(t, "ann", "slow", recipe)
	eventually(t, "the build starts its program", func() bool { return len(r.placed(t)) == 1 })
	r.create(t, manager.CreateRequest{Owner: "bob"}) // while the build waits
	if err := r.Templates().Delete(ctx, "ann", string(template.ID)); err != nil {
		t.Fatal(err)
	}
}

// storm is what one owner does in excess, in sandboxes it has.
var storms = map[string]struct {
	prepare func(*rig, context.Context, sandpit.ID) error
	do      func(*rig, context.Context, sandpit.ID) error
	kind    string
}{
	"wake-ups": {
		func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Stop(ctx, id) },
		func(r *rig, ctx context.Context, id sandpit.ID) error {
			h, err := r.Wake(ctx, id)
			if err == nil {
				h.Release()
			}
			return err
		}, "start",
	},
	"resumes": {
		func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Suspend(ctx, id) },
		func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Resume(ctx, id) }, "start",
	},
	"stops": {
		func(*rig, context.Context, sandpit.ID) error { return nil },
		func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Stop(ctx, id) }, "save",
	},
	"suspensions": {
		func(*rig, context.Context, sandpit.ID) error { return nil },
		func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Suspend(ctx, id) }, "save",
	},
	"archiving": {
		func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Stop(ctx, id) },
		func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Archive(ctx, id) }, "save",
	},
}

// TestStormLeavesOthersTheirSlots has one owner do something slow in many sandboxes: another
// owner's takes as long as alone.
func TestStormLeavesOthersTheirSlots(t *testing.T) {
	t.Parallel()
	for name, storm := range storms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, s := onStage(t, manager.Options{Parallel: 4})
				ctx := t.Context()
				var anns []sandpit.ID
				for range 12 {
					anns = append(anns, r.create(t, requestOf("ann")).ID)
				}
				bob := r.create(t, requestOf("bob")).ID
				for _, id := range append(anns, bob) {
					if err := storm.prepare(r, ctx, id); err != nil {
						t.Fatal(err)
					}
				}
				s.set(time.Second, nil)
				var group sync.WaitGroup
				for _, id := range anns {
					group.Go(func() {
						if err := storm.do(r, ctx, id); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				begin := time.Now()
				if err := storm.do(r, ctx, bob); err != nil {
					t.Error(err)
				}
				r.create(t, requestOf("bob"))
				if took := time.Since(begin); took != 2*time.Second {
					t.Errorf("bob's took %v, want one second each", took)
				}
				group.Wait()
				if most := s.meter.most(storm.kind + " ann"); most != 2 {
					t.Errorf("%d of ann's were done at the same time, want 2", most)
				}
			})
		})
	}
}

// TestForksCountForTheirOwner has one owner make many copies.
func TestForksCountForTheirOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Parallel: 2})
	s := r.create(t, manager.CreateRequest{Owner: "ann"})
	r.cable.hang(fake.OpCreate)
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			if _, err := r.Snapshots().Fork(t.Context(), manager.ForkRequest{Sandbox: s.ID, Count: 3}); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "a copy is created", func() bool { return r.cable.holding() == 1 })
	group.Go(func() { r.create(t, manager.CreateRequest{Owner: "bob"}) })
	eventually(t, "bob's is created beside it", func() bool { return r.cable.holding() == 2 })
	r.cable.release()
	group.Wait()
}

// TestDeadlinesOfOthersAreMet has one owner's deadlines be slow to do.
func TestDeadlinesOfOthersAreMet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{Parallel: 2})
		at := time.Now().Add(time.Minute)
		for range 20 {
			request := requestOf("ann")
			request.Lease = sandpit.Lease{Deadline: at, Action: sandpit.ActionStop}
			r.create(t, request)
		}
		request := requestOf("bob")
		request.Lease.Deadline = at.Add(time.Second)
		bob := r.create(t, request).ID
		s.set(10*time.Second, nil)
		time.Sleep(time.Minute + 12*time.Second)
		r.wantState(t, bob, sandpit.StateDeleted)
		s.set(0, nil)
		time.Sleep(4 * time.Minute)
		for _, b := range r.List(manager.Filter{Owner: "ann"}) {
			r.wantState(t, b.ID, sandpit.StateStopped)
		}
	})
}

// TestDeletionEndsTheWaitForASlot deletes a sandbox that waits to be started.
func TestDeletionEndsTheWaitForASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{Parallel: 1})
		first, second := r.create(t, requestOf("ann")).ID, r.create(t, requestOf("ann")).ID
		for _, id := range []sandpit.ID{first, second} {
			if err := r.Stop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		s.set(20*time.Second, nil)
		errs := make(chan error, 2)
		go func() { errs <- r.Start(t.Context(), first) }()
		synctest.Wait()
		go func() { errs <- r.Start(t.Context(), second) }()
		synctest.Wait()
		if starts := r.Shares()[2]; starts.Name != "sandbox starts" || starts.Used != 1 || starts.Waiting != 1 {
			t.Errorf("%+v, want one that is used and one that waits", starts)
		}
		s.set(0, nil)
		begin := time.Now()
		if err := r.Delete(t.Context(), second); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the deletion took %v", took)
		}
		wantCode(t, <-errs, sandpit.Gone)
		if err := <-errs; err != nil {
			t.Error(err)
		}
		r.wantState(t, first, sandpit.StateRunning)
	})
}

// TestWaitForASlotIsBounded waits for a slot that is never released.
func TestWaitForASlotIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{Parallel: 1})
		s.set(time.Hour, nil)
		request := requestOf("ann")
		request.Timeout = 2 * time.Hour
		go func() { _, _ = r.Create(t.Context(), request) }()
		synctest.Wait()
		begin := time.Now()
		_, err := r.Create(t.Context(), requestOf("bob"))
		wantCode(t, err, sandpit.Exhausted)
		wantText(t, err, "the server has been busy with other requests for 10m0s")
		if took := time.Since(begin); took != 10*time.Minute || sandpit.HintOf(err) == "" {
			t.Errorf("it took %v, and the hint is %q", took, sandpit.HintOf(err))
		}
		time.Sleep(time.Hour)
	})
}

// TestBuildsAreShared has one owner start more builds than there are slots.
func TestBuildsAreShared(t *testing.T) {
	t.Parallel()
	s := &shop{hold: make(chan struct{})}
	r := templateRig(t, s, manager.Options{MaxBuilds: 4})
	recipe := sandpit.Recipe{From: "host"}
	var anns []sandpit.BuildID
	for i := range 4 {
		_, id := r.begin(t, "ann", fmt.Sprint("t", i), recipe)
		anns = append(anns, id)
	}
	status := func(owner string, id sandpit.BuildID) sandpit.BuildStatus {
		b, err := r.Builds().Get(t.Context(), owner, id)
		if err != nil {
			t.Fatal(err)
		}
		return b.Status
	}
	count := func() (building int) {
		for _, id := range anns {
			if status("ann", id) == sandpit.BuildBuilding {
				building++
			}
		}
		return building
	}
	eventually(t, "two of ann's are built", func() bool { return count() == 2 })
	_, bob := r.begin(t, "bob", "mine", recipe)
	eventually(t, "bob's is built, too", func() bool { return status("bob", bob) == sandpit.BuildBuilding })
	if n := count(); n != 2 {
		t.Errorf("%d of ann's are built, want 2", n)
	}
	for _, id := range anns {
		if status("ann", id) != sandpit.BuildWaiting {
			continue
		}
		eventually(t, "the build says that it waits", func() bool {
			log, err := r.Builds().Log(t.Context(), "ann", id, 0, 1)
			return err == nil && len(log) == 1 && log[0].Text == "wait until other builds have finished"
		})
	}
	close(s.hold)
	for _, id := range anns {
		if b := r.ended(t, "ann", id); b.Status != sandpit.BuildReady {
			t.Errorf("a build ended with %+v", b)
		}
	}
}

// What each owner may save in TestSharesHold.
const (
	maxSaved      = 3
	maxSavedBytes = 100
)

// TestSharesHold has several owners do anything at random.
func TestSharesHold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		parallel := rapid.IntRange(1, 6).Draw(rt, "parallel")
		type task struct {
			owner, what int
			files       int64
			slow        time.Duration
		}
		tasks := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) task {
			return task{
				rapid.IntRange(0, 3).Draw(rt, "owner"), rapid.IntRange(0, 8).Draw(rt, "what"), rapid.Int64Range(1, 60).Draw(rt, "files"),
				time.Duration(rapid.IntRange(0, 2000).Draw(rt, "slow")) * time.Millisecond,
			}
		}), 1, 40).Draw(rt, "tasks")
		synctest.Test(t, func(t *testing.T) {
			r, s := onStage(t, manager.Options{
				Parallel: parallel, MaxSandboxes: 30, Quotas: manager.Quotas{Owner: 12}, MaxSaved: maxSaved, MaxSavedBytes: maxSavedBytes,
			})
			var group sync.WaitGroup
			for _, task := range tasks {
				s.set(task.slow, nil)
				group.Go(func() { r.doAnything(t, s, fmt.Sprint("owner", task.owner), task.what, task.files) })
				time.Sleep(100 * time.Millisecond)
			}
			group.Wait()
			s.set(0, nil)
			for _, kind := range []string{"start", "save"} {
				if most := s.meter.most(kind); most > parallel {
					rt.Errorf("%d at the same time: %s; want at most %d", most, kind, parallel)
				}
				for i := range 4 {
					if most := s.meter.most(fmt.Sprintf("%s owner%d", kind, i)); most > (parallel+1)/2 {
						rt.Errorf("%d of one owner at the same time: %s; of %d", most, kind, parallel)
					}
				}
			}
			for i := range 4 {
				owner := fmt.Sprint("owner", i)
				if count, bytes := s.meter.most("saved "+owner), s.meter.most("bytes "+owner); count > maxSaved || bytes > maxSavedBytes {
					rt.Errorf("%s has saved %d sandboxes with %d bytes, want at most %d with %d", owner, count, bytes, maxSaved, maxSavedBytes)
				}
			}
			for _, share := range r.Shares() {
				if share.Name == "sandboxes" || share.Name == "bytes of saved sandboxes" {
					continue // they are there still
				}
				if share.Used != 0 || share.Waiting != 0 {
					rt.Errorf("at the end: %+v", share)
				}
			}
		})
	})
}

// doAnything does one thing to the first sandbox of an owner that it may be done to.
func (r *rig) doAnything(t *testing.T, s *stage, owner string, what int, files int64) {
	t.Helper()
	ctx := t.Context()
	if what < 2 {
		made, err := r.Create(ctx, requestOf(owner))
		switch {
		case err == nil:
			s.fill(made.ID, files)
		case sandpit.CodeOf(err) != sandpit.Canceled:
			wantCode(t, err, sandpit.Exhausted)
		}
		return
	}
	verb := []func(context.Context, sandpit.ID) error{
		r.Stop, r.Start, r.Suspend, r.Resume, r.Archive, r.Checkpoint, r.Delete,
	}[what-2]
	for _, b := range r.List(manager.Filter{Owner: owner}) {
		if verb(ctx, b.ID) == nil {
			return
		}
	}
}
