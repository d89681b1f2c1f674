package manager_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func (r *rig) wantSuspended(tb testing.TB, id sandpit.ID, want bool) {
	tb.Helper()
	got, err := r.Get(id)
	row, rowErr := r.store.Sandboxes().Sandbox(tb.Context(), id)
	if err != nil || rowErr != nil || got.Suspended != want || row.Suspended != want {
		tb.Errorf("it is on disk: %t, and in the row %t, %v, %v; want %t", got.Suspended, row.Suspended, err, rowErr, want)
	}
}

// TestSuspend pauses on disk what runs and what is paused in memory: its room is free then.
func TestSuspend(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxSandboxes: 1})
	s := r.create(t, manager.CreateRequest{})
	if err := r.Pause(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	r.wantSuspended(t, s.ID, false)
	if n := r.Rooms(); n != 1 {
		t.Errorf("paused in memory it takes the room of %d, want 1", n)
	}
	for _, from := range []string{"memory", "running"} {
		if err := r.Suspend(t.Context(), s.ID); err != nil {
			t.Fatalf("from %s: %v", from, err)
		}
		r.wantState(t, s.ID, sandpit.StatePaused)
		r.wantSuspended(t, s.ID, true)
		if view, _ := r.world.Look(s.ID); view.State != fake.Suspended || r.Rooms() != 0 {
			t.Errorf("it is %s and takes the room of %d, want suspended and none", view.State, r.Rooms())
		}
		wantCode(t, r.Suspend(t.Context(), s.ID), sandpit.Conflict)
		wantCode(t, r.Pause(t.Context(), s.ID), sandpit.Conflict)
		other := r.create(t, manager.CreateRequest{}) // there is room for it
		wantCode(t, r.Resume(t.Context(), s.ID), sandpit.Exhausted)
		r.wantSuspended(t, s.ID, true)
		if err := errors.Join(r.Delete(t.Context(), other.ID), r.Resume(t.Context(), s.ID)); err != nil {
			t.Fatal(err)
		}
		r.wantState(t, s.ID, sandpit.StateRunning)
		r.wantSuspended(t, s.ID, false)
	}
	if err := errors.Join(r.Suspend(t.Context(), s.ID), r.Stop(t.Context(), s.ID)); err != nil {
		t.Fatal(err)
	}
	r.wantState(t, s.ID, sandpit.StateStopped)
	r.wantSuspended(t, s.ID, false)
}

// TestSuspendGoesWrong has the provider fail, or only lose its answer.
func TestSuspendGoesWrong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		still bool // it is paused in memory before
		fault fake.Fault
		state sandpit.State
		disk  bool
	}{
		"fails":         {false, fake.Fault{Err: errOrdered}, sandpit.StateRunning, false},
		"no room":       {false, fake.Fault{Err: sandpit.Errorf(sandpit.Exhausted, "no room")}, sandpit.StateRunning, false},
		"cannot":        {false, fake.Fault{Err: sandpit.Errorf(sandpit.Unsupported, "cannot")}, sandpit.StateRunning, false},
		"lost":          {false, fake.Fault{Err: errOrdered, After: true}, sandpit.StatePaused, true},
		"still, fails":  {true, fake.Fault{Err: errOrdered}, sandpit.StatePaused, false},
		"still, cannot": {true, fake.Fault{Err: sandpit.Errorf(sandpit.Unsupported, "cannot")}, sandpit.StatePaused, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{})
			s := r.create(t, manager.CreateRequest{})
			if tc.still {
				if err := r.Pause(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
			}
			tc.fault.Op = fake.OpSuspend
			r.world.Inject(tc.fault)
			if err := r.Suspend(t.Context(), s.ID); (err == nil) != tc.disk {
				t.Errorf("suspend: %v", err)
			}
			r.wantState(t, s.ID, tc.state)
			r.wantSuspended(t, s.ID, tc.disk)
			if want := 1; !tc.disk && r.Rooms() != want {
				t.Errorf("it takes the room of %d, want %d", r.Rooms(), want)
			}
			if !tc.disk {
				if err := r.Suspend(t.Context(), s.ID); err != nil {
					t.Errorf("again: %v", err)
				}
				r.wantSuspended(t, s.ID, true)
			}
		})
	}
}

// TestSuspendAndCrash kills the manager before, in the middle of and after suspending and
// resuming.
func TestSuspendAndCrash(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		op    fake.Op
		do    func(*rig, context.Context, sandpit.ID) error
		state sandpit.State
		disk  bool
	}{
		"suspending": {fake.OpSuspend, func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Suspend(ctx, id) }, sandpit.StatePaused, true},
		"resuming":   {fake.OpResume, func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Resume(ctx, id) }, sandpit.StateRunning, false},
		"suspended":  {"", nil, sandpit.StatePaused, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{})
			s := r.create(t, manager.CreateRequest{})
			if tc.op != fake.OpSuspend {
				if err := r.Suspend(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
			}
			if tc.do != nil {
				r.cable.hang(tc.op)
				done := make(chan error, 1)
				go func() { done <- tc.do(r, context.WithoutCancel(t.Context()), s.ID) }()
				eventually(t, "it is under way", func() bool { return r.cable.holding() == 1 })
				r.crash(t)
				<-done
			} else {
				r.crash(t)
			}
			r.open(t)
			eventually(t, "it is finished", func() bool { return r.state(s.ID) == tc.state })
			r.wantState(t, s.ID, tc.state)
			r.wantSuspended(t, s.ID, tc.disk)
			if want := map[bool]int{true: 0, false: 1}[tc.disk]; r.Rooms() != want {
				t.Errorf("it takes the room of %d, want %d", r.Rooms(), want)
			}
		})
	}
}

// TestFreeze has idle sandboxes go to disk by themselves, and wakes them by using them.
func TestFreeze(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy store.Policy
		busy   int
		pause  bool // it is paused in memory at first
		frozen bool
	}{
		"idle":                 {store.Policy{AutoSuspend: 10 * time.Minute}, 0, false, true},
		"longer than the rest": {store.Policy{AutoSuspend: 3 * time.Hour}, 0, false, true},
		"busy":                 {store.Policy{AutoSuspend: 10 * time.Minute}, 1, false, false},
		"busy, does not help":  {store.Policy{AutoSuspend: 10 * time.Minute, IgnoreBackground: true}, 1, false, true},
		"paused in memory":     {store.Policy{AutoSuspend: 10 * time.Minute}, 0, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, s := onStage(t, manager.Options{})
				b := r.create(t, manager.CreateRequest{Policy: tc.policy})
				s.busy(b.ID, tc.busy)
				if tc.pause {
					if err := r.Pause(t.Context(), b.ID); err != nil {
						t.Fatal(err)
					}
				}
				before := r.state(b.ID)
				time.Sleep(tc.policy.AutoSuspend - time.Second)
				r.wantState(t, b.ID, before)
				r.wantSuspended(t, b.ID, false)
				time.Sleep(1100 * time.Millisecond)
				r.wantSuspended(t, b.ID, tc.frozen)
				h, err := r.Use(t.Context(), b.ID)
				if err != nil {
					t.Fatalf("use what is frozen: %v", err)
				}
				r.wantState(t, b.ID, sandpit.StateRunning)
				time.Sleep(2 * tc.policy.AutoSuspend) // used all the while
				r.wantState(t, b.ID, sandpit.StateRunning)
				h.Release()
				time.Sleep(tc.policy.AutoSuspend + time.Second)
				r.wantSuspended(t, b.ID, tc.frozen)
			})
		})
	}
}

// TestWakeOnUse uses sandboxes that their owner has paused or stopped.
func TestWakeOnUse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy store.Policy
		sleep  func(*rig, context.Context, sandpit.ID) error
		wakes  bool
	}{
		"paused":           {store.Policy{WakeOnUse: true}, func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Pause(ctx, id) }, true},
		"suspended":        {store.Policy{WakeOnUse: true}, func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Suspend(ctx, id) }, true},
		"stopped":          {store.Policy{WakeOnUse: true}, func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Stop(ctx, id) }, true},
		"not asked for":    {store.Policy{}, func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Suspend(ctx, id) }, false},
		"freezes, paused":  {store.Policy{AutoSuspend: time.Hour}, func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Pause(ctx, id) }, false},
		"freezes, stopped": {store.Policy{AutoSuspend: time.Hour}, func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Stop(ctx, id) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{})
			s := r.create(t, manager.CreateRequest{Policy: tc.policy})
			if err := tc.sleep(r, t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			var group sync.WaitGroup
			for range 10 {
				group.Go(func() {
					h, err := r.Use(t.Context(), s.ID)
					if !tc.wakes {
						wantCode(t, err, sandpit.Conflict)
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					defer h.Release()
					if _, err := h.Guest().ListProcesses(h.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			if n := r.world.Calls(fake.OpResume, s.ID) + r.world.Calls(fake.OpStart, s.ID); tc.wakes && n != 1 || !tc.wakes && n != 0 {
				t.Errorf("it was woken %d times", n)
			}
		})
	}
}

// TestWakeFails has several callers hear why a sandbox does not wake, of one try.
func TestWakeFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{Policy: store.Policy{WakeOnUse: true}})
	if err := r.Suspend(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	r.cable.hang(fake.OpResume)
	r.world.Inject(fake.Fault{Op: fake.OpResume, Err: sandpit.Errorf(sandpit.Exhausted, "the disk is a brick")})
	const callers = 5
	errs := make(chan error, callers)
	use := func() {
		h, err := r.Use(t.Context(), s.ID)
		if err == nil {
			h.Release()
		}
		errs <- err
	}
	go use()
	eventually(t, "it is being woken", func() bool { return r.cable.holding() == 1 })
	for range callers - 1 {
		go use()
	}
	eventually(t, "all wait", func() bool { return r.Waiting() == callers })
	r.cable.release()
	for range callers {
		err := <-errs
		wantCode(t, err, sandpit.Exhausted)
		wantText(t, err, "the disk is a brick")
	}
	if n := r.world.Calls(fake.OpResume, s.ID); n != 1 {
		t.Errorf("it was tried %d times", n)
	}
	r.wantState(t, s.ID, sandpit.StatePaused)
	h, err := r.Use(t.Context(), s.ID) // a later caller tries again
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
}

// TestUseWhileFreezing uses a sandbox in the middle of its being frozen: it is woken
// then, and no caller gets a conflict.
func TestUseWhileFreezing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Policy: store.Policy{AutoSuspend: time.Minute}})
		s.set(10*time.Second, nil)
		time.Sleep(time.Minute + 200*time.Millisecond)
		r.wantState(t, b.ID, sandpit.StatePausing)
		h, err := r.Use(t.Context(), b.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Release()
		r.wantState(t, b.ID, sandpit.StateRunning)
	})
}

// TestCheckpoints saves the files of a sandbox that is used all the while, and of none
// that does not run.
func TestCheckpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleTimeout: -1, CheckpointEvery: time.Minute, Recreate: 1}})
		h, err := r.Use(t.Context(), b.ID)
		if err != nil {
			t.Fatal(err)
		}
		saved := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.boxes[b.ID].saved
		}
		time.Sleep(5*time.Minute + 30*time.Second)
		if n := saved(); n != 5 {
			t.Errorf("in five minutes it was saved %d times", n)
		}
		got, _ := r.Get(b.ID)
		if age := time.Since(got.CheckpointedAt); age > 31*time.Second {
			t.Errorf("it says that it was saved %v ago", age)
		}
		h.Release()
		if err := r.Pause(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := saved(); n != 5 {
			t.Errorf("while it was paused it was saved, %d times", n)
		}
	})
}

// TestRevivedFromCheckpoint ends a sandbox from outside. It has the files then that were
// saved last, and says so.
func TestRevivedFromCheckpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{Policy: store.Policy{Recreate: 2}})
	view, _ := r.world.Look(s.ID)
	file := filepath.Join(view.Dir, "note")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(text string) {
		t.Helper()
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("the file says %q, %v; want %q", got, err, text)
		}
	}
	write("old")
	if err := r.Checkpoint(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	write("new")
	r.world.Inject(fake.Fault{Op: fake.OpCheckpoint, Err: sandpit.Errorf(sandpit.Exhausted, "no room")})
	wantCode(t, r.Checkpoint(t.Context(), s.ID), sandpit.Exhausted)
	r.wantState(t, s.ID, sandpit.StateRunning)
	want("new")
	for n := range 2 {
		if err := r.world.Kill(s.ID, sandpit.Exit{Known: true, Reason: "the kernel was killed"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is made again", func() bool {
			return r.world.Calls(fake.OpRevive, s.ID) == n+1 && r.state(s.ID) == sandpit.StateRunning
		})
		want("old")
		if got, _ := r.Get(s.ID); !strings.Contains(got.Reason, "the kernel was killed") || !strings.Contains(got.Reason, "files of") {
			t.Errorf("the reason is %q", got.Reason)
		}
		write("new")
	}
	wantCode(t, r.Pause(t.Context(), s.ID), "")
	wantCode(t, r.Checkpoint(t.Context(), s.ID), sandpit.Conflict)
}

// TestCheckpointIsForgotten has a provider remove a checkpoint: it is not listed any
// more.
func TestCheckpointIsForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{Policy: store.Policy{Recreate: 1}})
	if err := r.Checkpoint(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	r.Reconcile(t.Context())
	if got, err := r.Get(s.ID); err != nil || got.CheckpointedAt.IsZero() {
		t.Fatalf("with a checkpoint: %+v, %v", got, err)
	}
	view, _ := r.world.Look(s.ID)
	if err := os.RemoveAll(filepath.Join(filepath.Dir(filepath.Dir(view.Dir)), "checkpoints", string(s.ID))); err != nil {
		t.Fatal(err)
	}
	r.Reconcile(t.Context())
	if got, err := r.Get(s.ID); err != nil || !got.CheckpointedAt.IsZero() {
		t.Errorf("without one: %+v, %v", got, err)
	}
}
