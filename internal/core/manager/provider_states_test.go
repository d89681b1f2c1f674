package manager_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

var queueAll = queue.Filter{Limit: queue.MaxList}

// writeKept uses a sandbox and writes its file "kept".
func writeKept(t *testing.T, r *rig, id sandpit.ID) {
	t.Helper()
	h, err := r.Use(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	if err := h.Guest().WriteFile(t.Context(), "", "kept", strings.NewReader("text"), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// wantKept uses a sandbox and reads its file.
func wantKept(t *testing.T, r *rig, id sandpit.ID) {
	t.Helper()
	h, err := r.Use(t.Context(), id)
	if err != nil {
		t.Fatalf("use it: %v", err)
	}
	defer h.Release()
	f, err := h.Guest().ReadFile(t.Context(), "", "kept")
	if err != nil {
		t.Fatalf("read the file: %v", err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "text" {
		t.Errorf("the file has %q, %v", text, err)
	}
	r.wantState(t, id, sandpit.StateRunning)
}

func reconcileNow(t *testing.T, r *rig, _ sandpit.ID) {
	t.Helper()
	r.Reconcile(t.Context())
}

// useUnconfirmed uses a sandbox whose provider has not been asked for a while.
func useUnconfirmed(t *testing.T, r *rig, id sandpit.ID) {
	t.Helper()
	if err := r.ForgetConfirmation(id); err != nil {
		t.Fatal(err)
	}
	wantKept(t, r, id)
}

// TestProviderStops has a provider stop a sandbox by itself, and finds that out in each way. The
// sandbox is not lost, and its next use finds its files.
func TestProviderStops(t *testing.T) {
	t.Parallel()
	for to, want := range map[fake.State]sandpit.State{
		fake.Paused: sandpit.StatePaused, fake.Suspended: sandpit.StatePaused, fake.Stopped: sandpit.StateStopped, fake.Archived: sandpit.StateArchived,
	} {
		for name, detect := range map[string]func(*testing.T, *rig, sandpit.ID){
			"its end is watched for": func(*testing.T, *rig, sandpit.ID) {},
			"reconciled":             reconcileNow,
			"used":                   useUnconfirmed,
			"while no server runs":   nil,
		} {
			t.Run(string(to)+", "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, manager.Options{})
				watched := name == "its end is watched for"
				if !watched {
					r.world.Inject(fake.Fault{Op: fake.OpWait, Delay: time.Hour, Times: -1})
				}
				s := r.create(t, manager.CreateRequest{})
				writeKept(t, r, s.ID)
				if detect == nil {
					r.crash(t)
				}
				if err := r.world.StopOnItsOwn(t.Context(), s.ID, to); err != nil {
					t.Fatal(err)
				}
				if detect == nil {
					r.open(t)
				} else {
					detect(t, r, s.ID)
				}
				if name != "used" {
					eventually(t, "it is "+string(want), func() bool { return r.state(s.ID) == want })
					got := r.get(t, s.ID)
					if !got.ResumesOnUse || !strings.Contains(got.Reason, "its provider fake has changed it") {
						t.Errorf("resumes on use %t, reason %q", got.ResumesOnUse, got.Reason)
					}
				}
				wantKept(t, r, s.ID)
				if watched { // also from now on
					if err := r.world.Kill(s.ID, sandpit.Exit{Known: true, Reason: "out of memory"}); err != nil {
						t.Fatal(err)
					}
					eventually(t, "its end is seen", func() bool { return r.state(s.ID) == sandpit.StateDeleted })
				}
			})
		}
	}
}

// TestProviderStopsInSession stops a sandbox while it is used: its users lose their handles, and the
// next call finds the files.
func TestProviderStopsInSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	writeKept(t, r, s.ID)
	h, err := r.Use(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.world.StopOnItsOwn(t.Context(), s.ID, fake.Stopped); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.Context().Done():
		wantCode(t, context.Cause(h.Context()), sandpit.Conflict)
	case <-time.After(15 * time.Second):
		t.Error("its user keeps the handle")
	}
	h.Release()
	wantKept(t, r, s.ID)
}

// TestProviderStopsUnnoticed stops a sandbox right after a use. The call that meets this fails, and
// the next use resumes the sandbox.
func TestProviderStopsUnnoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	r.world.Inject(fake.Fault{Op: fake.OpWait, Delay: time.Hour, Times: -1})
	s := r.create(t, manager.CreateRequest{})
	writeKept(t, r, s.ID)
	if err := r.world.StopOnItsOwn(t.Context(), s.ID, fake.Stopped); err != nil {
		t.Fatal(err)
	}
	h, err := r.Use(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Guest().ReadFile(t.Context(), "", "kept")
	wantCode(t, err, sandpit.Conflict)
	h.Release()
	wantKept(t, r, s.ID)
}

// TestProviderStarts has a person start a stopped sandbox in the provider's console.
func TestProviderStarts(t *testing.T) {
	t.Parallel()
	for _, end := range []func(*manager.Manager, context.Context, sandpit.ID) error{
		(*manager.Manager).Stop, (*manager.Manager).Pause, (*manager.Manager).Suspend,
	} {
		r := newRig(t, manager.Options{})
		s := r.create(t, manager.CreateRequest{})
		if err := end(r.Manager, t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if err := r.world.RunOnItsOwn(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		r.Reconcile(t.Context())
		r.wantState(t, s.ID, sandpit.StateRunning)
		if r.Rooms() != 1 {
			t.Errorf("it takes up %d", r.Rooms())
		}
	}
}

// TestStaleState has a provider list a state that the sandbox does not have any more.
func TestStaleState(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	r.cable.lies(func(list []sandpit.Placement) []sandpit.Placement {
		for i := range list {
			list[i].State = sandpit.StateStopped
		}
		return list
	})
	r.Reconcile(t.Context())
	r.wantState(t, s.ID, sandpit.StateRunning)
}

// TestStateUnknown uses a sandbox whose provider does not answer whether it runs.
func TestStateUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	writeKept(t, r, s.ID)
	r.world.Inject(fake.Fault{Op: fake.OpReadState, Err: errOrdered})
	if err := r.ForgetConfirmation(s.ID); err != nil {
		t.Fatal(err)
	}
	wantKept(t, r, s.ID)
	if !strings.Contains(r.log.String(), "state of sandbox unknown") {
		t.Error("it is not logged")
	}
}

// TestExpiry checks the expiry that a provider gets for a sandbox.
func TestExpiry(t *testing.T) {
	t.Parallel()
	const margin = 10 * time.Minute
	r := newRig(t, manager.Options{
		RenewEvery: 50 * time.Millisecond, ProviderLimits: map[string]manager.ProviderLimits{"fake": {Delete: 24 * time.Hour}},
	})
	expiry := func(id sandpit.ID) sandpit.Expiry { v, _ := r.world.Look(id); return v.Expiry }
	endless := r.create(t, manager.CreateRequest{})
	want := sandpit.Expiry{Action: sandpit.ActionSuspend, IdleStop: time.Hour + margin, Delete: 24*time.Hour + margin}
	if got := expiry(endless.ID); got != want {
		t.Errorf("without a deadline: %+v, want %+v", got, want)
	}
	at := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	s := r.create(t, manager.CreateRequest{
		Lease:  sandpit.Lease{Deadline: at, Action: sandpit.ActionStop},
		Policy: store.Policy{AutoStop: time.Minute, AutoArchive: time.Hour, AutoDelete: 2 * time.Hour},
	})
	want = sandpit.Expiry{
		Deadline: at.Add(margin), Action: sandpit.ActionStop, IdleStop: time.Minute + margin, Archive: time.Hour + margin, Delete: 2*time.Hour + margin,
	}
	if got := expiry(s.ID); !got.Deadline.Equal(want.Deadline) || got.Action != want.Action || got.IdleStop != want.IdleStop ||
		got.Archive != want.Archive || got.Delete != want.Delete {
		t.Errorf("with a policy: %+v, want %+v", got, want)
	}
	later := at.Add(time.Hour)
	if err := r.SetDeadline(t.Context(), s.ID, sandpit.Lease{Deadline: later}); err != nil {
		t.Fatal(err)
	}
	if got := expiry(s.ID).Deadline; !got.Equal(later.Add(margin)) {
		t.Errorf("after another deadline: %v", got)
	}
	if err := r.SetPolicy(t.Context(), s.ID, store.Policy{AutoDelete: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if got := expiry(s.ID).Delete; got != time.Hour+margin {
		t.Errorf("after another policy: deleted after %v", got)
	}
	calls := r.world.Calls(fake.OpRenew, s.ID)
	eventually(t, "it is renewed while it runs", func() bool { return r.world.Calls(fake.OpRenew, s.ID) > calls+2 })

	r.world.Inject(fake.Fault{Op: fake.OpRenew, ID: s.ID, Err: sandpit.Errorf(sandpit.Invalid, "%w", sandpit.ErrDeadlineTooLate)})
	if err := r.SetDeadline(t.Context(), s.ID, sandpit.Lease{Deadline: later}); err != nil {
		t.Fatal(err)
	}
	r.world.Inject(fake.Fault{Op: fake.OpRenew, ID: s.ID, Err: errOrdered})
	eventually(t, "a failure is logged", func() bool { return strings.Contains(r.log.String(), "expiry of sandbox not renewed") })
	calls = r.world.Calls(fake.OpRenew, s.ID)
	eventually(t, "it is tried again", func() bool { return r.world.Calls(fake.OpRenew, s.ID) > calls })
	if err := r.Stop(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	calls = r.world.Calls(fake.OpRenew, s.ID)
	time.Sleep(200 * time.Millisecond)
	if n := r.world.Calls(fake.OpRenew, s.ID); n != calls {
		t.Error("it is renewed although it is stopped")
	}
	if err := r.Start(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if n := r.world.Calls(fake.OpRenew, s.ID); n == calls {
		t.Error("it is not renewed when it starts")
	}
}

// TestExpiryTooLate falls back to the provider's latest deadline.
func TestExpiryTooLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	r.world.Inject(fake.Fault{Op: fake.OpRenew, Err: sandpit.Errorf(sandpit.Invalid, "%w", sandpit.ErrDeadlineTooLate)})
	if err := r.SetDeadline(t.Context(), s.ID, sandpit.Lease{Deadline: time.Now().Add(time.Hour), Action: sandpit.ActionStop}); err != nil {
		t.Fatal(err)
	}
	if v, _ := r.world.Look(s.ID); !v.Expiry.Deadline.IsZero() || v.Expiry.Action != sandpit.ActionStop || r.world.Calls(fake.OpRenew, s.ID) != 2 {
		t.Errorf("expiry %+v after %d calls", v.Expiry, r.world.Calls(fake.OpRenew, s.ID))
	}
}

// TestExpiryOfCloud creates and renews sandboxes at a cloud that allows an hour, and whose action at
// the expiry cannot change.
func TestExpiryOfCloud(t *testing.T) {
	t.Parallel()
	world := newWorld(t)
	r := newRig(t, manager.Options{Providers: map[string]sandpit.Provider{"cloud": world.NewCloud(sandpit.Account{MaxLifetime: time.Hour})}})
	expiry := func(id sandpit.ID) sandpit.Expiry { v, _ := world.Look(id); return v.Expiry }
	tooLate, fixed := sandpit.Errorf(sandpit.Invalid, "an hour at most: %w", sandpit.ErrDeadlineTooLate), sandpit.Errorf(sandpit.Unsupported, "the action cannot change")
	inject := func(op fake.Op, errs ...error) {
		for _, err := range errs {
			world.Inject(fake.Fault{Op: op, Err: err})
		}
	}
	lease := sandpit.Lease{Deadline: time.Now().Add(5 * time.Hour), Action: sandpit.ActionKill}
	inject(fake.OpCreate, tooLate)
	s := r.create(t, manager.CreateRequest{Lease: lease})
	if got := expiry(s.ID); !got.Deadline.IsZero() || got.Action != sandpit.ActionSuspend {
		t.Errorf("created with %+v, want the latest deadline, at which it is kept", got)
	}
	inject(fake.OpRenew, fixed, tooLate)
	if err := r.SetDeadline(t.Context(), s.ID, lease); err != nil {
		t.Fatal(err)
	}
	if got := expiry(s.ID); !got.Deadline.IsZero() || got.Action != sandpit.ActionSuspend || world.Calls(fake.OpRenew, s.ID) != 3 {
		t.Errorf("renewed with %+v after %d calls", got, world.Calls(fake.OpRenew, s.ID))
	}
	inject(fake.OpRenew, fixed, fixed)
	lease.Action = sandpit.ActionStop
	if err := r.SetDeadline(t.Context(), s.ID, lease); err != nil {
		t.Fatal(err)
	}
	if got := expiry(s.ID); got.Action != sandpit.ActionKill || got.Deadline.IsZero() {
		t.Errorf("renewed with %+v, want the only action that is possible", got)
	}
	inject(fake.OpRenew, fixed, fixed, fixed)
	if err := r.SetDeadline(t.Context(), s.ID, lease); err != nil || !strings.Contains(r.log.String(), "expiry of sandbox not renewed") {
		t.Errorf("nothing is possible: %v, and it is logged: %t", err, strings.Contains(r.log.String(), "not renewed"))
	}
	inject(fake.OpCreate, tooLate, tooLate)
	_, err := r.Create(t.Context(), manager.CreateRequest{Lease: lease})
	wantCode(t, err, sandpit.Invalid)
}

// TestInvalidAtCloud has a cloud refuse what is not about deadlines: the request is not repeated.
func TestInvalidAtCloud(t *testing.T) {
	t.Parallel()
	world := newWorld(t)
	r := newRig(t, manager.Options{Providers: map[string]sandpit.Provider{"cloud": world.NewCloud(sandpit.Account{MaxLifetime: time.Hour})}})
	lease := sandpit.Lease{Deadline: time.Now().Add(5 * time.Hour), Action: sandpit.ActionKill}
	refused := sandpit.Errorf(sandpit.Invalid, "the template does not exist")
	world.Inject(fake.Fault{Op: fake.OpCreate, Err: refused})
	_, err := r.Create(t.Context(), manager.CreateRequest{Lease: lease})
	wantCode(t, err, sandpit.Invalid)
	s := r.create(t, manager.CreateRequest{})
	world.Inject(fake.Fault{Op: fake.OpRenew, Err: refused})
	if err := r.SetDeadline(t.Context(), s.ID, lease); err != nil {
		t.Fatal(err)
	}
	if n := world.Calls(fake.OpRenew, s.ID); n != 1 || !strings.Contains(r.log.String(), "the template does not exist") {
		t.Errorf("%d attempts to renew, log %s", n, r.log.String())
	}
}

// TestStoppedIsPaused has a cloud that only pauses: a stopped sandbox stays stopped.
func TestStoppedIsPaused(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	if err := r.Stop(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	r.cable.lies(func(list []sandpit.Placement) []sandpit.Placement {
		for i := range list {
			list[i].State = sandpit.StatePaused
		}
		return list
	})
	r.Reconcile(t.Context())
	r.wantState(t, s.ID, sandpit.StateStopped)
	if n := r.world.Calls(fake.OpReadState, s.ID); n != 0 {
		t.Errorf("the state is read %d times, as if it differed", n)
	}
}

// TestProviderHours uses up the hours of a provider: nothing starts there, and what runs is suspended.
func TestProviderHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		next := sleepUntilMonthEnds(6 * time.Hour)
		near, far := newStage(), newStage()
		r := newRig(t, manager.Options{
			Provider: "near", Fallbacks: []string{"far"}, Providers: map[string]sandpit.Provider{"near": near, "far": far},
			ProviderLimits: map[string]manager.ProviderLimits{"near": {MaxHours: 4}},
		})
		never := store.Policy{IdleTimeout: -1}
		one, two := r.create(t, manager.CreateRequest{Policy: never}), r.create(t, manager.CreateRequest{Policy: never})
		time.Sleep(90 * time.Minute)
		if err := r.Stop(t.Context(), two.ID); err != nil { // after 3 hours in all
			t.Fatal(err)
		}
		r.close(t)
		time.Sleep(30 * time.Minute) // the first one runs on without a server
		r.open(t)
		used := func() time.Duration { return r.ProviderStatuses()[1].Used }
		if got := used(); got != 210*time.Minute {
			t.Errorf("used %v, want 3h30m", got)
		}
		r.wantState(t, one.ID, sandpit.StateRunning)
		time.Sleep(32 * time.Minute)
		r.wantState(t, one.ID, sandpit.StatePaused)
		if got := r.get(t, one.ID).Reason; got != "provider near has used its 4 sandbox hours of this month" {
			t.Errorf("reason %q", got)
		}
		s := r.create(t, manager.CreateRequest{Policy: never})
		if s.Provider != "far" {
			t.Errorf("created by %q", s.Provider)
		}
		_, err := r.Use(t.Context(), one.ID)
		wantCode(t, err, sandpit.Exhausted)
		wantCode(t, r.Start(t.Context(), two.ID), sandpit.Exhausted)
		if got := used(); got > 4*time.Hour+2*time.Minute {
			t.Errorf("used %v", got)
		}
		time.Sleep(time.Until(next.Add(time.Minute)))
		if err := r.Start(t.Context(), two.ID); err != nil {
			t.Errorf("in the next month: %v", err)
		}
	})
}

// sleepUntilMonthEnds sleeps until a while before the next month begins, and returns its beginning. A manager that ran
// meanwhile would take a test's time.
func sleepUntilMonthEnds(before time.Duration) (next time.Time) {
	now := time.Now().UTC()
	next = time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)
	time.Sleep(time.Until(next.Add(-before)))
	return next
}

// TestProviderHoursAcrossMonths has a sandbox run without a server while a month begins.
func TestProviderHoursAcrossMonths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		next := sleepUntilMonthEnds(time.Hour)
		r := newRig(t, manager.Options{
			Provider: "near", Providers: map[string]sandpit.Provider{"near": newStage()},
			ProviderLimits: map[string]manager.ProviderLimits{"near": {MaxHours: 4}},
		})
		one := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleTimeout: -1}})
		time.Sleep(30 * time.Minute)
		r.close(t)
		time.Sleep(time.Until(next.Add(3 * time.Hour)))
		r.open(t)
		if got := r.ProviderStatuses()[0].Used; got != 3*time.Hour {
			t.Errorf("used %v in the new month, want 3h", got)
		}
		time.Sleep(62 * time.Minute)
		r.wantState(t, one.ID, sandpit.StatePaused)
	})
}

// TestUndeletable reports a sandbox that its provider does not delete.
func TestUndeletable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{})
		s.set(0, sandpit.Errorf(sandpit.Unavailable, "down"))
		wantCode(t, r.Delete(t.Context(), b.ID), sandpit.Unavailable)
		const message = "manager: sandbox cannot be deleted"
		time.Sleep(9 * time.Minute)
		if strings.Contains(r.log.String(), message) || r.ProviderStatuses()[0].Undeletable != 0 {
			t.Error("it is reported too early")
		}
		time.Sleep(time.Hour)
		if n := strings.Count(r.log.String(), message); n != 1 || r.ProviderStatuses()[0].Undeletable != 1 {
			t.Errorf("it is logged %d times; status %+v", n, r.ProviderStatuses()[0])
		}
		if !strings.Contains(strings.Join(r.events(t, b.ID), "\n"), "cannot be deleted") {
			t.Errorf("events: %q", r.events(t, b.ID))
		}
		s.set(0, nil)
		time.Sleep(3 * time.Hour)
		if got := r.ProviderStatuses()[0].Undeletable; got != 0 {
			t.Errorf("it is deleted, but %d are reported", got)
		}
	})
}

// claimable is a stage whose sandboxes can be claimed.
type claimable struct{ *stage }

func (c claimable) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	i, err := c.stage.Create(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	return claimed{i.(*prop)}, nil
}

type claimed struct{ *prop }

func (claimed) Claim(context.Context, sandpit.Spec) error { return nil }

// TestProviderHoursOfSpares counts the hours of spares, too. When they are used up, spares are deleted, and none is
// claimed any more.
func TestProviderHoursOfSpares(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, manager.Options{
			Provider: "near", Fallbacks: []string{"far"}, Providers: map[string]sandpit.Provider{"near": claimable{newStage()}, "far": newStage()},
			ProviderLimits: map[string]manager.ProviderLimits{"near": {MaxHours: 4}}, Pools: []manager.Pool{{Spec: kind, Size: 2}},
		})
		time.Sleep(90 * time.Minute)
		r.filled(t, 2)
		if got := r.ProviderStatuses()[1].Used.Round(time.Minute); got != 3*time.Hour {
			t.Errorf("used %v, want the 3h of two spares", got)
		}
		time.Sleep(30*time.Minute + time.Second) // before the next look
		if s := r.create(t, manager.CreateRequest{Spec: kind}); s.Provider != "far" {
			t.Errorf("created by %q, whose hours are used up", s.Provider)
		}
		time.Sleep(time.Hour)
		r.filled(t, 0)
		if got := r.ProviderStatuses()[1]; got.Sandboxes != 0 || got.Used > 4*time.Hour+5*time.Minute {
			t.Errorf("%d spares are left; used %v", got.Sandboxes, got.Used)
		}
	})
}
