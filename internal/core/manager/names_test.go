package manager_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

func named(owner, name string) manager.CreateRequest {
	return manager.CreateRequest{Owner: owner, Spec: sandpit.Spec{Name: name}}
}

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	ctx := t.Context()
	work := r.create(t, named("ann", "work"))
	r.create(t, named("bob", "work"))
	_, err := r.Create(ctx, named("ann", "work"))
	wantCode(t, err, sandpit.AlreadyExists)
	wantText(t, err, `the name "work" is taken by sandbox `+string(work.ID))
	if hint := sandpit.HintOf(err); !strings.Contains(hint, "sandpit rm "+string(work.ID)) {
		t.Errorf("hint %q", hint)
	}
	// Copies have no name, so one that has a name can be copied more than once.
	for range 2 {
		copies, err := r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: work.ID, Count: 2})
		if err != nil || copies[0].Spec.Name != "" {
			t.Fatalf("%+v, %v", copies, err)
		}
	}
	if err := r.Stop(ctx, work.ID); err != nil {
		t.Fatal(err)
	}
	_, err = r.Create(ctx, named("ann", "work"))
	wantCode(t, err, sandpit.AlreadyExists)
	r.close(t)
	r.open(t)
	_, err = r.Create(ctx, named("ann", "work"))
	wantCode(t, err, sandpit.AlreadyExists)
	if err := r.Delete(ctx, work.ID); err != nil {
		t.Fatal(err)
	}
	again := r.create(t, named("ann", "work"))
	if again.ID == work.ID {
		t.Error("the deleted sandbox is back")
	}
}

func TestNameOfARepeatedRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	request := named("ann", "work")
	request.Key = "k"
	first, again := r.create(t, request), r.create(t, request)
	if first.ID != again.ID {
		t.Errorf("%s and %s", first.ID, again.ID)
	}
	request.Key = "other"
	_, err := r.Create(t.Context(), request)
	wantCode(t, err, sandpit.AlreadyExists)
}

func TestInvalidNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	box := r.create(t, named("ann", "ok"))
	for _, name := range []string{"a b", "\x1b[2J", "näme", "-x", ".x", "a/b", "a:b", strings.Repeat("x", 64), string(sandpit.NewID()), "a\n"} {
		_, err := r.Create(t.Context(), named("ann", name))
		wantCode(t, err, sandpit.Invalid)
		wantText(t, err, "invalid name")
		wantCode(t, r.Rename(t.Context(), box.ID, name), sandpit.Invalid)
	}
}

func TestRename(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	ctx := t.Context()
	work, other := r.create(t, named("ann", "work")), r.create(t, named("ann", "other"))
	bobs := r.create(t, named("bob", "bobs"))
	wantCode(t, r.Rename(ctx, other.ID, "work"), sandpit.AlreadyExists)
	for id, name := range map[sandpit.ID]string{work.ID: "work", bobs.ID: "other", other.ID: "better"} {
		if err := r.Rename(ctx, id, name); err != nil {
			t.Errorf("rename %s to %s: %v", id, name, err)
		}
	}
	if err := r.Stop(ctx, other.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Rename(ctx, other.ID, "best"); err != nil {
		t.Error(err)
	}
	if err := r.Rename(ctx, work.ID, ""); err != nil {
		t.Error(err)
	}
	r.close(t)
	r.open(t)
	for id, name := range map[sandpit.ID]string{work.ID: "", bobs.ID: "other", other.ID: "best"} {
		if got, err := r.Get(id); err != nil || got.Spec.Name != name {
			t.Errorf("%s is called %q, %v; want %q", id, got.Spec.Name, err, name)
		}
	}
	r.create(t, named("ann", "work"))
	if err := r.Delete(ctx, other.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.Rename(ctx, other.ID, "x"), sandpit.Gone)
	wantCode(t, r.Rename(ctx, sandpit.NewID(), "x"), sandpit.NotFound)
}

func TestNamesUnderConcurrency(t *testing.T) {
	t.Parallel()
	o := withPool(2, 0)
	r := newRig(t, o)
	r.filled(t, 2)
	var mu sync.Mutex
	codes := map[sandpit.Code]int{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			_, err := r.Create(t.Context(), named("ann", "work"))
			mu.Lock()
			defer mu.Unlock()
			codes[sandpit.CodeOf(err)]++
		})
	}
	group.Wait()
	if codes[""] != 1 || codes[sandpit.AlreadyExists] != 7 {
		t.Errorf("8 sandboxes of one name: %v", codes)
	}
	if list := r.List(manager.Filter{Owner: "ann"}); len(list) != 1 {
		t.Errorf("%d sandboxes, want 1", len(list))
	}
	eventually(t, "the pool is full again", func() bool {
		found, err := r.world.NewProvider().List(t.Context())
		return err == nil && len(found) == 3
	})
}
