package manager_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// shop builds templates of nothing: what the test has set, in a sandbox of its own.
type shop struct {
	hold chan struct{} // builds wait until it is closed; nil: they do not

	mu      sync.Mutex
	jobs    []manager.TemplateJob
	missing error // why the base of no build can be had
	images  map[sandpit.BuildID]bool
	failure error
}

func (s *shop) PrepareTemplate(context.Context, manager.TemplateJob) (func(), error) {
	return func() {}, s.missing
}

func (s *shop) BuildTemplate(ctx context.Context, j manager.TemplateJob) (int64, error) {
	box, err := j.Create(ctx, sandpit.Spec{Name: "step"})
	if err != nil {
		return 0, err
	}
	j.Begin(1, 1, "run it")
	j.Output([]byte("with " + j.Secrets["TOKEN"] + "\nno end"))
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return 0, errorsJoin(ctx.Err(), box.Destroy(context.WithoutCancel(ctx)))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs = append(s.jobs, j)
	if s.failure != nil {
		return 0, errorsJoin(s.failure, box.Destroy(ctx))
	}
	if s.images == nil {
		s.images = make(map[sandpit.BuildID]bool)
	}
	s.images[j.Build] = true
	return 10, box.Destroy(ctx)
}

func errorsJoin(err, other error) error {
	if other != nil {
		return other
	}
	return err
}

func (s *shop) RemoveTemplate(_ context.Context, id sandpit.BuildID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.images, id)
	return nil
}

func (s *shop) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.images)
}

func templateRig(tb testing.TB, s *shop, o manager.Options) *rig {
	tb.Helper()
	o.Builder, o.BuilderProvider = s, "fake"
	return newRig(tb, o)
}

// begin makes a template and starts a build of it.
func (r *rig) begin(tb testing.TB, owner, name string, recipe sandpit.Recipe, tags ...string) (sandpit.Template, sandpit.BuildID) {
	tb.Helper()
	t, b, err := r.Templates().Create(tb.Context(), manager.TemplateRequest{Owner: owner, Name: name, Tags: tags})
	if err != nil {
		tb.Fatal(err)
	}
	err = r.Builds().Start(tb.Context(), manager.BuildRequest{
		Owner: owner, Build: b.ID, Recipe: recipe, Secrets: map[string]string{"TOKEN": "xyzzy-plugh"},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return t, b.ID
}

// placed are the sandboxes in the world.
func (r *rig) placed(tb testing.TB) []sandpit.Placement {
	tb.Helper()
	list, err := r.cable.Provider.List(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return list
}

// ended waits for the end of a build.
func (r *rig) ended(tb testing.TB, owner string, id sandpit.BuildID) (b sandpit.TemplateBuild) {
	tb.Helper()
	eventually(tb, "a build ended", func() bool {
		var err error
		if b, err = r.Builds().Get(tb.Context(), owner, id); err != nil {
			tb.Fatal(err)
		}
		return b.Status.Ended()
	})
	return b
}

func (r *rig) built(tb testing.TB, owner, name string, recipe sandpit.Recipe, tags ...string) (sandpit.Template, sandpit.TemplateBuild) {
	tb.Helper()
	t, id := r.begin(tb, owner, name, recipe, tags...)
	b := r.ended(tb, owner, id)
	if b.Status != sandpit.BuildReady {
		tb.Fatalf("the build is %+v", b)
	}
	return t, b
}

// TestTemplateLife builds a template, makes sandboxes of it and removes it.
func TestTemplateLife(t *testing.T) {
	t.Parallel()
	s := &shop{}
	r := templateRig(t, s, manager.Options{MaxTemplates: 2})
	ctx := t.Context()
	recipe := sandpit.Recipe{From: "host", Resources: sandpit.Resources{PIDs: 77}, Variables: []sandpit.Variable{
		{Name: "KEY", Required: true}, {Name: "MODE", Default: "test"},
	}}
	tpl, b := r.built(t, "ann", "tools", recipe, "v1", "v1")
	log, err := r.Builds().Log(ctx, "ann", b.ID, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, l := range log {
		lines = append(lines, l.Text)
	}
	if want := []string{"[1/1] run it", "with ***", "no end"}; !slices.Equal(lines, want) {
		t.Errorf("the log is %q, want %q", lines, want)
	}
	if _, err := r.Builds().Get(ctx, "bob", b.ID); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("another's build: %v", err)
	}
	wantCode(t, r.Builds().Start(ctx, manager.BuildRequest{Owner: "ann", Build: b.ID, Recipe: recipe}), sandpit.Conflict)

	of := func(owner, ref string, env map[string]string) (sandpit.Sandbox, error) {
		return r.Create(ctx, manager.CreateRequest{Owner: owner, Spec: sandpit.Spec{Image: sandpit.Image("template:" + ref), Env: env}})
	}
	_, err = of("ann", "tools:v1", nil)
	wantText(t, err, "requires variable KEY")
	_, err = of("ann", "tools", map[string]string{"KEY": "k"})
	wantText(t, err, "no tag default")
	made, err := of("ann", "tools:v1", map[string]string{"KEY": "k"})
	if err != nil {
		t.Fatal(err)
	}
	if got := made.Spec; got.Template.Build != b.ID || got.Image != b.Image || got.Resources.PIDs != 77 || got.Env["MODE"] != "test" {
		t.Errorf("made of it: %+v", got)
	}

	_, err = r.Templates().Get(ctx, "bob", "tools")
	wantCode(t, err, sandpit.NotFound)
	for _, ref := range []string{string(tpl.ID), string(b.ID), "ann/tools:v1"} {
		_, err = of("bob", ref, map[string]string{"KEY": "k"})
		wantCode(t, err, sandpit.NotFound)
	}
	wantCode(t, r.Templates().Delete(ctx, "bob", "tools"), sandpit.NotFound)
	wantCode(t, r.Templates().Delete(ctx, "bob", "ann/tools"), sandpit.NotFound)
	if _, err = r.Templates().SetPublic(ctx, "ann", "tools", true, false); err != nil {
		t.Fatal(err)
	}
	if _, err = of("bob", "ann/tools:v1", map[string]string{"KEY": "k"}); err != nil {
		t.Error(err)
	}
	wantCode(t, r.Templates().Delete(ctx, "bob", "ann/tools"), sandpit.PermissionDenied)
	_, err = r.Templates().Tag(ctx, "bob", "ann/tools:v1", []string{"mine"})
	wantCode(t, err, sandpit.PermissionDenied)
	got, err := r.Templates().Tag(ctx, "ann", "tools:v1", []string{"default"})
	if err != nil || got.Tags["default"] != b.ID || got.Spawned != 2 {
		t.Errorf("tagged: %+v, %v", got, err)
	}

	r.built(t, "ann", "more", sandpit.Recipe{From: "template:tools"})
	if s.jobs[1].Recipe.From != b.Image {
		t.Errorf("based on %s, want %s", s.jobs[1].Recipe.From, b.Image)
	}
	_, _, err = r.Templates().Create(ctx, manager.TemplateRequest{Owner: "ann", Name: "third"})
	wantCode(t, err, sandpit.Exhausted)

	// Its build stays while a sandbox needs it.
	if err := r.Templates().Delete(ctx, "ann", "tools"); err != nil {
		t.Fatal(err)
	}
	if s.count() != 2 {
		t.Errorf("%d images, want 2", s.count())
	}
	for _, box := range r.List(manager.Filter{}) {
		if err := r.Delete(ctx, box.ID); err != nil {
			t.Fatal(err)
		}
	}
	r.Tidy(ctx)
	if s.count() != 1 {
		t.Errorf("%d images, want 1", s.count())
	}
	if list := r.placed(t); len(list) != 0 {
		t.Errorf("left in the world: %v", list)
	}
}

// TestTemplateFails has builds fail, be given up, and be interrupted.
func TestTemplateFails(t *testing.T) {
	t.Parallel()
	s := &shop{failure: &manager.StepError{Step: "run it", Err: sandpit.Errorf(sandpit.Invalid, "it says xyzzy-plugh")}}
	r := templateRig(t, s, manager.Options{MaxBuilds: 1})
	ctx := t.Context()
	_, id := r.begin(t, "ann", "bad", sandpit.Recipe{From: "host"})
	b := r.ended(t, "ann", id)
	if b.Status != sandpit.BuildFailed || b.Reason != (sandpit.BuildReason{Message: "it says ***", Step: "run it"}) {
		t.Errorf("failed: %+v", b)
	}
	log, err := r.Builds().Log(ctx, "ann", id, 0, 100)
	if last := log[len(log)-1]; err != nil || !last.Error || last.Text != "it says ***" {
		t.Errorf("the log ends with %+v, %v", last, err)
	}
	if _, err := r.Create(ctx, manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Image: "template:bad"}}); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("of a template without a build: %v", err)
	}

	s.mu.Lock()
	s.failure, s.hold = nil, make(chan struct{})
	s.mu.Unlock()
	_, first := r.begin(t, "ann", "one", sandpit.Recipe{From: "host"})
	eventually(t, "the first has begun", func() bool { return len(r.placed(t)) == 1 })
	if list := r.List(manager.Filter{}); len(list) != 0 {
		t.Errorf("the sandbox of a build is listed: %+v", list)
	}
	_, second := r.begin(t, "ann", "two", sandpit.Recipe{From: "host"})
	if err := r.Templates().Delete(ctx, "ann", "two"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Builds().Get(ctx, "ann", second); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("a build whose template was removed: %v", err)
	}
	if b, err := r.Builds().Get(ctx, "ann", first); err != nil || b.Status != sandpit.BuildBuilding {
		t.Errorf("the other one: %+v, %v", b, err)
	}
	_, waiting, err := r.Templates().Create(ctx, manager.TemplateRequest{Owner: "ann", Name: "later"})
	if err != nil {
		t.Fatal(err)
	}

	eventually(t, "what it tells is written down", func() bool {
		log, err := r.store.Templates().BuildLog(ctx, first, 0, 10)
		return err == nil && len(log) == 2
	})
	r.crash(t)
	r.open(t)
	b = r.ended(t, "ann", first)
	if b.Status != sandpit.BuildFailed || b.Reason.Message != "interrupted by a restart of the server" {
		t.Errorf("interrupted: %+v", b)
	}
	if log, err := r.Builds().Log(ctx, "ann", first, 0, 10); err != nil || len(log) != 3 || !strings.HasPrefix(log[1].Text, "with ") ||
		!log[2].Error || log[2].Seq != 3 || log[2].Text != b.Reason.Message {
		t.Errorf("its log: %+v, %v", log, err)
	}
	if b, err := r.Builds().Get(ctx, "ann", waiting.ID); err != nil || b.Status != sandpit.BuildWaiting {
		t.Errorf("one that was never started: %+v, %v", b, err)
	}
	eventually(t, "the sandbox of the build is gone", func() bool { return len(r.placed(t)) == 0 })

	_, third := r.begin(t, "ann", "one", sandpit.Recipe{From: "host"})
	eventually(t, "it has begun", func() bool { return len(r.placed(t)) == 1 })
	r.close(t)
	r.open(t)
	if b := r.ended(t, "ann", third); !strings.Contains(b.Reason.Message, "server ended") {
		t.Errorf("closed: %+v", b)
	}
	eventually(t, "its sandbox is gone", func() bool { return len(r.placed(t)) == 0 })
}

// TestTemplateTidy forgets builds that no tag means.
func TestTemplateTidy(t *testing.T) {
	t.Parallel()
	s := &shop{}
	r := templateRig(t, s, manager.Options{KeepDeleted: time.Millisecond})
	_, old := r.built(t, "ann", "tools", sandpit.Recipe{From: "host"})
	_, b := r.built(t, "ann", "tools", sandpit.Recipe{From: "host"})
	time.Sleep(2 * time.Millisecond)
	r.Tidy(t.Context())
	list, err := r.Builds().List(t.Context(), "ann", "tools", 0)
	if err != nil || len(list) != 1 || list[0].ID != b.ID || s.count() != 1 {
		t.Errorf("builds %+v, %v, with %d images; want %s and not %s", list, err, s.count(), b.ID, old.ID)
	}
	if rows, err := r.store.Templates().ListBuilds(t.Context(), store.BuildFilter{}); err != nil || len(rows) != 1 {
		t.Errorf("rows %+v, %v", rows, err)
	}
}
