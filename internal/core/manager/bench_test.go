package manager_test

import (
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// fill writes a thousand rows of sandboxes that are on a stage.
func fill(b *testing.B) *rig {
	b.Helper()
	s := newStage()
	r := newRig(b, manager.Options{Providers: map[string]sandpit.Provider{"stage": s}, MaxSandboxes: 1000})
	for range 1000 {
		r.create(b, manager.CreateRequest{
			Owner: "ann", Spec: sandpit.Spec{Labels: map[string]string{"project": "p"}},
			Lease: sandpit.Lease{Deadline: time.Now().Add(time.Hour)}, Policy: store.Policy{IgnoreBackground: true},
		})
	}
	return r
}

// BenchmarkOpen opens a manager that adopts 1,000 sandboxes, the store included.
func BenchmarkOpen(b *testing.B) {
	r := fill(b)
	r.close(b)
	for b.Loop() {
		r.open(b)
		b.StopTimer()
		r.close(b)
		b.StartTimer()
	}
}

// BenchmarkList lists 1,000 sandboxes by owner and label.
func BenchmarkList(b *testing.B) {
	r := fill(b)
	for b.Loop() {
		if got := r.List(manager.Filter{Owner: "ann", Labels: map[string]string{"project": "p"}}); len(got) != 1000 {
			b.Fatalf("%d sandboxes", len(got))
		}
	}
}

// BenchmarkUse takes and releases a handle, beside 999 other sandboxes.
func BenchmarkUse(b *testing.B) {
	r := fill(b)
	id := r.List(manager.Filter{Limit: 1})[0].ID
	for b.Loop() {
		h, err := r.Use(b.Context(), id)
		if err != nil {
			b.Fatal(err)
		}
		h.Release()
	}
}

// BenchmarkCreate makes and deletes a sandbox that costs nothing: what is left is
// the manager's own work, three writes and more.
func BenchmarkCreate(b *testing.B) {
	s := newStage()
	r := newRig(b, manager.Options{Providers: map[string]sandpit.Provider{"stage": s}})
	for b.Loop() {
		sb := r.create(b, manager.CreateRequest{})
		if err := r.Delete(b.Context(), sb.ID); err != nil {
			b.Fatal(err)
		}
	}
}
