package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

func TestNameIsUnique(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	named := func(owner, name string) func(*store.Row) {
		return func(r *store.Row) { r.Lease.Owner, r.Spec.Name, r.Pool = owner, name, "" }
	}
	work := insert(t, s, named("ann", "work"))
	insert(t, s, named("bob", "work"))
	insert(t, s, named("ann", ""))
	insert(t, s, named("ann", ""))
	insert(t, s, func(r *store.Row) { named("ann", "work")(r); r.Pool = "p" })
	insert(t, s, func(r *store.Row) { named("ann", "work")(r); r.State = sandpit.StateDeleted })
	insert(t, s, func(r *store.Row) { named("ann", "work")(r); r.State = sandpit.StateDeleting })
	again := row()
	named("ann", "work")(&again)
	_, err := s.Sandboxes().InsertSandbox(t.Context(), again)
	want(t, err, sandpit.AlreadyExists, `the name "work" is taken by sandbox `+string(work.ID))

	other := insert(t, s, named("ann", "other"))
	other.Spec.Name = "work"
	_, err = s.Sandboxes().UpdateSandbox(t.Context(), other)
	want(t, err, sandpit.AlreadyExists, `the name "work" is taken by sandbox `+string(work.ID))
	if got, err := s.Sandboxes().SandboxByName(t.Context(), "ann", "work"); err != nil || got.ID != work.ID {
		t.Errorf("%v, %v; want %s", got.ID, err, work.ID)
	}
	for _, missing := range []string{"", "none"} {
		_, err := s.Sandboxes().SandboxByName(t.Context(), "ann", missing)
		want(t, err, sandpit.NotFound, "")
	}

	work.State = sandpit.StateDeleting
	if _, err := s.Sandboxes().UpdateSandbox(t.Context(), work); err != nil {
		t.Fatal(err)
	}
	if other, err = s.Sandboxes().UpdateSandbox(t.Context(), other); err != nil {
		t.Fatalf("the name of a sandbox that is being deleted is not free: %v", err)
	}
	if got, err := s.Sandboxes().SandboxByName(t.Context(), "ann", "work"); err != nil || cmp.Diff(other, got) != "" {
		t.Errorf("%v, %v; want %s", got.ID, err, other.ID)
	}
}

func TestNameIsUniqueUnderConcurrency(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	codes := together(16, func() error {
		r := row()
		r.Pool, r.Spec.Name = "", "work"
		_, err := s.Sandboxes().InsertSandbox(t.Context(), r)
		return err
	})
	if diff := cmp.Diff(map[sandpit.Code]int{"": 1, sandpit.AlreadyExists: 15}, codes); diff != "" {
		t.Errorf("16 sandboxes of one name (-want +got):\n%s", diff)
	}
}
