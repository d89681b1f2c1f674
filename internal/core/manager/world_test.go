package manager_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// TestWakeOnce has many callers wake one sandbox.
func TestWakeOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sleep func(*rig, context.Context, sandpit.ID) error
		op    fake.Op
	}{
		"paused":  {func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Pause(ctx, id) }, fake.OpResume},
		"stopped": {func(r *rig, ctx context.Context, id sandpit.ID) error { return r.Stop(ctx, id) }, fake.OpStart},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{})
			s := r.create(t, manager.CreateRequest{})
			if err := tc.sleep(r, t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			_, err := r.Use(t.Context(), s.ID)
			wantCode(t, err, sandpit.Conflict)
			wantText(t, err, name)
			var group sync.WaitGroup
			for range 10 {
				group.Go(func() {
					h, err := r.Wake(t.Context(), s.ID)
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
			if n := r.world.Calls(tc.op, s.ID); n != 1 {
				t.Errorf("it was woken %d times", n)
			}
		})
	}
}

// TestOneAtATime lets a caller wait for its turn, and give up.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	r.cable.hang(fake.OpPause)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- r.Pause(ctx, s.ID) }()
	eventually(t, "it pauses", func() bool { return r.cable.holding() == 1 })
	r.wantState(t, s.ID, sandpit.StatePausing)
	short, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer end()
	wantCode(t, r.Stop(short, s.ID), sandpit.Timeout)
	cancel() // the operation continues
	wantCode(t, <-first, sandpit.Canceled)
	r.cable.release()
	eventually(t, "it is paused", func() bool { return r.state(s.ID) == sandpit.StatePaused })
	if n := r.world.Calls(fake.OpStop, ""); n != 0 {
		t.Error("a caller that gave up has stopped it all the same")
	}
}

// TestFailedMoves has the provider fail, or only lose its answer.
func TestFailedMoves(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		op     fake.Op
		before []string
		do     string
		after  bool // the provider does it and loses the answer
		want   sandpit.State
		ok     bool
	}{
		"pause":         {fake.OpPause, nil, "pause", false, sandpit.StateRunning, false},
		"pause, lost":   {fake.OpPause, nil, "pause", true, sandpit.StatePaused, true},
		"resume":        {fake.OpResume, []string{"pause"}, "resume", false, sandpit.StatePaused, false},
		"resume, lost":  {fake.OpResume, []string{"pause"}, "resume", true, sandpit.StateRunning, true},
		"stop":          {fake.OpStop, nil, "stop", false, sandpit.StateRunning, false},
		"stop, lost":    {fake.OpStop, nil, "stop", true, sandpit.StateStopped, true},
		"stop, paused":  {fake.OpStop, []string{"pause"}, "stop", false, sandpit.StatePaused, false},
		"stop, resumed": {fake.OpResume, []string{"pause"}, "stop", true, sandpit.StateRunning, false}, // and no further
		"start":         {fake.OpStart, []string{"stop"}, "start", false, sandpit.StateStopped, false},
		"start, lost":   {fake.OpStart, []string{"stop"}, "start", true, sandpit.StateRunning, true},
		"archive":       {fake.OpArchive, []string{"stop"}, "archive", false, sandpit.StateStopped, false},
		"archive, lost": {fake.OpArchive, []string{"stop"}, "archive", true, sandpit.StateStopped, false}, // unknowable
		"restore":       {fake.OpRestore, []string{"stop", "archive"}, "restore", false, sandpit.StateArchived, false},
		"restore, lost": {fake.OpRestore, []string{"stop", "archive"}, "restore", true, sandpit.StateArchived, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{MaxSandboxes: 1})
			do := map[string]func(context.Context, sandpit.ID) error{
				"pause": r.Pause, "resume": r.Resume, "stop": r.Stop, "start": r.Start, "archive": r.Archive, "restore": r.Restore,
			}
			s := r.create(t, manager.CreateRequest{})
			for _, step := range tc.before {
				if err := do[step](t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
			}
			r.world.Inject(fake.Fault{Op: tc.op, Err: errOrdered, After: tc.after})
			err := do[tc.do](t.Context(), s.ID)
			if (err == nil) != tc.ok || err != nil && !errors.Is(err, errOrdered) {
				t.Errorf("got %v", err)
			}
			r.wantState(t, s.ID, tc.want)
			if !tc.ok { // it works the next time, done or not
				if err := do[tc.do](t.Context(), s.ID); err != nil {
					t.Errorf("again: %v", err)
				}
			}
			if tc.want == sandpit.StateStopped && tc.do == "start" && r.state(s.ID) != sandpit.StateRunning {
				t.Error("it does not run")
			}
		})
	}
}

// TestEndIsSeen ends sandboxes behind the manager's back.
func TestEndIsSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	for reason, end := range map[string]func(sandpit.ID) error{
		"out of memory": func(id sandpit.ID) error {
			return r.world.Kill(id, sandpit.Exit{Known: true, Reason: "out of memory"})
		},
		"vanished": r.world.Vanish,
	} {
		s := r.create(t, manager.CreateRequest{Owner: "ann"})
		h, err := r.Use(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := end(s.ID); err != nil {
			t.Fatal(err)
		}
		select {
		case <-h.Context().Done():
			wantText(t, context.Cause(h.Context()), reason)
		case <-time.After(10 * time.Second):
			t.Fatal("the user of a sandbox that ended was not told")
		}
		h.Release()
		eventually(t, "it is gone", func() bool { return r.state(s.ID) == sandpit.StateDeleted })
		r.wantGone(t, s.ID, reason)
		// The event has the outcome, so it follows the change of the state.
		eventually(t, "its loss is an event", func() bool { return slices.Contains(r.events(t, s.ID), "manager: lost ok") })
	}
}

// TestRecreate makes a sandbox again, as often as it may be.
func TestRecreate(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Retry: 10 * time.Millisecond})
	s := r.create(t, manager.CreateRequest{Policy: store.Policy{Recreate: 3}, Spec: sandpit.Spec{Env: map[string]string{"A": "b"}}})
	again := func(n int) func() bool {
		return func() bool {
			row, err := r.store.Sandboxes().Sandbox(t.Context(), s.ID)
			return err == nil && row.State == sandpit.StateRunning && row.Recreated == n
		}
	}
	if err := r.world.Kill(s.ID, sandpit.Exit{Reason: "crashed"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is made again", again(1))
	r.world.Inject(fake.Fault{Op: fake.OpCreate, Err: errOrdered, After: true}) // which counts, and leaves something
	if err := r.world.Vanish(s.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is made again in spite of a failure", again(3))
	h, err := r.Use(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Guest().ListProcesses(h.Context()); err != nil {
		t.Error(err)
	}
	h.Release()
	if err := r.world.Kill(s.ID, sandpit.Exit{Reason: "crashed for good"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is given up", func() bool { return r.state(s.ID) == sandpit.StateDeleted })
	r.wantGone(t, s.ID, "crashed for good")
}

// TestHangs has the provider hang and ignore its context, in each operation.
func TestHangs(t *testing.T) {
	t.Parallel()
	o := manager.Options{
		CallTimeout: time.Second,
		Retry:       20 * time.Millisecond, Drain: 100 * time.Millisecond, Reconcile: time.Hour,
	}
	quick := func(t *testing.T, what string, do func() error) {
		t.Helper()
		begin := time.Now()
		wantCode(t, do(), sandpit.Timeout)
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("%s took %s", what, took)
		}
	}
	t.Run("create", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, o)
		r.cable.hang(fake.OpCreate)
		quick(t, "create", func() error {
			_, err := r.Create(t.Context(), manager.CreateRequest{Timeout: 50 * time.Millisecond})
			return err
		})
		if got := r.Stats().TotalSandboxes; got != 0 {
			t.Errorf("%d sandboxes", got)
		}
		r.cable.release() // now it is made, and no caller wants it
		eventually(t, "it is destroyed", func() bool { return r.world.Calls(fake.OpDestroy, "") == 1 && len(r.world.Leftovers()) == 0 })
	})
	t.Run("pause", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, o)
		s := r.create(t, manager.CreateRequest{})
		r.cable.hang(fake.OpPause)
		quick(t, "pause", func() error { return r.Pause(t.Context(), s.ID) })
		r.wantState(t, s.ID, sandpit.StateRunning)
		r.cable.release() // now it is paused, and the row follows
		eventually(t, "it is paused", func() bool { return r.state(s.ID) == sandpit.StatePaused })
		if err := r.Resume(t.Context(), s.ID); err != nil {
			t.Error(err)
		}
	})
	t.Run("destroy", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, o)
		s := r.create(t, manager.CreateRequest{Owner: "ann"})
		r.cable.hang(fake.OpDestroy)
		quick(t, "delete", func() error { return r.Delete(t.Context(), s.ID) })
		_, err := r.Use(t.Context(), s.ID)
		wantCode(t, err, sandpit.Gone)
		r.cable.release()
		eventually(t, "it is gone", func() bool { return r.state(s.ID) == sandpit.StateDeleted })
		r.wantGone(t, s.ID, "killed by ann")
	})
	t.Run("open", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, o)
		s := r.create(t, manager.CreateRequest{})
		r.close(t)
		stuck := newCable(r.world.NewProvider())
		stuck.hang(fake.OpList, fake.OpAttach, fake.OpWait)
		r.o.Providers = map[string]sandpit.Provider{"fake": stuck}
		t.Cleanup(func() { stuck.release(); r.close(t) })
		r.open(t)
		r.wantState(t, s.ID, sandpit.StateRunning) // silence means nothing
		quick(t, "use", func() error { _, err := r.Use(t.Context(), s.ID); return err })
		if !strings.Contains(r.log.String(), "manager: provider unreachable") {
			t.Error("it was not reported")
		}
		stuck.release()
		r.Reconcile(t.Context())
		h, err := r.Use(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		h.Release()
	})
}

// TestStoreIsLost has every write fail: what cannot be written is not done.
func TestStoreIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Retry: time.Hour})
	s := r.create(t, manager.CreateRequest{})
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := r.Create(t.Context(), manager.CreateRequest{})
	wantCode(t, err, sandpit.Unavailable)
	wantCode(t, r.Pause(t.Context(), s.ID), sandpit.Unavailable)
	wantCode(t, r.Delete(t.Context(), s.ID), sandpit.Unavailable)
	if n := r.world.Calls(fake.OpCreate, ""); n != 1 {
		t.Errorf("%d calls of create, want that of before", n)
	}
	if view, _ := r.world.Look(s.ID); view.State != fake.Running {
		t.Errorf("it is %q", view.State)
	}
	h, err := r.Use(t.Context(), s.ID) // which needs no writing
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
	r.crash(t)
	r.open(t)
	r.wantState(t, s.ID, sandpit.StateRunning)
}

// TestStoreIsLostWhileMade loses the store when the sandbox is there already.
func TestStoreIsLostWhileMade(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	_, err := r.Create(t.Context(), manager.CreateRequest{Setup: func(_ context.Context, i sandpit.Instance, _ sandpit.Spec) error {
		if _, there := r.world.Look(i.ID()); !there {
			t.Error("it is not there")
		}
		return r.store.Close()
	}})
	wantCode(t, err, sandpit.Unavailable)
	if left := r.world.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	r.crash(t)
	r.open(t)
	if got := r.List(manager.Filter{}); len(got) != 0 {
		t.Errorf("list: %+v", got)
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxSandboxes: 2, IdleTimeout: time.Minute, Sweep: 1500 * time.Millisecond})
	s := r.create(t, manager.CreateRequest{})
	h, err := r.Use(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	eventually(t, "nothing else runs", func() bool { return r.Stats().ActiveOperations == 1 })
	text, err := json.Marshal(r.Stats())
	const want = `{"total_sandboxes":1,"active_operations":1,"max_sandboxes":2,"idle_timeout":60,"cleanup_interval":1.5,"is_shutting_down":false}`
	if err != nil || string(text) != want {
		t.Errorf("got %s, %v; want %s", text, err, want)
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	ctx, id := t.Context(), sandpit.NewID()
	for name, do := range map[string]func(context.Context, sandpit.ID) error{
		"pause": r.Pause, "resume": r.Resume, "stop": r.Stop, "start": r.Start, "archive": r.Archive, "restore": r.Restore,
		"use":  func(ctx context.Context, id sandpit.ID) error { _, err := r.Use(ctx, id); return err },
		"wake": func(ctx context.Context, id sandpit.ID) error { _, err := r.Wake(ctx, id); return err },
		"get":  func(_ context.Context, id sandpit.ID) error { _, err := r.Get(id); return err },
	} {
		err := do(ctx, id)
		if sandpit.CodeOf(err) != sandpit.NotFound || err.Error() != "Sandbox "+string(id)+" not found" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Delete(ctx, id); err != nil {
		t.Errorf("delete: %v, want nothing", err)
	}
}

func TestDeleteTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			if err := r.Delete(t.Context(), s.ID); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := r.world.Calls(fake.OpDestroy, s.ID); n != 1 {
		t.Errorf("it was destroyed %d times", n)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	good := testoptions.Manager(manager.Options{Store: r.store, Providers: map[string]sandpit.Provider{"fake": r.cable}})
	for name, change := range map[string]func(*manager.Options){
		"no store":         func(o *manager.Options) { o.Store = nil },
		"no provider":      func(o *manager.Options) { o.Providers = nil },
		"unknown provider": func(o *manager.Options) { o.Provider = "other" },
		"no limit":         func(o *manager.Options) { o.MaxSandboxes = 0 },
		"negative limit":   func(o *manager.Options) { o.MaxVolumes = -1 },
		"no time":          func(o *manager.Options) { o.IdleTimeout = 0 },
		"negative time":    func(o *manager.Options) { o.Drain = -1 },
		"no action":        func(o *manager.Options) { o.IdleAction = "" },
	} {
		o := good
		change(&o)
		if m, err := manager.Open(t.Context(), o); !errors.Is(err, sandpit.Invalid) || m != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
