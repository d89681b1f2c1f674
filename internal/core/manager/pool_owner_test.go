package manager_test

import (
	"context"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// waiting returns the ID of the only sandbox there is, which waits in a pool.
func (r *rig) waiting(tb testing.TB) sandpit.ID {
	tb.Helper()
	list, err := r.world.NewProvider().List(tb.Context())
	if err != nil || len(list) != 1 {
		tb.Fatalf("%+v, %v; want one sandbox", list, err)
	}
	return list[0].ID
}

// TestPoolIsNobodys asks for a sandbox by its ID that waits in a pool: it is not there,
// until it is claimed.
func TestPoolIsNobodys(t *testing.T) {
	t.Parallel()
	o := withPool(1, 0)
	o.Pools[0].Warm = func(ctx context.Context, i sandpit.Instance, _ sandpit.Spec) error {
		p, err := i.Guest().Start(ctx, sandpit.Command{Args: []string{"echo", "of the warm-up"}})
		if err == nil {
			_, err = p.Wait(ctx)
		}
		return err
	}
	r := newRig(t, o)
	r.filled(t, 1)
	id, ctx := r.waiting(t), t.Context()
	for what, call := range map[string]func() error{
		"get":      func() error { _, err := r.Get(id); return err },
		"use":      func() error { _, err := r.Use(ctx, id); return err },
		"wake":     func() error { _, err := r.Wake(ctx, id); return err },
		"measure":  func() error { _, err := r.Usage().Measure(ctx, id); return err },
		"pause":    func() error { return r.Pause(ctx, id) },
		"label":    func() error { return r.SetLabels(ctx, id, nil) },
		"deadline": func() error { return r.SetDeadline(ctx, id, sandpit.Lease{}) },
	} {
		if err := call(); sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("%s: %v, want not found", what, err)
		}
	}
	if err := r.Delete(ctx, id); err != nil { // as of any that is unknown
		t.Error(err)
	}
	r.filled(t, 1)
	if s := r.create(t, manager.CreateRequest{Spec: kind}); s.ID != id {
		t.Fatalf("got %s, want %s, which was waiting", s.ID, id)
	}
	h, err := r.Use(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	journal, ok := h.Guest().(sandpit.Journal)
	if !ok {
		t.Fatal("there is no journal")
	}
	if list, err := journal.ListCommands(ctx); err != nil || len(list) != 0 {
		t.Errorf("commands of the previous user: %+v, %v", list, err)
	}
}

// TestPoolWithoutNetwork asks for a sandbox with a network, and a pool has such without
// one: they are of different kinds, and nothing of the pool is spoilt.
func TestPoolWithoutNetwork(t *testing.T) {
	t.Parallel()
	r := newRig(t, withPool(1, 0))
	r.filled(t, 1)
	id := r.waiting(t)
	online := kind.Clone()
	online.Network.Online = true
	_, err := r.Create(t.Context(), manager.CreateRequest{Spec: online})
	if sandpit.CodeOf(err) != sandpit.Unsupported { // a fake one has none
		t.Errorf("a sandbox with a network: %v", err)
	}
	if n := r.world.Calls(fake.OpClaim, id); n != 0 {
		t.Errorf("the one that waits was claimed %d times", n)
	}
	if s := r.create(t, manager.CreateRequest{Spec: kind}); s.ID != id {
		t.Errorf("got %s, want %s, which was waiting", s.ID, id)
	}
}

// TestDefaultsCanBeDeclined has a default network and a default lifetime, and requests
// that want neither.
func TestDefaultsCanBeDeclined(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{
		Lifetime: time.Hour, CompleteSpec: func(_ string, s *sandpit.Spec) { s.Network.Online = true },
	})
	if _, err := r.Create(t.Context(), manager.CreateRequest{}); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("the default network: %v", err)
	}
	s := r.create(t, manager.CreateRequest{Offline: true})
	if s.Spec.Network.Online || s.Lease.Deadline.IsZero() {
		t.Errorf("offline: %+v until %v", s.Spec.Network, s.Lease.Deadline)
	}
	s = r.create(t, manager.CreateRequest{Offline: true, Endless: true})
	if !s.Lease.Deadline.IsZero() {
		t.Errorf("an endless one ends at %v", s.Lease.Deadline)
	}
	for _, p := range []sandpit.NetworkPolicy{{Online: true}, {Deny: []string{"10.0.0.0/8"}}} {
		_, err := r.Create(t.Context(), manager.CreateRequest{Offline: true, Spec: sandpit.Spec{Network: p}})
		if sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("offline with %+v: %v", p, err)
		}
	}
}

// TestEndsAreTold hears of ends, with their reasons.
func TestEndsAreTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	told := make(chan string, 8)
	r.OnEnd(func(id sandpit.ID, why error) { told <- string(id) + ": " + why.Error() })
	s := r.create(t, manager.CreateRequest{Owner: "me"})
	for _, step := range []func(context.Context, sandpit.ID) error{r.Pause, r.Resume, r.Stop, r.Start, r.Delete} {
		if err := step(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	id := string(s.ID)
	for _, want := range []string{
		id + ": sandbox " + id + " is stopping", id + ": sandbox " + id + " is gone: killed by me",
	} {
		if got := <-told; got != want {
			t.Errorf("told: %s; want %s", got, want)
		}
	}
	if len(told) > 0 {
		t.Errorf("told besides: %s", <-told)
	}
	lost := r.create(t, manager.CreateRequest{})
	if err := r.world.Kill(lost.ID, sandpit.Exit{Known: true, Code: 1, Reason: "it fell over"}); err != nil {
		t.Fatal(err)
	}
	if got, want := <-told, string(lost.ID)+": sandbox "+string(lost.ID)+" is gone: it fell over"; got != want {
		t.Errorf("told: %s; want %s", got, want)
	}
}

// TestStates reports every change of a sandbox's state, and none of spares.
func TestStates(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	changes := make(chan string, 32)
	r.OnState(func(b sandpit.Sandbox, from sandpit.State) {
		changes <- b.Lease.Owner + " " + string(from) + " " + string(b.State)
	})
	s := r.create(t, manager.CreateRequest{Owner: "me"})
	for _, step := range []func(context.Context, sandpit.ID) error{r.Pause, r.Resume, r.Stop, r.Delete} {
		if err := step(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"creating running", "running pausing", "pausing paused", "paused resuming", "resuming running", "running stopping", "stopping stopped",
		"stopped deleting", "deleting deleted",
	} {
		if got := <-changes; got != "me "+want {
			t.Errorf("change: %s; want me %s", got, want)
		}
	}
	if len(changes) > 0 {
		t.Errorf("another change: %s", <-changes)
	}
}
