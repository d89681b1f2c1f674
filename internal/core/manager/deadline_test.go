package manager_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

func TestDeadline(t *testing.T) {
	t.Parallel()
	for action, want := range map[sandpit.Action]sandpit.State{
		"": sandpit.StateDeleted, sandpit.ActionKill: sandpit.StateDeleted,
		sandpit.ActionStop: sandpit.StateStopped, sandpit.ActionPause: sandpit.StatePaused,
	} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, _ := onStage(t, manager.Options{})
				lease := sandpit.Lease{Deadline: time.Now().Add(90*time.Second + 123*time.Microsecond), Action: action}
				b := r.create(t, manager.CreateRequest{Lease: lease})
				h, err := r.Use(t.Context(), b.ID) // which does not hinder it
				if err != nil {
					t.Fatal(err)
				}
				stop := context.AfterFunc(h.Context(), h.Release)
				defer stop()
				time.Sleep(90*time.Second - 10*time.Millisecond)
				r.wantState(t, b.ID, sandpit.StateRunning)
				time.Sleep(60 * time.Millisecond)
				r.wantState(t, b.ID, want)
				if got, _ := r.Get(b.ID); got.Reason != "deadline" {
					t.Errorf("reason %q", got.Reason)
				}
				wantText(t, context.Cause(h.Context()), "deadline")
				if want == sandpit.StateDeleted {
					return
				}
				// It runs as long again, each time that it resumes.
				for range 2 {
					time.Sleep(10 * time.Minute)
					next, err := r.Wake(t.Context(), b.ID)
					if err != nil {
						t.Fatal(err)
					}
					next.Release()
					time.Sleep(90*time.Second - 10*time.Millisecond)
					r.wantState(t, b.ID, sandpit.StateRunning)
					time.Sleep(60 * time.Millisecond)
					r.wantState(t, b.ID, want)
				}
			})
		})
	}
}

func TestSetDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{IdleTimeout: 1000 * time.Hour})
		in := func(d time.Duration) sandpit.Lease { return sandpit.Lease{Owner: "eve", Deadline: time.Now().Add(d)} }
		b := r.create(t, manager.CreateRequest{Owner: "ann", Lease: in(time.Minute)})
		set := func(l sandpit.Lease) {
			t.Helper()
			if err := r.SetDeadline(t.Context(), b.ID, l); err != nil {
				t.Fatal(err)
			}
		}
		set(in(time.Hour)) // later
		time.Sleep(59 * time.Minute)
		r.wantState(t, b.ID, sandpit.StateRunning)
		set(sandpit.Lease{}) // never
		time.Sleep(2 * time.Hour)
		r.wantState(t, b.ID, sandpit.StateRunning)
		wantCode(t, r.SetDeadline(t.Context(), b.ID, in(-time.Second)), sandpit.Invalid)
		wantCode(t, r.SetDeadline(t.Context(), b.ID, sandpit.Lease{Action: "explode"}), sandpit.Invalid)
		set(in(time.Hour))
		set(in(time.Second)) // sooner
		if got, _ := r.Get(b.ID); got.Lease.Owner != "ann" {
			t.Errorf("the owner became %q", got.Lease.Owner)
		}
		time.Sleep(1100 * time.Millisecond)
		r.wantGone(t, b.ID, "deadline")
		wantCode(t, r.SetDeadline(t.Context(), b.ID, in(time.Hour)), sandpit.Gone)
		wantCode(t, r.SetDeadline(t.Context(), sandpit.NewID(), in(time.Hour)), sandpit.NotFound)
	})
}

// TestEarlyMessage has the queue say that a deadline has come, which the row does
// not: as when it was moved and the queue could not be told.
func TestEarlyMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Now().Add(30 * time.Minute)}})
		_, err := r.store.Queue().Schedule(t.Context(), queue.Message{
			Topic: r.store.Identity(), Sandbox: b.ID, Kind: "deadline", Due: time.Now(),
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(29 * time.Minute)
		r.wantState(t, b.ID, sandpit.StateRunning)
		time.Sleep(time.Minute + 100*time.Millisecond)
		r.wantGone(t, b.ID, "deadline")
	})
}

// TestDeadlineIsRetried has the action fail: nothing swallows that.
func TestDeadlineIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Now().Add(time.Minute), Action: sandpit.ActionPause}})
		s.set(0, sandpit.Errorf(sandpit.Unavailable, "out of order"))
		time.Sleep(2 * time.Minute)
		r.wantState(t, b.ID, sandpit.StateRunning)
		if got := r.events(t, b.ID); !slices.Contains(got, "manager: pause unavailable") {
			t.Errorf("events: %q", got)
		}
		s.set(0, nil)
		time.Sleep(5 * time.Minute)
		r.wantState(t, b.ID, sandpit.StatePaused)
	})
}

// TestDeadLetters has the action fail for so long that the queue gives up: the
// sweep does not.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Now().Add(time.Minute)}})
		s.set(0, sandpit.Errorf(sandpit.Internal, "broken"))
		time.Sleep(100 * time.Minute)
		r.wantState(t, b.ID, sandpit.StateDeleting)
		_, err := r.Use(t.Context(), b.ID)
		wantCode(t, err, sandpit.Gone)
		s.set(0, nil)
		time.Sleep(30 * time.Minute)
		r.wantGone(t, b.ID, "deadline")
	})
}

// TestUnknownMessage has the queue deliver what another version scheduled: it is kept for an
// administrator, without a retry, and the sandbox stays.
func TestUnknownMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{})
		if _, err := r.store.Queue().Schedule(t.Context(), queue.Message{Topic: r.store.Identity(), Sandbox: b.ID, Kind: "hibernate", Due: time.Now()}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second) // the queue is looked at every minute
		dead, err := r.store.Queue().List(t.Context(), queue.Filter{Sandbox: b.ID, Dead: true})
		if err != nil || len(dead) != 1 || dead[0].Attempts != 1 || !strings.Contains(dead[0].LastError, `unknown message kind "hibernate"`) {
			t.Errorf("dead letters: %+v, %v", dead, err)
		}
		r.wantState(t, b.ID, sandpit.StateRunning)
	})
}
