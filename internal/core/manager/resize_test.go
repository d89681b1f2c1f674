package manager_test

import (
	"errors"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// TestResize changes limits, which the next manager still has.
func TestResize(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	box := r.create(t, manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Resources: sandpit.Resources{Memory: 1 << 30, PIDs: 50}}})
	want := func(limits sandpit.Resources) {
		t.Helper()
		s, err := r.Get(box.ID)
		if view, _ := r.world.Look(box.ID); err != nil || s.Spec.Resources != limits || view.Resources != limits {
			t.Errorf("limits %+v, %v; of the provider %+v; want %+v", s.Spec.Resources, err, view.Resources, limits)
		}
	}
	resize := func(limits sandpit.Resources, code sandpit.Code) {
		t.Helper()
		if err := r.Resize(t.Context(), box.ID, limits); sandpit.CodeOf(err) != code {
			t.Errorf("resize to %+v: %v, want %q", limits, err, code)
		}
	}
	resize(sandpit.Resources{Memory: -1}, sandpit.Invalid)
	resize(sandpit.Resources{Memory: 1 << 29}, sandpit.Conflict)
	r.world.Inject(fake.Fault{Op: fake.OpResize, Err: sandpit.Errorf(sandpit.Unsupported, "no"), Times: 1})
	resize(sandpit.Resources{Memory: 2 << 30}, sandpit.Unsupported)
	want(sandpit.Resources{Memory: 1 << 30, PIDs: 50})
	resize(sandpit.Resources{Memory: 2 << 30, CPUs: 2}, "")
	want(sandpit.Resources{Memory: 2 << 30, CPUs: 2, PIDs: 50})
	r.crash(t)
	r.open(t)
	want(sandpit.Resources{Memory: 2 << 30, CPUs: 2, PIDs: 50})
	if err := r.Stop(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	resize(sandpit.Resources{Memory: 1 << 29}, "")
	want(sandpit.Resources{Memory: 1 << 29, CPUs: 2, PIDs: 50})
}

// TestResizeInterrupted ends the manager after the provider has changed the limits and before they
// are written.
func TestResizeInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	box := r.create(t, manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Resources: sandpit.Resources{Memory: 1 << 30}}})
	row, err := r.store.Sandboxes().Sandbox(t.Context(), box.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.crash(t)
	p := r.world.NewProvider()
	i, err := p.Attach(t.Context(), row.Handle)
	if err != nil {
		t.Fatal(err)
	}
	want := sandpit.Resources{Memory: 2 << 30}
	if err := errors.Join(i.(sandpit.Resizer).Resize(t.Context(), want), p.Close()); err != nil {
		t.Fatal(err)
	}
	r.open(t)
	if s := r.get(t, box.ID); s.Spec.Resources != want {
		t.Errorf("limits %+v, want %+v", s.Spec.Resources, want)
	}
}
