package manager_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func (r *rig) get(tb testing.TB, id sandpit.ID) sandpit.Sandbox {
	tb.Helper()
	s, err := r.Get(id)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// TestIdleLosesNothing leaves a sandbox without a policy alone for days: it is suspended, and
// the next use resumes it with what was in it.
func TestIdleLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{})
		want := sandpit.Upcoming{Action: sandpit.ActionSuspend, At: b.LastUsedAt.Add(time.Hour), Cause: sandpit.CauseIdle}
		if b.Next != want || b.ResumesOnUse || b.Policy.IdleAction != sandpit.ActionSuspend || b.Policy.IdleTimeout != time.Hour {
			t.Errorf("a new sandbox: next %+v, resumes on use %t, %+v; want next %+v", b.Next, b.ResumesOnUse, b.Policy, want)
		}
		for _, alone := range []time.Duration{72 * time.Hour, 25 * time.Hour} {
			time.Sleep(alone)
			r.wantState(t, b.ID, sandpit.StatePaused)
			r.wantSuspended(t, b.ID, true)
			if got := r.get(t, b.ID); !got.ResumesOnUse || got.Next != (sandpit.Upcoming{}) || r.Rooms() != 0 {
				t.Errorf("suspended: %+v, it takes up %d", got, r.Rooms())
			}
			r.close(t)
			r.open(t) // the next server knows it as well
			h, err := r.Use(t.Context(), b.ID)
			if err != nil {
				t.Fatalf("use it: %v", err)
			}
			if got := r.get(t, b.ID); got.State != sandpit.StateRunning || got.ResumesOnUse || got.Next.Action != "" {
				t.Errorf("in use: %+v", got)
			}
			h.Release()
		}
		if got := r.get(t, b.ID).Next; !got.At.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("after use: next %+v", got)
		}
	})
}

// TestUseWhileIdling uses a sandbox at the moment when it is suspended or stopped because it is
// idle: the caller waits and gets it.
func TestUseWhileIdling(t *testing.T) {
	t.Parallel()
	for _, a := range []sandpit.Action{sandpit.ActionSuspend, sandpit.ActionStop, sandpit.ActionPause} {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, s := onStage(t, manager.Options{})
				b := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleTimeout: time.Minute, IdleAction: a}})
				s.set(10*time.Second, nil)
				time.Sleep(65 * time.Second)
				begin := time.Now()
				h, err := r.Use(t.Context(), b.ID)
				if err != nil {
					t.Fatal(err)
				}
				h.Release()
				if took := time.Since(begin); took < 10*time.Second || took > 20*time.Second {
					t.Errorf("it took %v, want what is left of the change and the way back", took)
				}
				r.wantState(t, b.ID, sandpit.StateRunning)
			})
		})
	}
}

// TestOnlyIdleResumesOnUse pauses and stops sandboxes by request and at their deadline: using
// them is refused, as before.
func TestOnlyIdleResumesOnUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		refused := func(b sandpit.Sandbox) {
			t.Helper()
			_, err := r.Use(t.Context(), b.ID)
			wantCode(t, err, sandpit.Conflict)
			if got := r.get(t, b.ID); got.ResumesOnUse {
				t.Errorf("%+v", got)
			}
		}
		for _, do := range []func(context.Context, sandpit.ID) error{r.Pause, r.Suspend, r.Stop} {
			b := r.create(t, manager.CreateRequest{})
			if err := do(t.Context(), b.ID); err != nil {
				t.Fatal(err)
			}
			refused(b)
		}
		for _, a := range []sandpit.Action{sandpit.ActionPause, sandpit.ActionSuspend, sandpit.ActionStop} {
			b := r.create(t, manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Now().Add(time.Minute), Action: a}})
			want := sandpit.Upcoming{Action: a, At: b.Lease.Deadline, Cause: sandpit.CauseDeadline}
			if diff := cmp.Diff(want, b.Next); diff != "" {
				t.Errorf("next (-want +got):\n%s", diff)
			}
			time.Sleep(2 * time.Minute)
			refused(b)
		}
		// One that was idle, and then stopped by a request.
		b := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleAction: sandpit.ActionPause}})
		time.Sleep(2 * time.Hour)
		if got := r.get(t, b.ID); got.State != sandpit.StatePaused || !got.ResumesOnUse {
			t.Errorf("%+v", got)
		}
		if err := r.Stop(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		refused(b)
	})
}

// limitedStage is a stage whose sandboxes have the abilities that limit leaves them.
type limitedStage struct {
	*stage

	limit func(*prop) sandpit.Instance
}

func (s limitedStage) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	i, err := s.stage.Create(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	return s.limit(i.(*prop)), nil
}

func (s limitedStage) Attach(ctx context.Context, handle []byte) (sandpit.Instance, error) {
	i, err := s.stage.Attach(ctx, handle)
	if err != nil {
		return nil, err
	}
	return s.limit(i.(*prop)), nil
}

// stopping can be stopped, and pausing paused in memory, and nothing else.
type (
	stopping struct {
		sandpit.Instance
		sandpit.Stopper
	}
	pausing struct {
		sandpit.Instance
		sandpit.Pauser
	}
	// unsuspendable finds out that it cannot be suspended when it is tried, and unstoppable
	// that it cannot be stopped either.
	unsuspendable struct{ *prop }
	unstoppable   struct{ unsuspendable }
)

func (unsuspendable) Suspend(context.Context) error {
	return sandpit.Errorf(sandpit.Unsupported, "not this one")
}

func (unstoppable) Stop(context.Context) error {
	return sandpit.Errorf(sandpit.Unsupported, "not this one")
}

// TestIdleFallback has idle sandboxes that cannot be suspended: they are stopped, or paused in
// memory, or left alone, and their policy says so. Nothing deletes them.
func TestIdleFallback(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limit       func(*prop) sandpit.Instance
		first, last sandpit.Action // what the policy says before and after the sandbox is idle
		want        sandpit.State
	}{
		"stop":       {func(p *prop) sandpit.Instance { return stopping{p, p} }, sandpit.ActionStop, sandpit.ActionStop, sandpit.StateStopped},
		"pause":      {func(p *prop) sandpit.Instance { return pausing{p, p} }, sandpit.ActionPause, sandpit.ActionPause, sandpit.StatePaused},
		"nothing":    {func(p *prop) sandpit.Instance { return &plain{p} }, "", "", sandpit.StateRunning},
		"late stop":  {func(p *prop) sandpit.Instance { return unsuspendable{p} }, sandpit.ActionSuspend, sandpit.ActionStop, sandpit.StateStopped},
		"late pause": {func(p *prop) sandpit.Instance { return unstoppable{unsuspendable{p}} }, sandpit.ActionSuspend, sandpit.ActionPause, sandpit.StatePaused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStage()
				r := newRig(t, manager.Options{Providers: map[string]sandpit.Provider{"stage": limitedStage{s, tc.limit}}})
				b := r.create(t, manager.CreateRequest{})
				if b.Policy.IdleAction != tc.first || b.Next.Action != tc.first {
					t.Errorf("before: %+v, next %+v; want %q", b.Policy, b.Next, tc.first)
				}
				time.Sleep(25 * time.Hour) // far longer than before it would have been deleted
				r.wantState(t, b.ID, tc.want)
				got := r.get(t, b.ID)
				if got.Policy.IdleAction != tc.last || got.Suspended {
					t.Errorf("after: %+v; want %q", got, tc.last)
				}
				if tc.last == "" && got.Policy.IdleTimeout >= 0 {
					t.Errorf("it can do nothing when it is idle, and the policy is %+v", got.Policy)
				}
				h, err := r.Use(t.Context(), b.ID)
				if err != nil {
					t.Fatalf("use it: %v", err)
				}
				h.Release()
				r.wantState(t, b.ID, sandpit.StateRunning)
				_, err = r.Create(t.Context(), manager.CreateRequest{Policy: store.Policy{IdleAction: sandpit.ActionSuspend}})
				if _, can := sandpit.As[sandpit.Suspender](tc.limit(&prop{})); !can {
					wantCode(t, err, sandpit.Unsupported) // it is asked for
				}
			})
		})
	}
}

// TestDeadlineFallback has a sandbox that cannot be suspended, which is asked for at its deadline.
func TestDeadlineFallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := func(p *prop) sandpit.Instance { return unsuspendable{p} }
		r := newRig(t, manager.Options{Providers: map[string]sandpit.Provider{"stage": limitedStage{newStage(), limit}}})
		b := r.create(t, manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Now().Add(time.Minute), Action: sandpit.ActionSuspend}})
		time.Sleep(2 * time.Minute)
		r.wantState(t, b.ID, sandpit.StateStopped)
		if got := r.get(t, b.ID); got.Lease.Action != sandpit.ActionStop {
			t.Errorf("lease %+v", got.Lease)
		}
	})
}

// TestServersIdleAction has a server choose what happens to sandboxes that do not.
func TestServersIdleAction(t *testing.T) {
	t.Parallel()
	for a, want := range map[sandpit.Action]sandpit.State{
		sandpit.ActionKill: sandpit.StateDeleted, sandpit.ActionStop: sandpit.StateStopped, sandpit.ActionPause: sandpit.StatePaused,
	} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := onStage(t, manager.Options{IdleAction: a, KeepDeleted: 10 * time.Hour})
			b := r.create(t, manager.CreateRequest{})
			other := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleAction: sandpit.ActionSuspend}})
			time.Sleep(2 * time.Hour)
			r.wantState(t, b.ID, want)
			r.wantSuspended(t, other.ID, true)
		})
	}
}

// TestSetDeadlineKeepsAction changes only the time.
func TestSetDeadlineKeepsAction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Now().Add(time.Hour), Action: sandpit.ActionPause}})
		set := func(l sandpit.Lease) {
			t.Helper()
			if err := r.SetDeadline(t.Context(), b.ID, l); err != nil {
				t.Fatal(err)
			}
		}
		set(sandpit.Lease{}) // never
		if got := r.get(t, b.ID); got.Lease.Action != sandpit.ActionPause || got.Next.Cause == sandpit.CauseDeadline {
			t.Errorf("without a deadline: %+v, next %+v", got.Lease, got.Next)
		}
		set(sandpit.Lease{Deadline: time.Now().Add(4 * time.Second)})
		time.Sleep(5 * time.Second)
		r.wantState(t, b.ID, sandpit.StatePaused)
		if err := r.Resume(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		set(sandpit.Lease{Deadline: time.Now().Add(4 * time.Second), Action: sandpit.ActionKill})
		time.Sleep(5 * time.Second)
		r.wantState(t, b.ID, sandpit.StateDeleted)
		wantCode(t, r.SetDeadline(t.Context(), b.ID, sandpit.Lease{}), sandpit.Gone)
	})
}

// TestSetPolicy changes what happens to sandboxes that are there.
func TestSetPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleTimeout: -1}})
		if got := b.Policy.IdleTimeout; got >= 0 {
			t.Errorf("a sandbox that is never idle has the timeout %v, which means another when it is sent back", got)
		}
		time.Sleep(time.Hour)
		if err := r.SetPolicy(t.Context(), b.ID, store.Policy{IdleTimeout: 10 * time.Minute, IdleAction: sandpit.ActionStop, AutoDelete: time.Hour}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Minute) // not at once, though it has been unused for longer
		r.wantState(t, b.ID, sandpit.StateRunning)
		time.Sleep(2 * time.Minute)
		r.wantState(t, b.ID, sandpit.StateStopped)
		want := sandpit.Upcoming{Action: sandpit.ActionKill, Cause: "stopped"}
		got := r.get(t, b.ID)
		want.At = got.ChangedAt.Add(time.Hour)
		if got.Next != want {
			t.Errorf("next %+v, want %+v", got.Next, want)
		}
		if err := r.SetPolicy(t.Context(), b.ID, store.Policy{}); err != nil { // of a stopped one
			t.Fatal(err)
		}
		time.Sleep(100 * time.Hour)
		r.wantState(t, b.ID, sandpit.StateStopped)
		if got := r.get(t, b.ID); got.Policy != (store.Policy{IdleTimeout: time.Hour, IdleAction: sandpit.ActionSuspend}) {
			t.Errorf("the default policy became %+v", got.Policy)
		}
		for _, bad := range []store.Policy{{AutoStop: -1}, {IdleAction: "explode"}, {IdleAction: sandpit.ActionArchive}, {CheckpointEvery: time.Minute}, {Recreate: -1}} {
			wantCode(t, r.SetPolicy(t.Context(), b.ID, bad), sandpit.Invalid)
		}
		wantCode(t, r.SetPolicy(t.Context(), sandpit.NewID(), store.Policy{}), sandpit.NotFound)
		if err := r.Delete(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		wantCode(t, r.SetPolicy(t.Context(), b.ID, store.Policy{}), sandpit.Gone)
		if got := r.events(t, b.ID); !slices.Contains(got, "manager: set policy ok") {
			t.Errorf("events: %q", got)
		}
	})
}

// TestSetPolicyUnsupported asks for what a provider cannot do: nothing changes.
func TestSetPolicyUnsupported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := func(p *prop) sandpit.Instance { return stopping{p, p} }
		r := newRig(t, manager.Options{Providers: map[string]sandpit.Provider{"stage": limitedStage{newStage(), limit}}})
		b := r.create(t, manager.CreateRequest{})
		for _, p := range []store.Policy{
			{IdleAction: sandpit.ActionSuspend},
			{IdleAction: sandpit.ActionPause},
			{AutoSuspend: time.Hour},
			{AutoArchive: time.Hour},
			{CheckpointEvery: time.Hour, Recreate: 1},
		} {
			wantCode(t, r.SetPolicy(t.Context(), b.ID, p), sandpit.Unsupported)
		}
		if got := r.get(t, b.ID); got.Policy != b.Policy {
			t.Errorf("the policy is %+v, want %+v", got.Policy, b.Policy)
		}
	})
}

// TestUpcoming tells what happens next in each state.
func TestUpcoming(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	for name, tc := range map[string]struct {
		policy store.Policy
		lease  time.Duration
		action sandpit.Action // of the lease
		do     []func(context.Context, *rig, sandpit.ID) error
		want   sandpit.Action
		after  time.Duration
		cause  string
	}{
		"never idle":         {policy: store.Policy{IdleTimeout: -1}},
		"auto stop":          {policy: store.Policy{AutoStop: 2 * hour}, want: sandpit.ActionStop, after: 2 * hour, cause: sandpit.CauseIdle},
		"auto suspend":       {policy: store.Policy{AutoSuspend: 2 * hour}, want: sandpit.ActionSuspend, after: 2 * hour, cause: sandpit.CauseIdle},
		"kill":               {policy: store.Policy{IdleAction: sandpit.ActionKill}, want: sandpit.ActionKill, after: hour, cause: sandpit.CauseIdle},
		"a later deadline":   {lease: 2 * hour, action: sandpit.ActionStop, want: sandpit.ActionSuspend, after: hour, cause: sandpit.CauseIdle},
		"an earlier one":     {lease: hour / 2, action: sandpit.ActionStop, want: sandpit.ActionStop, after: hour / 2, cause: sandpit.CauseDeadline},
		"checkpoints":        {policy: store.Policy{Recreate: 1, CheckpointEvery: time.Minute}, want: sandpit.ActionSuspend, after: hour, cause: sandpit.CauseIdle},
		"paused":             {do: []func(context.Context, *rig, sandpit.ID) error{pauseIt}},
		"paused, freezing":   {policy: store.Policy{AutoSuspend: hour}, do: []func(context.Context, *rig, sandpit.ID) error{pauseIt}, want: sandpit.ActionSuspend, after: hour, cause: "paused"},
		"paused, killed":     {lease: hour, action: sandpit.ActionKill, do: []func(context.Context, *rig, sandpit.ID) error{pauseIt}, want: sandpit.ActionKill, after: hour, cause: sandpit.CauseDeadline},
		"stopped, archiving": {policy: store.Policy{AutoArchive: hour}, do: []func(context.Context, *rig, sandpit.ID) error{stopIt}, want: sandpit.ActionArchive, after: hour, cause: "stopped"},
		"archived":           {policy: store.Policy{AutoDelete: hour}, do: []func(context.Context, *rig, sandpit.ID) error{stopIt, archiveIt}, want: sandpit.ActionKill, after: hour, cause: "archived"},
		"deleted":            {do: []func(context.Context, *rig, sandpit.ID) error{deleteIt}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, _ := onStage(t, manager.Options{})
				request := manager.CreateRequest{Policy: tc.policy, Lease: sandpit.Lease{Action: tc.action}}
				if tc.lease > 0 {
					request.Lease.Deadline = time.Now().Add(tc.lease)
				}
				b := r.create(t, request)
				for _, do := range tc.do {
					if err := do(t.Context(), r, b.ID); err != nil {
						t.Fatal(err)
					}
				}
				got, want := r.get(t, b.ID).Next, sandpit.Upcoming{}
				if tc.want != "" {
					want = sandpit.Upcoming{Action: tc.want, At: time.Now().Add(tc.after), Cause: tc.cause}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if list := r.List(manager.Filter{States: []sandpit.State{r.state(b.ID)}}); len(list) != 1 || list[0].Next != got {
					t.Errorf("the list has %+v", list)
				}
				if tc.want == "" {
					return
				}
				time.Sleep(tc.after + time.Second) // it is true
				after := map[sandpit.Action]sandpit.State{
					sandpit.ActionKill: sandpit.StateDeleted, sandpit.ActionStop: sandpit.StateStopped,
					sandpit.ActionSuspend: sandpit.StatePaused, sandpit.ActionArchive: sandpit.StateArchived,
				}
				r.wantState(t, b.ID, after[tc.want])
			})
		})
	}
}

func pauseIt(ctx context.Context, r *rig, id sandpit.ID) error   { return r.Pause(ctx, id) }
func stopIt(ctx context.Context, r *rig, id sandpit.ID) error    { return r.Stop(ctx, id) }
func archiveIt(ctx context.Context, r *rig, id sandpit.ID) error { return r.Archive(ctx, id) }
func deleteIt(ctx context.Context, r *rig, id sandpit.ID) error  { return r.Delete(ctx, id) }

// TestIdleAndCrash kills the manager while it suspends an idle sandbox: the next use resumes it.
func TestIdleAndCrash(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	b := r.create(t, manager.CreateRequest{Policy: store.Policy{IdleTimeout: 50 * time.Millisecond}})
	r.cable.hang(fake.OpSuspend)
	eventually(t, "it is being suspended", func() bool { return r.cable.holding() > 0 })
	r.crash(t)
	r.open(t)
	eventually(t, "it is suspended", func() bool { return r.state(b.ID) == sandpit.StatePaused })
	if got := r.get(t, b.ID); !got.ResumesOnUse {
		t.Errorf("%+v", got)
	}
	h, err := r.Use(t.Context(), b.ID)
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
}

// TestIdleWithoutRoom has no space to suspend an idle sandbox: it keeps running.
func TestIdleWithoutRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, manager.Options{})
		b := r.create(t, manager.CreateRequest{})
		s.set(0, sandpit.Errorf(sandpit.Exhausted, "no space"))
		time.Sleep(10 * time.Hour)
		r.wantState(t, b.ID, sandpit.StateRunning)
		if got := r.get(t, b.ID).Next; got.Action != sandpit.ActionSuspend || !got.At.After(time.Now()) {
			t.Errorf("next %+v, want the next try", got)
		}
		s.set(0, nil)
		time.Sleep(2 * time.Hour)
		r.wantSuspended(t, b.ID, true)
	})
}

// TestForkKeepsPolicy copies sandboxes with their policies.
func TestForkKeepsPolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	for _, p := range []store.Policy{{}, {IdleTimeout: -1}, {IdleTimeout: time.Hour, IdleAction: sandpit.ActionStop, AutoDelete: time.Hour}} {
		b := r.create(t, manager.CreateRequest{Policy: p})
		made, err := r.Snapshots().Fork(t.Context(), manager.ForkRequest{Sandbox: b.ID})
		if err != nil {
			t.Fatal(err)
		}
		if made[0].Policy != b.Policy {
			t.Errorf("the copy has %+v, want %+v", made[0].Policy, b.Policy)
		}
	}
}
