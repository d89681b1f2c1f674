package manager_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// long is how long a test waits for what must come.
const long = 20 * time.Second

func builtinRig(tb testing.TB, s *shop) *rig {
	tb.Helper()
	return templateRig(tb, s, manager.Options{Builtins: map[string]sandpit.Recipe{"base": {From: "host"}}})
}

// TestBuiltinIsBuiltOnce requests a built-in template many times at once: there is one
// build, which all wait for, and which every owner then finds unless they have their own.
func TestBuiltinIsBuiltOnce(t *testing.T) {
	t.Parallel()
	s := &shop{hold: make(chan struct{})}
	r := builtinRig(t, s)
	ctx := t.Context()
	if _, err := r.Templates().Get(ctx, "ann", "base"); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("before anybody has requested it: %v", err)
	}
	if b, err := r.Builtins().Await(ctx, "base", time.Millisecond); err != nil || b.Status != sandpit.BuildBuilding {
		t.Fatalf("while it is built: %+v, %v", b, err)
	}
	var waiting sync.WaitGroup
	for range 20 {
		waiting.Go(func() {
			if b, err := r.Builtins().Await(ctx, "base", long); err != nil || b.Status != sandpit.BuildReady {
				t.Errorf("awaited: %+v, %v", b, err)
			}
		})
	}
	close(s.hold)
	waiting.Wait()
	if n := s.count(); n != 1 {
		t.Errorf("%d builds, want 1", n)
	}
	found, err := r.Templates().Get(ctx, "ann", "base")
	if err != nil || found.Owner != manager.BuiltinOwner || !found.Public {
		t.Errorf("ann finds %+v, %v", found, err)
	}
	box, err := r.Create(ctx, manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Image: "template:base"}})
	if err != nil || box.Spec.Template.Template != found.ID {
		t.Errorf("a sandbox of it: %+v, %v", box.Spec.Template, err)
	}
	own, _ := r.built(t, "ann", "base", sandpit.Recipe{From: "host"})
	if found, err := r.Templates().Get(ctx, "ann", "base"); err != nil || found.ID != own.ID {
		t.Errorf("with one of her own, ann finds %+v, %v", found, err)
	}
	if found, err := r.Templates().Get(ctx, "bob", "base"); err != nil || found.Owner != manager.BuiltinOwner {
		t.Errorf("bob finds %+v, %v", found, err)
	}
	if err := r.Templates().Delete(ctx, "bob", "base"); sandpit.CodeOf(err) != sandpit.PermissionDenied {
		t.Errorf("bob removes it: %v", err)
	}
	for name, ask := range map[string]func(context.Context, string) (manager.Builtin, error){"prepare": r.Builtins().Prepare, "get": r.Builtins().Get} {
		_, err := ask(ctx, "nothing")
		if want := sandpit.NoBuiltinTemplate("nothing", []string{"base"}); sandpit.CodeOf(err) != sandpit.NotFound || err.Error() != want.Error() || sandpit.HintOf(err) != sandpit.HintOf(want) {
			t.Errorf("%s: one that is not part of the program: %v (%s)", name, err, sandpit.HintOf(err))
		}
	}
}

// TestBuiltinFails has the build of a built-in template fail: it is not tried again for
// each request, but after a restart that interrupted it.
func TestBuiltinFails(t *testing.T) {
	t.Parallel()
	s := &shop{failure: sandpit.Errorf(sandpit.Unavailable, "no mirror answers")}
	r := builtinRig(t, s)
	ctx := t.Context()
	for range 3 {
		b, err := r.Builtins().Await(ctx, "base", long)
		if err != nil || b.Status != sandpit.BuildFailed || b.Reason != "no mirror answers" {
			t.Fatalf("%+v, %v", b, err)
		}
	}
	if rows, err := r.store.Templates().ListBuilds(ctx, store.BuildFilter{}); err != nil || len(rows) != 1 {
		t.Errorf("%d builds, %v, want 1", len(rows), err)
	}
	if _, err := r.Create(ctx, manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Image: "template:base"}}); err == nil {
		t.Error("a sandbox was made of it")
	}

	s = &shop{hold: make(chan struct{})}
	r = builtinRig(t, s)
	if b, err := r.Builtins().Prepare(ctx, "base"); err != nil || b.Status != sandpit.BuildBuilding {
		t.Fatalf("%+v, %v", b, err)
	}
	eventually(t, "it has begun", func() bool { return len(r.placed(t)) == 1 })
	r.crash(t)
	close(s.hold)
	r.open(t)
	if b, err := r.Builtins().Await(ctx, "base", long); err != nil || b.Status != sandpit.BuildReady {
		t.Errorf("after a crash: %+v, %v", b, err)
	}
}

// TestBuiltinIsRenewed has a program with another recipe build it again, while the old one
// is used.
func TestBuiltinIsRenewed(t *testing.T) {
	t.Parallel()
	s := &shop{}
	r := builtinRig(t, s)
	ctx := t.Context()
	first, err := r.Builtins().Await(ctx, "base", long)
	if err != nil || first.Status != sandpit.BuildReady {
		t.Fatalf("%+v, %v", first, err)
	}
	r.close(t)
	r.o.Builtins = map[string]sandpit.Recipe{"base": {From: "host", Labels: map[string]string{"a": "b"}}}
	r.open(t)
	seen, err := r.Builtins().Await(ctx, "base", long)
	if err != nil || seen.Status != sandpit.BuildReady || seen.Build != first.Build {
		t.Errorf("at once: %+v, %v", seen, err)
	}
	eventually(t, "the new one is ready", func() bool {
		now, err := r.Builtins().Get(ctx, "base")
		return err == nil && now.Status == sandpit.BuildReady && now.Build != first.Build
	})
}

// TestTemplateLimitsThatCannotHold makes sandboxes of a template whose limits this machine
// cannot enforce: they are left out, in builds and in sandboxes, and others are kept.
func TestTemplateLimitsThatCannotHold(t *testing.T) {
	t.Parallel()
	s := &shop{}
	r := templateRig(t, s, manager.Options{Enforceable: func(provider string, limits sandpit.Resources) sandpit.Resources {
		if provider != "fake" {
			t.Errorf("provider %q", provider)
		}
		limits.Memory, limits.CPUs = 0, 0
		return limits
	}})
	r.built(t, "ann", "tools", sandpit.Recipe{From: "host", Resources: sandpit.Resources{Memory: 1 << 30, CPUs: 2, PIDs: 100}})
	box, err := r.Create(t.Context(), manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Image: "template:tools"}})
	if err != nil || box.Spec.Resources != (sandpit.Resources{PIDs: 100}) {
		t.Errorf("%+v, %v", box.Spec.Resources, err)
	}
	asked := sandpit.Resources{Memory: 1 << 20}
	box, err = r.Create(t.Context(), manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Image: "template:tools", Resources: asked}})
	if err != nil || box.Spec.Resources.Memory != asked.Memory {
		t.Errorf("asked for: %+v, %v", box.Spec.Resources, err)
	}
}
