package manager_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// interruption is a transition that the end of the manager interrupts.
type interruption struct {
	op    fake.Op
	after bool // the provider has performed it
	do    func(*manager.Manager, context.Context, sandpit.ID) error
}

// breakTransition ends the manager during a transition, which the provider refuses to finish for the
// next manager.
func breakTransition(t *testing.T, r *rig, id sandpit.ID, in interruption) {
	t.Helper()
	remove := r.world.Inject(fake.Fault{Op: in.op, Delay: time.Hour, After: in.after})
	before, done := r.world.Calls(in.op, id), make(chan struct{})
	go func(m *manager.Manager) { defer close(done); _ = in.do(m, t.Context(), id) }(r.Manager)
	eventually(t, "it begins", func() bool { return r.world.Calls(in.op, id) > before })
	r.crash(t)
	<-done
	remove()
	remove = r.world.Inject(fake.Fault{Op: in.op, Err: sandpit.Errorf(sandpit.PermissionDenied, "not permitted"), Times: -1})
	defer remove()
	r.open(t)
	r.wantState(t, id, sandpit.StateError)
}

// TestRecover recovers sandboxes in the error state, whichever state their provider has them in: they
// run and have their files.
func TestRecover(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before []func(*manager.Manager, context.Context, sandpit.ID) error
		do     func(*manager.Manager, context.Context, sandpit.ID) error
		op     fake.Op
		after  bool
	}{
		"it runs":      {do: (*manager.Manager).Stop, op: fake.OpStop},
		"it is paused": {do: (*manager.Manager).Pause, op: fake.OpPause, after: true},
		"it is stopped": {
			before: []func(*manager.Manager, context.Context, sandpit.ID) error{(*manager.Manager).Stop}, do: (*manager.Manager).Archive, op: fake.OpArchive,
		},
		"it is archived": {
			before: []func(*manager.Manager, context.Context, sandpit.ID) error{(*manager.Manager).Stop, (*manager.Manager).Archive},
			do:     (*manager.Manager).Restore, op: fake.OpRestore,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{})
			s := r.create(t, manager.CreateRequest{})
			writeKept(t, r, s.ID)
			wantCode(t, r.Recover(t.Context(), s.ID), sandpit.Conflict)
			if r.IsRecoverable(s.ID) {
				t.Error("a sandbox that runs is recoverable")
			}
			for _, step := range tc.before {
				if err := step(r.Manager, t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
			}
			breakTransition(t, r, s.ID, interruption{tc.op, tc.after, tc.do})
			if !r.IsRecoverable(s.ID) {
				t.Error("it is not recoverable")
			}
			if err := r.Recover(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			wantKept(t, r, s.ID)
			if err := r.Stop(t.Context(), s.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRecoverFails recovers sandboxes in vain: they stay in the error state, and an interrupted
// recovery is finished by the next manager.
func TestRecoverFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	if err := r.Stop(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	breakTransition(t, r, s.ID, interruption{op: fake.OpArchive, do: (*manager.Manager).Archive})
	for _, code := range []sandpit.Code{sandpit.PermissionDenied, sandpit.Unavailable} {
		remove := r.world.Inject(fake.Fault{Op: fake.OpStart, Err: sandpit.Errorf(code, "refused"), Times: -1})
		wantCode(t, r.Recover(t.Context(), s.ID), code)
		remove()
		r.wantState(t, s.ID, sandpit.StateError)
	}
	remove := r.world.Inject(fake.Fault{Op: fake.OpStart, Delay: time.Hour})
	before, done := r.world.Calls(fake.OpStart, s.ID), make(chan struct{})
	go func(m *manager.Manager) { defer close(done); _ = m.Recover(t.Context(), s.ID) }(r.Manager)
	eventually(t, "it begins", func() bool { return r.world.Calls(fake.OpStart, s.ID) > before })
	r.crash(t)
	<-done
	remove()
	r.open(t)
	r.wantState(t, s.ID, sandpit.StateRunning)
}

// TestRecoverLost recovers a lost sandbox before its next attempt, and one that its provider does not
// have any more in vain.
func TestRecoverLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{Policy: store.Policy{Recreate: 3}})
	remove := r.world.Inject(fake.Fault{Op: fake.OpCreate, ID: s.ID, Err: sandpit.Errorf(sandpit.Unavailable, "busy"), Times: 1})
	defer remove()
	if err := r.world.Kill(s.ID, sandpit.Exit{Known: true, Reason: "out of memory"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first attempt has failed", func() bool {
		return slices.Contains(r.events(t, s.ID), "manager: recreate unavailable") && r.state(s.ID) == sandpit.StateError
	})
	if err := r.Recover(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	r.wantState(t, s.ID, sandpit.StateRunning)

	gone := r.create(t, manager.CreateRequest{})
	breakTransition(t, r, gone.ID, interruption{op: fake.OpStop, do: (*manager.Manager).Stop})
	if err := r.world.Vanish(gone.ID); err != nil {
		t.Fatal(err)
	}
	if code := sandpit.CodeOf(r.Recover(t.Context(), gone.ID)); code != sandpit.NotFound && code != sandpit.Gone {
		t.Errorf("recover a sandbox that vanished: %q", code)
	}
	r.wantState(t, gone.ID, sandpit.StateError)
}
