package e2b_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api/e2b"
)

// workshop builds templates of nothing, as soon as it may.
type workshop struct {
	hold    chan struct{} // builds wait until it is closed; nil: they do not
	failure error
	begun   atomic.Int64
}

func (*workshop) PrepareTemplate(context.Context, manager.TemplateJob) (func(), error) {
	return func() {}, nil
}

func (w *workshop) BuildTemplate(ctx context.Context, j manager.TemplateJob) (int64, error) {
	w.begun.Add(1)
	j.Begin(1, 2, "run the first step")
	if w.hold != nil {
		select {
		case <-w.hold:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return 10, w.failure
}

func (*workshop) RemoveTemplate(context.Context, sandpit.BuildID) error { return nil }

func builtinRig(t *testing.T, w *workshop, change func(*e2b.Options)) *rig {
	t.Helper()
	return newRigOf(t, manager.Options{
		Builder: w, BuilderProvider: "fake", Builtins: map[string]sandpit.Recipe{"base": {From: "host"}, "browser": {From: "host"}},
	}, change)
}

const madeOf = `{"allow_internet_access":false,"templateID":`

// TestBaseIsBuilt has many clients request "base" at once: it is built once, clients that
// cannot wait hear what is done, and then all have a sandbox of it.
func TestBaseIsBuilt(t *testing.T) {
	t.Parallel()
	w := &workshop{hold: make(chan struct{})}
	r := builtinRig(t, w, func(o *e2b.Options) { o.BuildPatience = 100 * time.Millisecond })
	for range 3 {
		r.do(t, r.Ann, http.MethodPost, "/sandboxes", madeOf+`"base"}`).want(t, http.StatusServiceUnavailable, "template base is being built")
	}
	r.do(t, r.Bob, http.MethodGet, "/templates", "").want(t, http.StatusOK, `"buildStatus":"building"`)
	got := r.do(t, r.Bob, http.MethodPost, "/sandboxes", madeOf+`"base"}`)
	got.want(t, http.StatusServiceUnavailable, "run the first step")
	close(w.hold)
	for _, key := range []string{r.Ann, r.Bob} {
		eventuallyMade(t, r, key, "base")
	}
	if n := w.begun.Load(); n != 1 {
		t.Errorf("%d builds, want 1", n)
	}
	if list := r.List(manager.Filter{}); len(list) != 2 || list[0].Spec.Template.Name != "base" || list[0].Spec.Template.Name != list[1].Spec.Template.Name {
		t.Errorf("sandboxes %+v", list)
	}
	r.do(t, r.Ann, http.MethodDelete, "/templates/base", "").want(t, http.StatusForbidden, "configuration")
	r.do(t, r.Ann, http.MethodGet, "/templates/aliases/base", "").want(t, http.StatusOK, `"templateID":"base"`)
}

// eventuallyMade makes a sandbox of a template that is about to be ready.
func eventuallyMade(t *testing.T, r *rig, key, template string) {
	t.Helper()
	for begun := time.Now(); ; {
		got := r.do(t, key, http.MethodPost, "/sandboxes", madeOf+`"`+template+`"}`)
		if got.Status == http.StatusCreated {
			return
		}
		if got.Status != http.StatusServiceUnavailable || time.Since(begun) > long {
			t.Fatalf("%s: %d %s", template, got.Status, got.Body)
		}
	}
}

// TestWhatBaseMeans takes away, one after the other, what comes first of what "base" means.
func TestWhatBaseMeans(t *testing.T) {
	t.Parallel()
	w := &workshop{}
	images := map[string]sandpit.Image{"base": "template:configured"}
	r := builtinRig(t, w, func(o *e2b.Options) { o.Templates = images })
	build := func(owner, name string) sandpit.TemplateID {
		made, b, err := r.Templates().Create(t.Context(), manager.TemplateRequest{Owner: owner, Name: name})
		if err == nil {
			err = r.Builds().Start(t.Context(), manager.BuildRequest{Owner: owner, Build: b.ID, Recipe: sandpit.Recipe{From: "host"}, Admin: true})
		}
		for err == nil && b.Status != sandpit.BuildReady {
			b, err = r.Builds().Get(t.Context(), owner, b.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		return made.ID
	}
	means := func(key string, want sandpit.TemplateID, what string) {
		t.Helper()
		id := sandpit.ID(r.madeBy(t, key, madeOf+`"base"}`))
		for _, box := range r.List(manager.Filter{}) {
			if box.ID == id && box.Spec.Template.Template != want {
				t.Errorf("base is %+v, want %s", box.Spec.Template, what)
			}
		}
	}
	own, public, configured := build("ann", "base"), build("root", "base"), build("root", "configured")
	for _, name := range []string{"base", "configured"} {
		if _, err := r.Templates().SetPublic(t.Context(), "root", name, true, true); err != nil {
			t.Fatal(err)
		}
	}
	means(r.Ann, own, "her own")
	means(r.Bob, public, "the public one")
	if err := r.Templates().Delete(t.Context(), "ann", "base"); err != nil {
		t.Fatal(err)
	}
	means(r.Ann, public, "the public one")
	if err := r.Templates().Delete(t.Context(), "root", "base"); err != nil {
		t.Fatal(err)
	}
	means(r.Ann, configured, "that of the configuration")
	delete(images, "base")
	eventuallyMade(t, r, r.Ann, "base")
	builtin, err := r.Templates().Get(t.Context(), "ann", "base")
	if err != nil || builtin.Owner != manager.BuiltinOwner {
		t.Fatalf("%+v, %v", builtin, err)
	}
	means(r.Ann, builtin.ID, "the built-in one")
	// An owner may have one of the name of any other, by E2B's API as well.
	r.do(t, r.Bob, http.MethodPost, "/v3/templates", `{"name":"base"}`).want(t, http.StatusAccepted, "")
}

// TestBaseCannotBeBuilt has the default image stand for "base", and no image for others.
func TestBaseCannotBeBuilt(t *testing.T) {
	t.Parallel()
	w := &workshop{failure: sandpit.Errorf(sandpit.Unavailable, "mirror 192.0.2.1 does not answer")}
	r := builtinRig(t, w, func(o *e2b.Options) { o.Default = "host" })
	id := sandpit.ID(r.madeBy(t, r.Ann, madeOf+`"base"}`))
	if list := r.List(manager.Filter{}); len(list) != 1 || list[0].ID != id || list[0].Spec.Template.Template != "" {
		t.Errorf("sandboxes %+v", list)
	}
	got := r.do(t, r.Ann, http.MethodPost, "/sandboxes", madeOf+`"browser"}`)
	got.want(t, http.StatusServiceUnavailable, "the build of template browser failed")
	if strings.Contains(got.Body, "192.0.2.1") {
		t.Errorf("an ordinary key hears %s", got.Body)
	}
	r.do(t, r.Admin, http.MethodPost, "/sandboxes", madeOf+`"browser"}`).want(t, http.StatusServiceUnavailable, "192.0.2.1")
	r.do(t, r.Ann, http.MethodPost, "/sandboxes", madeOf+`"nothing"}`).want(t, http.StatusNotFound, "sandpit template build -t NAME")
}
