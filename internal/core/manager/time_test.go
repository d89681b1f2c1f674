package manager_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// onStage opens a manager whose sandboxes are on a stage. It is for bubbles, where
// time is what the test makes it.
func onStage(t *testing.T, o manager.Options) (*rig, *stage) {
	t.Helper()
	s := newStage()
	o.Providers = map[string]sandpit.Provider{"stage": s}
	return newRig(t, o), s
}

func TestIdle(t *testing.T) {
	t.Parallel()
	const never = -1
	for name, tc := range map[string]struct {
		policy store.Policy
		busy   int
		after  time.Duration // when it happens
		want   sandpit.State
		reason string
	}{
		"by default":          {store.Policy{}, 0, time.Hour, sandpit.StatePaused, "idle for 1h0m0s"},
		"sooner":              {store.Policy{IdleTimeout: time.Minute}, 0, time.Minute, sandpit.StatePaused, "idle for 1m0s"},
		"deleted":             {store.Policy{IdleAction: sandpit.ActionKill}, 0, time.Hour, sandpit.StateDeleted, "idle for 1h0m0s"},
		"stopped":             {store.Policy{IdleAction: sandpit.ActionStop}, 0, time.Hour, sandpit.StateStopped, "idle for 1h0m0s"},
		"paused":              {store.Policy{IdleAction: sandpit.ActionPause}, 0, time.Hour, sandpit.StatePaused, "idle for 1h0m0s"},
		"never":               {store.Policy{IdleTimeout: never}, 0, 0, sandpit.StateRunning, ""},
		"suspended":           {store.Policy{IdleAction: sandpit.ActionSuspend}, 0, time.Hour, sandpit.StatePaused, "idle for 1h0m0s"},
		"late auto stop":      {store.Policy{AutoStop: 2 * time.Hour}, 0, 2 * time.Hour, sandpit.StateStopped, "idle for 2h0m0s"},
		"auto stop":           {store.Policy{AutoStop: time.Minute}, 0, time.Minute, sandpit.StateStopped, "idle for 1m0s"},
		"busy":                {store.Policy{}, 1, 0, sandpit.StateRunning, ""},
		"busy, auto stop":     {store.Policy{AutoStop: time.Minute}, 2, 0, sandpit.StateRunning, ""},
		"busy, does not help": {store.Policy{IgnoreBackground: true}, 1, time.Hour, sandpit.StatePaused, "idle for 1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, s := onStage(t, manager.Options{KeepDeleted: 100 * time.Hour})
				b := r.create(t, manager.CreateRequest{Policy: tc.policy})
				s.busy(b.ID, tc.busy)
				if tc.after == 0 {
					time.Sleep(90 * time.Minute)
				} else {
					time.Sleep(tc.after - 100*time.Millisecond)
					r.wantState(t, b.ID, sandpit.StateRunning)
					time.Sleep(200 * time.Millisecond)
				}
				r.wantState(t, b.ID, tc.want)
				if got, _ := r.Get(b.ID); got.Reason != tc.reason {
					t.Errorf("reason %q, want %q", got.Reason, tc.reason)
				}
			})
		})
	}
}

// TestUseKeepsAwake holds a handle for longer than the sandbox may be idle.
func TestUseKeepsAwake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleTimeout: time.Minute, IdleAction: sandpit.ActionKill}})
		h, err := r.Use(t.Context(), b.ID)
		if err != nil {
			t.Fatal(err)
		}
		other, err := r.Use(t.Context(), b.ID)
		if err != nil {
			t.Fatal(err)
		}
		other.Release()
		other.Release() // counts once
		time.Sleep(100 * time.Minute)
		r.wantState(t, b.ID, sandpit.StateRunning)
		h.Release()
		if h.Context().Err() == nil {
			t.Error("a handle that was released has a context that lives")
		}
		time.Sleep(59 * time.Second) // from its end, not from its beginning
		r.wantState(t, b.ID, sandpit.StateRunning)
		row, err := r.store.Sandboxes().Sandbox(t.Context(), b.ID)
		if since := time.Since(row.LastUsedAt); err != nil || since > time.Minute {
			t.Errorf("the row was used %s ago, %v; want at the release", since, err)
		}
		time.Sleep(2 * time.Second)
		r.wantState(t, b.ID, sandpit.StateDeleted)
	})
}

// TestIdleRace uses a sandbox between the moment it is found idle and its end.
func TestIdleRace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleTimeout: time.Second, IdleAction: sandpit.ActionKill}})
		answer := s.deafen(b.ID) // the sweep waits for the guest's answer
		time.Sleep(1100 * time.Millisecond)
		h, err := r.Use(t.Context(), b.ID)
		if err != nil {
			t.Fatalf("use a sandbox that may be idle: %v", err)
		}
		time.Sleep(3 * time.Second) // by its last use it would be idle again
		answer()
		time.Sleep(time.Hour)
		r.wantState(t, b.ID, sandpit.StateRunning)
		h.Release()

		s.set(10*time.Second, nil) // now it is being destroyed for a while
		time.Sleep(1100 * time.Millisecond)
		if s.state(b.ID) != sandpit.StateRunning {
			t.Fatal("it was destroyed already")
		}
		_, err = r.Use(t.Context(), b.ID)
		wantCode(t, err, sandpit.Gone)
		wantText(t, err, "idle for 1s")
		time.Sleep(10 * time.Second)
		r.wantGone(t, b.ID, "idle for 1s")
	})
}

// TestAging lets an unused sandbox be stopped, archived and deleted.
func TestAging(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Policy: store.Policy{
			IdleTimeout: -1, AutoStop: 10 * time.Minute, AutoArchive: 20 * time.Minute, AutoDelete: 30 * time.Minute,
		}})
		for _, want := range []struct {
			after time.Duration
			state sandpit.State
		}{
			{10 * time.Minute, sandpit.StateStopped},
			{20 * time.Minute, sandpit.StateArchived},
			{30 * time.Minute, sandpit.StateDeleted},
		} {
			before := r.state(b.ID)
			time.Sleep(want.after - time.Second)
			r.wantState(t, b.ID, before)
			time.Sleep(1100 * time.Millisecond)
			r.wantState(t, b.ID, want.state)
		}
		wantCode(t, r.Start(t.Context(), b.ID), sandpit.Gone)
	})
}

// TestChoresAreRetried has what is due by itself fail for a while.
func TestChoresAreRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Policy: store.Policy{AutoStop: time.Minute}})
		s.set(0, sandpit.Errorf(sandpit.Unavailable, "out of order"))
		time.Sleep(10 * time.Minute)
		r.wantState(t, b.ID, sandpit.StateRunning)
		if n := s.tried(); n < 3 || n > 6 {
			t.Errorf("it was tried %d times in 10 minutes, want ever more rarely", n)
		}
		s.set(0, nil)
		time.Sleep(10 * time.Minute)
		r.wantState(t, b.ID, sandpit.StateStopped)
	})
}

// TestClockJump sets the clock by a day, both ways: no sandbox ends sooner or later.
func TestClockJump(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"forward": 24 * time.Hour, "backward": -24 * time.Hour, "and again": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clock.NewJumping()
			synctest.Test(t, func(t *testing.T) {
				r, _ := onStage(t, manager.Options{Clock: c, Sweep: time.Hour})
				leased := r.create(t, manager.CreateRequest{
					Lease: sandpit.Lease{Deadline: c.Now().Add(10 * time.Minute)}, Policy: store.Policy{IdleTimeout: -1},
				})
				idle := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleTimeout: 10 * time.Minute, IdleAction: sandpit.ActionKill}})
				stopped := r.create(t, manager.CreateRequest{Policy: store.Policy{AutoDelete: 10 * time.Minute}})
				if err := r.Stop(t.Context(), stopped.ID); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Minute)
				c.Jump(by)
				h, err := r.Use(t.Context(), leased.ID) // a use before the deadline is noticed
				if err != nil {
					t.Fatal(err)
				}
				h.Release()
				time.Sleep(5*time.Minute - time.Second)
				for _, b := range []sandpit.Sandbox{leased, idle} {
					r.wantState(t, b.ID, sandpit.StateRunning)
				}
				r.wantState(t, stopped.ID, sandpit.StateStopped)
				if got := r.events(t, ""); !slices.Contains(got, "manager: clock ok") {
					t.Errorf("events: %q", got)
				}
				time.Sleep(1200 * time.Millisecond)
				for _, b := range []sandpit.Sandbox{leased, idle, stopped} {
					r.wantState(t, b.ID, sandpit.StateDeleted)
				}
			})
		})
	}
}

// TestDrain deletes what is used, by a caller that releases it and by one that does not.
func TestDrain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		release bool
		want    time.Duration
	}{"lets go": {true, 0}, "does not": {false, 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, _ := onStage(t, manager.Options{})
				b := r.create(t, manager.CreateRequest{})
				h, err := r.Use(t.Context(), b.ID)
				if err != nil {
					t.Fatal(err)
				}
				defer h.Release()
				if tc.release {
					stop := context.AfterFunc(h.Context(), h.Release)
					defer stop()
				}
				begin := time.Now()
				if err := r.Delete(manager.WithActor(t.Context(), "bob"), b.ID); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took != tc.want {
					t.Errorf("it took %s, want %s", took, tc.want)
				}
				wantCode(t, context.Cause(h.Context()), sandpit.Gone)
				wantText(t, context.Cause(h.Context()), "killed by bob")
			})
		})
	}
}

func TestTombstone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{})
		if err := r.Delete(manager.WithActor(t.Context(), "bob"), b.ID); err != nil {
			t.Fatal(err)
		}
		if got := r.List(manager.Filter{}); len(got) != 0 {
			t.Errorf("list: %+v", got)
		}
		time.Sleep(59 * time.Minute)
		r.wantGone(t, b.ID, "killed by bob")
		r.close(t)
		r.open(t) // it is remembered by the next one
		r.wantGone(t, b.ID, "killed by bob")
		time.Sleep(2 * time.Minute)
		_, err := r.Use(t.Context(), b.ID)
		wantCode(t, err, sandpit.NotFound)
		wantText(t, err, "Sandbox "+string(b.ID)+" not found")
		_, err = r.store.Sandboxes().Sandbox(t.Context(), b.ID)
		wantCode(t, err, sandpit.NotFound)
	})
}

func TestSuspicion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		denied := sandpit.Errorf(sandpit.PermissionDenied, "no")
		refuse := func(actor string, n int, err error, restricted bool) {
			for range n {
				r.Events().Record(manager.Report{Actor: actor, Action: "read file", Err: err, Restricted: restricted})
			}
		}
		refuse("clumsy", 100, sandpit.Errorf(sandpit.Invalid, "no"), false)
		refuse("rare", 4, denied, false)
		time.Sleep(2 * time.Minute)
		refuse("rare", 4, denied, false)
		refuse("mallory", 4, sandpit.Errorf(sandpit.Invalid, "no"), true)
		refuse("mallory", 20, sandpit.Errorf(sandpit.Unauthenticated, "no"), false)
		time.Sleep(time.Minute + time.Second)
		refuse("mallory", 5, denied, false) // the next window
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := r.store.Events().ListEvents(t.Context(), store.EventFilter{Action: "suspicious"})
		if err != nil || len(list) != 2 || list[0].Actor != "mallory" || list[1].Actor != "mallory" {
			t.Errorf("events: %+v, %v; want one for each window", list, err)
		}
	})
}

// TestFloodOfEvents shows that an actor that is refused all the time adds few events to
// the trail, that their number is recorded, and that other actors lose none.
func TestFloodOfEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{Suspicion: manager.Suspicion{Refusals: 1 << 30}})
		denied := sandpit.Errorf(sandpit.PermissionDenied, "no")
		for range 1000 {
			r.Events().Record(manager.Report{Actor: "mallory", Action: "read file", Err: denied})
		}
		for range 2000 {
			r.Events().Record(manager.Report{Actor: "busy", Action: "run"})
		}
		for range 50 {
			r.Events().Record(manager.Report{Actor: "anna", Action: "run", Err: denied})
		}
		time.Sleep(3 * time.Minute)
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		count := func(actor string) (recorded int, omitted []string) {
			t.Helper()
			list, err := r.store.Events().ListEvents(t.Context(), store.EventFilter{Owner: actor, Limit: store.MaxEvents})
			if err != nil {
				t.Fatal(err)
			}
			for len(list) > 0 {
				for _, e := range list {
					if e.Action == "events omitted" {
						omitted = append(omitted, e.Args["events"])
						continue
					}
					recorded++
				}
				list, err = r.store.Events().ListEvents(t.Context(), store.EventFilter{Owner: actor, After: list[len(list)-1].Seq, Limit: store.MaxEvents})
				if err != nil {
					t.Fatal(err)
				}
			}
			return recorded, omitted
		}
		for actor, want := range map[string]struct {
			recorded int
			omitted  string
		}{"mallory": {60, "940"}, "busy": {1200, "800"}, "anna": {50, ""}} {
			if recorded, omitted := count(actor); recorded != want.recorded || strings.Join(omitted, " ") != want.omitted {
				t.Errorf("%s: %d events are recorded and %q omitted; want %d and %q", actor, recorded, omitted, want.recorded, want.omitted)
			}
		}
	})
}

// TestOwnersSeeTheirEvents shows which owner an event concerns: the owner of the sandbox, but the
// actor alone where it was refused.
func TestOwnersSeeTheirEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		s, err := r.Create(t.Context(), manager.CreateRequest{Owner: "bob"})
		if err != nil {
			t.Fatal(err)
		}
		r.Events().Record(manager.Report{Actor: "root", Action: "look", Sandbox: s.ID})
		r.Events().Record(manager.Report{Actor: "mallory", Action: "peek", Sandbox: s.ID, Err: sandpit.Errorf(sandpit.NotFound, "no")})
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		for owner, want := range map[string][]string{"bob": {"create", "look"}, "mallory": {"peek"}, "root": {"look"}} {
			list, err := r.store.Events().ListEvents(t.Context(), store.EventFilter{Owner: owner})
			var got []string
			for _, e := range list {
				got = append(got, e.Action)
			}
			if !slices.Equal(got, want) || err != nil {
				t.Errorf("%s sees %v, %v; want %v", owner, got, err, want)
			}
		}
	})
}
