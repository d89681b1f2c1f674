package manager_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// TestCrash ends the manager in the middle of each operation; the next one
// finishes it, or takes it back.
func TestCrash(t *testing.T) {
	t.Parallel()
	type doing = func(*rig, context.Context, sandpit.ID) error
	method := func(do func(*manager.Manager, context.Context, sandpit.ID) error) doing {
		return func(r *rig, ctx context.Context, id sandpit.ID) error { return do(r.Manager, ctx, id) }
	}
	pause, resume := method((*manager.Manager).Pause), method((*manager.Manager).Resume)
	stop, start := method((*manager.Manager).Stop), method((*manager.Manager).Start)
	archive, restore := method((*manager.Manager).Archive), method((*manager.Manager).Restore)
	remove := method((*manager.Manager).Delete)
	for name, tc := range map[string]struct {
		before []doing
		do     doing
		op     fake.Op
		during sandpit.State
		want   sandpit.State
		world  fake.State
	}{
		"idle":          {want: sandpit.StateRunning, world: fake.Running},
		"paused":        {before: []doing{pause}, want: sandpit.StatePaused, world: fake.Paused},
		"stopped":       {before: []doing{stop}, want: sandpit.StateStopped, world: fake.Stopped},
		"archived":      {before: []doing{stop, archive}, want: sandpit.StateArchived, world: fake.Archived},
		"pausing":       {nil, pause, fake.OpPause, sandpit.StatePausing, sandpit.StatePaused, fake.Paused},
		"resuming":      {[]doing{pause}, resume, fake.OpResume, sandpit.StateResuming, sandpit.StateRunning, fake.Running},
		"stopping":      {nil, stop, fake.OpStop, sandpit.StateStopping, sandpit.StateStopped, fake.Stopped},
		"stopping from": {[]doing{pause}, stop, fake.OpResume, sandpit.StateStopping, sandpit.StateStopped, fake.Stopped},
		"starting":      {[]doing{stop}, start, fake.OpStart, sandpit.StateResuming, sandpit.StateRunning, fake.Running},
		"archiving":     {[]doing{stop}, archive, fake.OpArchive, sandpit.StateArchiving, sandpit.StateArchived, fake.Archived},
		"restoring":     {[]doing{stop, archive}, restore, fake.OpRestore, sandpit.StateRestoring, sandpit.StateStopped, fake.Stopped},
		"deleting":      {nil, remove, fake.OpDestroy, sandpit.StateDeleting, sandpit.StateDeleted, ""},
	} {
		for _, after := range []bool{false, true} {
			if tc.do == nil && after {
				continue
			}
			t.Run(fmt.Sprintf("%s, done %t", name, after), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, manager.Options{})
				s := r.create(t, manager.CreateRequest{})
				for _, step := range tc.before {
					if err := step(r, t.Context(), s.ID); err != nil {
						t.Fatal(err)
					}
				}
				if tc.do != nil {
					r.world.Inject(fake.Fault{Op: tc.op, Delay: time.Hour, After: after})
					done := make(chan struct{})
					go func() { defer close(done); _ = tc.do(r, t.Context(), s.ID) }()
					eventually(t, "it begins", func() bool { return r.world.Calls(tc.op, s.ID) == 1 })
					r.wantState(t, s.ID, tc.during)
					r.crash(t)
					<-done
				} else {
					r.crash(t)
				}
				r.open(t)
				r.wantState(t, s.ID, tc.want)
				if view, there := r.world.Look(s.ID); view.State != tc.world || there != (tc.world != "") {
					t.Errorf("in the world it is %q, want %q", view.State, tc.world)
				}
				if tc.want == sandpit.StateRunning { // its end is watched for
					if err := r.world.Kill(s.ID, sandpit.Exit{Known: true, Reason: "out of memory"}); err != nil {
						t.Fatal(err)
					}
					eventually(t, "its end is seen", func() bool { return r.state(s.ID) == sandpit.StateDeleted })
				}
			})
		}
	}
}

// TestCrashWhileMade ends the manager while it makes a sandbox.
func TestCrashWhileMade(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint("made ", after), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{})
			r.world.Inject(fake.Fault{Op: fake.OpCreate, Delay: time.Hour, After: after})
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = r.Create(t.Context(), manager.CreateRequest{Owner: "ann", Key: "k"})
			}()
			eventually(t, "it begins", func() bool { return r.world.Calls(fake.OpCreate, "") == 1 })
			eventually(t, "it is listed", func() bool { return len(r.List(manager.Filter{})) == 1 })
			id := r.List(manager.Filter{})[0].ID
			r.crash(t)
			<-done
			r.open(t)
			r.wantGone(t, id, "the server ended during its creation")
			if left := r.world.Leftovers(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if s := r.create(t, manager.CreateRequest{Owner: "ann", Key: "k"}); s.ID == id {
				t.Error("the key is bound to what is gone")
			}
		})
	}
}

// TestVanishedMeanwhile has sandboxes end while there is no manager.
func TestVanishedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Retry: 10 * time.Millisecond})
	killed, vanished, stopped := r.create(t, manager.CreateRequest{}), r.create(t, manager.CreateRequest{}), r.create(t, manager.CreateRequest{})
	again := r.create(t, manager.CreateRequest{Policy: store.Policy{Recreate: 1}})
	if err := r.Stop(t.Context(), stopped.ID); err != nil {
		t.Fatal(err)
	}
	r.crash(t)
	for _, id := range []sandpit.ID{vanished.ID, stopped.ID, again.ID} {
		if err := r.world.Vanish(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.world.Kill(killed.ID, sandpit.Exit{Known: true, Reason: "out of memory"}); err != nil {
		t.Fatal(err)
	}
	r.open(t)
	eventually(t, "its end is seen", func() bool { return r.state(killed.ID) == sandpit.StateDeleted })
	r.wantGone(t, killed.ID, "out of memory")
	r.wantGone(t, vanished.ID, "vanished")
	r.wantGone(t, stopped.ID, "vanished")
	eventually(t, "it is made again", func() bool { return r.state(again.ID) == sandpit.StateRunning })
}

// TestStrangers leaves other people's sandboxes alone, and removes what is marked
// as ours and is not.
func TestStrangers(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	p := r.world.NewProvider()
	defer p.Close()
	place := func(labels map[string]string) sandpit.ID {
		t.Helper()
		i, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		return i.ID()
	}
	foreign := place(map[string]string{manager.Label: "somebody"})
	unmarked := place(nil)
	lost := place(map[string]string{manager.Label: r.store.Identity()})
	own := r.create(t, manager.CreateRequest{})
	r.Reconcile(t.Context())
	for id, want := range map[sandpit.ID]bool{foreign: true, unmarked: true, lost: false, own.ID: true} {
		if _, there := r.world.Look(id); there != want {
			t.Errorf("sandbox %s is there: %t, want %t", id, there, want)
		}
	}
}

// TestLies has a provider's list lie. No sandbox is harmed.
func TestLies(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	a, b := r.create(t, manager.CreateRequest{}), r.create(t, manager.CreateRequest{})
	stopped := r.create(t, manager.CreateRequest{})
	if err := r.Stop(t.Context(), stopped.ID); err != nil {
		t.Fatal(err)
	}
	own := map[string]string{manager.Label: r.store.Identity()}
	for name, lie := range map[string]func([]sandpit.Placement) []sandpit.Placement{
		"nothing": func([]sandpit.Placement) []sandpit.Placement { return nil },
		"twice":   func(l []sandpit.Placement) []sandpit.Placement { return slices.Concat(l, l) },
		"foreign labels": func(l []sandpit.Placement) []sandpit.Placement {
			for k := range l {
				l[k].Spec.Labels = map[string]string{manager.Label: "somebody"}
			}
			return l
		},
		"other ids": func(l []sandpit.Placement) []sandpit.Placement {
			for k := range l {
				l[k].ID = sandpit.NewID() // with the handles of ours
			}
			return l
		},
		"bad ids": func(l []sandpit.Placement) []sandpit.Placement {
			return append(l, sandpit.Placement{ID: "../../etc", Spec: sandpit.Spec{Labels: own}}, sandpit.Placement{Spec: sandpit.Spec{Labels: own}})
		},
		"bad handles": func(l []sandpit.Placement) []sandpit.Placement {
			return append(l, sandpit.Placement{ID: sandpit.NewID(), Handle: []byte("x"), Spec: sandpit.Spec{Labels: own}})
		},
		"swapped": func(l []sandpit.Placement) []sandpit.Placement {
			if len(l) > 1 {
				l[0].Handle, l[1].Handle = l[1].Handle, l[0].Handle
			}
			return l
		},
	} {
		r.cable.lies(lie)
		r.Reconcile(t.Context())
		r.crash(t)
		r.open(t) // and at the start
		r.cable.lies(lie)
		r.Reconcile(t.Context())
		for id, want := range map[sandpit.ID]fake.State{a.ID: fake.Running, b.ID: fake.Running, stopped.ID: fake.Stopped} {
			if view, _ := r.world.Look(id); view.State != want {
				t.Errorf("%s: %s is %q, want %q", name, id, view.State, want)
			}
		}
		r.wantState(t, a.ID, sandpit.StateRunning)
		r.wantState(t, stopped.ID, sandpit.StateStopped)
	}
	if n := r.world.Calls(fake.OpDestroy, ""); n != 0 {
		t.Errorf("%d sandboxes were destroyed", n)
	}
}

// TestMixedUp has a provider attach to another sandbox than it is asked for.
func TestMixedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Retry: time.Hour})
	a, b := r.create(t, manager.CreateRequest{}), r.create(t, manager.CreateRequest{})
	row, err := r.store.Sandboxes().Sandbox(t.Context(), b.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.crash(t)
	mixed := newCable(r.world.NewProvider())
	mixed.other = row.Handle
	r.o.Providers = map[string]sandpit.Provider{"fake": mixed}
	r.open(t)
	_, err = r.Use(t.Context(), a.ID)
	wantCode(t, err, sandpit.Internal)
	wantCode(t, r.Delete(t.Context(), a.ID), sandpit.Internal)
	if view, _ := r.world.Look(b.ID); view.State != fake.Running {
		t.Errorf("the other one is %q", view.State)
	}
	_ = mixed.Close()
}

// TestCrashWhileRecreated ends the manager while it makes a sandbox again, for the
// last time and before.
func TestCrashWhileRecreated(t *testing.T) {
	t.Parallel()
	for times, want := range map[int]sandpit.State{1: sandpit.StateDeleted, 2: sandpit.StateRunning} {
		t.Run(strconv.Itoa(times), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{})
			s := r.create(t, manager.CreateRequest{Policy: store.Policy{Recreate: times}})
			r.world.Inject(fake.Fault{Op: fake.OpCreate, Delay: time.Hour, After: true})
			if err := r.world.Vanish(s.ID); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is made again", func() bool { return r.world.Calls(fake.OpCreate, s.ID) == 2 })
			r.crash(t)
			r.open(t)
			eventually(t, "it is settled", func() bool { return r.state(s.ID) == want })
			if _, there := r.world.Look(s.ID); there != (want == sandpit.StateRunning) {
				t.Errorf("in the world: %t", there)
			}
		})
	}
}

// TestTwoManagers share a machine, and neither touches the other's.
func TestTwoManagers(t *testing.T) {
	t.Parallel()
	one := newRig(t, manager.Options{})
	s := one.create(t, manager.CreateRequest{})
	other := newRig(t, manager.Options{Providers: map[string]sandpit.Provider{"fake": one.cable}})
	other.Reconcile(t.Context())
	mine, err := other.Create(t.Context(), manager.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	one.Reconcile(t.Context())
	one.wantState(t, s.ID, sandpit.StateRunning)
	other.wantState(t, mine.ID, sandpit.StateRunning)
}

// TestDeadlinesSurvive a crash, and the loss of the queue's messages.
func TestDeadlinesSurvive(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	soon := sandpit.Lease{Deadline: time.Now().Add(1500 * time.Millisecond)}
	kept, lost := r.create(t, manager.CreateRequest{Lease: soon}), r.create(t, manager.CreateRequest{Lease: soon})
	if _, err := r.store.Queue().Cancel(t.Context(), lost.ID); err != nil {
		t.Fatal(err)
	}
	r.crash(t)
	r.open(t)
	for _, s := range []sandpit.Sandbox{kept, lost} {
		eventually(t, "the deadline comes", func() bool { return r.state(s.ID) == sandpit.StateDeleted })
		r.wantGone(t, s.ID, "deadline")
	}
	if time.Now().Before(soon.Deadline) {
		t.Error("it came early")
	}
}

// TestProviderIsMissing opens a manager without the provider of a sandbox.
func TestProviderIsMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Retry: time.Hour})
	s := r.create(t, manager.CreateRequest{})
	r.close(t)
	r.o.Providers = map[string]sandpit.Provider{"stage": newStage()}
	r.open(t)
	_, err := r.Use(t.Context(), s.ID)
	wantCode(t, err, sandpit.Unavailable)
	wantText(t, err, `its provider "fake" is not configured`)
	wantCode(t, r.Delete(t.Context(), s.ID), sandpit.Unavailable)
	if _, there := r.world.Look(s.ID); !there {
		t.Error("it is gone from the world")
	}
	r.close(t)
	r.o.Providers = nil
	r.open(t) // now the deletion is finished
	eventually(t, "it is deleted", func() bool { return r.state(s.ID) == sandpit.StateDeleted })
	if left := r.world.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
