package manager_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	h, err := r.Use(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	r.cable.hang(fake.OpPause)
	paused := make(chan error, 1)
	other := r.create(t, manager.CreateRequest{})
	go func() { paused <- r.Pause(t.Context(), other.ID) }()
	eventually(t, "it pauses", func() bool { return r.cable.holding() == 1 })
	closed := make(chan error, 1)
	go func() { closed <- r.Close(t.Context()) }()
	eventually(t, "it closes", func() bool { return r.Stats().IsShuttingDown })
	_, err = r.Create(t.Context(), manager.CreateRequest{})
	wantCode(t, err, sandpit.Unavailable)
	_, err = r.Use(t.Context(), s.ID)
	wantCode(t, err, sandpit.Unavailable)
	wantCode(t, r.Stop(t.Context(), s.ID), sandpit.Unavailable)
	wantCode(t, r.Delete(t.Context(), s.ID), sandpit.Unavailable)
	<-h.Context().Done()
	wantCode(t, context.Cause(h.Context()), sandpit.Unavailable)
	r.cable.release()
	if err := errors.Join(<-paused, <-closed, r.store.Close()); err != nil {
		t.Fatal(err)
	}
	if view, _ := r.world.Look(s.ID); view.State != fake.Running {
		t.Errorf("it is %q, want it untouched", view.State)
	}
	r.open(t)
	r.wantState(t, s.ID, sandpit.StateRunning)
	r.wantState(t, other.ID, sandpit.StatePaused)
}

// TestCloseIsBounded interrupts an operation that does not end; the next manager
// finishes it.
func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{})
	r.world.Inject(fake.Fault{Op: fake.OpStop, Delay: time.Hour})
	stopped := make(chan error, 1)
	go func() { stopped <- r.Stop(t.Context(), s.ID) }()
	eventually(t, "it stops", func() bool { return r.world.Calls(fake.OpStop, s.ID) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wantText(t, r.Close(ctx), "1 operations were interrupted")
	wantCode(t, <-stopped, sandpit.Unavailable)
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	r.open(t)
	if got := r.state(s.ID); got != sandpit.StateRunning && got != sandpit.StateStopped {
		t.Errorf("it is %q", got)
	}
}

func TestDestroyOnClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{DestroyOnClose: true, MaxSandboxes: 20, Retry: time.Hour})
	for range 9 {
		r.create(t, manager.CreateRequest{})
	}
	stubborn := r.create(t, manager.CreateRequest{})
	remove := r.world.Inject(fake.Fault{Op: fake.OpDestroy, ID: stubborn.ID, Err: errOrdered, Times: -1})
	err := errors.Join(r.Close(t.Context()), r.store.Close())
	wantText(t, err, "delete sandbox "+string(stubborn.ID))
	if left := r.world.Leftovers(); len(left) != 1 {
		t.Errorf("left: %q, want one", left)
	}
	remove()
	r.open(t)
	eventually(t, "the last one is gone", func() bool { return r.state(stubborn.ID) == sandpit.StateDeleted })
}

// TestCloseWithPoolLogsNoWarning closes a manager with spares, which end with it.
func TestCloseWithPoolLogsNoWarning(t *testing.T) {
	t.Parallel()
	r := newRig(t, withPool(2, 2))
	r.filled(t, 2)
	r.create(t, manager.CreateRequest{})
	r.close(t)
	if text := r.log.String(); strings.Contains(text, "level=WARN") || strings.Contains(text, "level=ERROR") {
		t.Errorf("the log has warnings:\n%s", text)
	}
	r.open(t)
}
