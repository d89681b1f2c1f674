package daytona_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
)

// workshop is a builder whose builds do nothing.
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

// parseLines reads a Dockerfile of one FROM and several RUN and COPY.
func parseLines(text []byte) (r sandpit.Recipe, err error) {
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "FROM":
			r.From = sandpit.Image(rest)
		case "RUN":
			r.Steps = append(r.Steps, sandpit.RecipeStep{Run: sandpit.ShellArgs(rest)})
		case "COPY":
			r.Steps = append(r.Steps, sandpit.RecipeStep{Copy: &sandpit.RecipeCopy{From: []string{rest}, To: "/"}})
		default:
			return r, sandpit.Errorf(sandpit.Unsupported, "instruction %q", word)
		}
	}
	return r, nil
}

func buildRig(t *testing.T, w *workshop) *rig {
	t.Helper()
	return buildRigAt(t, t.TempDir(), w)
}

func buildRigAt(t *testing.T, dir string, w *workshop) *rig {
	t.Helper()
	return newRigAt(t, dir, manager.Options{Builder: w, BuilderProvider: "fake", Builtins: map[string]sandpit.Recipe{"browser": {From: "host"}}},
		func(o *daytona.Options) { o.ParseDockerfile = parseLines })
}

const dockerfile = `{"buildInfo":{"dockerfileContent":"FROM host\nRUN true\n"}}`

// TestDockerfile builds an image once for each owner, and reports failures.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	w := &workshop{}
	r := buildRig(t, w)
	b := r.built(t, r.Ann, dockerfile)
	if again := r.made(t, dockerfile); again.Snapshot != b.Snapshot || !strings.HasPrefix(b.Snapshot, "template:daytona-") || w.begun.Load() != 1 {
		t.Errorf("%q, %q, %d builds", b.Snapshot, again.Snapshot, w.begun.Load())
	}
	r.built(t, r.Bob, dockerfile)
	if n := w.begun.Load(); n != 2 {
		t.Errorf("%d builds for two owners", n)
	}
	r.do(t, r.Ann, http.MethodGet, "/sandbox/"+b.ID+"/build-logs-url", "").want(t, http.StatusOK, r.URL+"/api/sandbox/"+b.ID+"/build-logs")
	r.do(t, r.Ann, http.MethodGet, "/sandbox/"+b.ID+"/build-logs?follow=true", "").want(t, http.StatusOK, "run the first step")
	for content, want := range map[string]string{`FROM host\nCOPY a b`: "copies files", `FROM host\nMAINTAINER x`: "MAINTAINER"} {
		r.do(t, r.Ann, http.MethodPost, "/sandbox", `{"buildInfo":{"dockerfileContent":"`+content+`"}}`).want(t, http.StatusBadRequest, want)
	}
	r.made(t, `{"snapshot":"browser"}`)
}

// TestFailedBuild reports why a build failed, and tries again at the next request.
func TestFailedBuild(t *testing.T) {
	t.Parallel()
	w := &workshop{failure: sandpit.Errorf(sandpit.Invalid, "exit status 7")}
	r := buildRig(t, w)
	for n := range int64(2) {
		id := r.pending(t, r.Ann, dockerfile)
		path := "/sandbox/" + id
		if r.await(t, id, "build_failed"); !strings.Contains(r.is(t, id).ErrorReason, "exit status 7") {
			t.Errorf("the reason: %+v", r.is(t, id))
		}
		if w.begun.Load() != n+1 {
			t.Errorf("%d builds, want %d", w.begun.Load(), n+1)
		}
		r.do(t, r.Ann, http.MethodPost, path+"/start", "").want(t, http.StatusBadRequest, "Sandbox is in an errored state: build of the image failed")
		r.do(t, r.Ann, http.MethodGet, path+"/build-logs", "").want(t, http.StatusOK, "run the first step")
		r.do(t, r.Ann, http.MethodDelete, path, "").want(t, http.StatusOK, "destroying")
		r.do(t, r.Ann, http.MethodGet, path, "").want(t, http.StatusNotFound, "not found")
	}
}

// pending creates a sandbox whose image must be built, and returns its ID.
func (r *rig) pending(tb testing.TB, key, body string) string {
	tb.Helper()
	g := r.do(tb, key, http.MethodPost, "/sandbox", body)
	g.want(tb, http.StatusOK, `"state":"pending_build"`)
	var b box
	g.Decode(tb, &b)
	return b.ID
}

// built creates a sandbox whose image must be built, and waits until it runs.
func (r *rig) built(tb testing.TB, key, body string) (b box) {
	tb.Helper()
	id := r.pending(tb, key, body)
	for end := time.Now().Add(long); b.State != "started"; time.Sleep(5 * time.Millisecond) {
		if r.do(tb, key, http.MethodGet, "/sandbox/"+id, "").Decode(tb, &b); b.State == "build_failed" || b.State == "error" || time.Now().After(end) {
			tb.Fatalf("sandbox %s is %s: %s", id, b.State, b.ErrorReason)
		}
	}
	return b
}

// TestPendingBuild has a sandbox while its image is being built: with its log, for its owner only,
// until it is deleted or runs.
func TestPendingBuild(t *testing.T) {
	t.Parallel()
	w := &workshop{hold: make(chan struct{})}
	r := buildRig(t, w)
	const request = `{"name":"slow","labels":{"a":"b"},"buildInfo":{"dockerfileContent":"FROM host\nRUN true\n"}}`
	id := r.pending(t, r.Ann, request)
	path := "/sandbox/" + id
	for _, key := range []string{r.Ann, r.Admin} {
		r.do(t, key, http.MethodGet, path, "").want(t, http.StatusOK, `"state":"building_snapshot"`)
	}
	var named box
	if r.do(t, r.Ann, http.MethodGet, "/sandbox/slow", "").Decode(t, &named); named.ID != id || named.Name != "slow" || named.Labels["a"] != "b" {
		t.Errorf("by name: %+v", named)
	}
	for _, call := range []string{"GET " + path, "DELETE " + path, "GET /sandbox/slow", "GET " + path + "/build-logs-url", "POST " + path + "/start"} {
		method, at, _ := strings.Cut(call, " ")
		r.do(t, r.Bob, method, at, "").want(t, http.StatusNotFound, "not found")
	}
	for _, call := range []string{"/start", "/stop", "/fork", "/snapshot", "/last-activity"} {
		r.do(t, r.Ann, http.MethodPost, path+call, "{}").want(t, http.StatusConflict, "Sandbox state change in progress")
	}
	r.do(t, r.Ann, http.MethodGet, path+"/toolbox-proxy-url", "").want(t, http.StatusOK, `{"url":"`+r.URL+`/toolbox"}`)
	r.do(t, r.Bob, http.MethodGet, path+"/toolbox-proxy-url", "").want(t, http.StatusNotFound, "not found")
	var url struct{ URL string }
	r.do(t, r.Ann, http.MethodGet, path+"/build-logs-url", "").Decode(t, &url)
	logged := make(chan got, 1)
	go func() {
		logged <- r.do(t, r.Ann, http.MethodGet, strings.TrimPrefix(url.URL, r.URL+"/api")+"?follow=true", "")
	}()

	deleted := r.pending(t, r.Ann, `{"buildInfo":{"dockerfileContent":"FROM host\nRUN true\n"}}`)
	r.do(t, r.Ann, http.MethodDelete, "/sandbox/"+deleted, "").want(t, http.StatusOK, "destroying")
	r.do(t, r.Ann, http.MethodGet, "/sandbox/"+deleted, "").want(t, http.StatusNotFound, "not found")
	var last got
	for range 40 { // more than are permitted
		last = r.do(t, r.Bob, http.MethodPost, "/sandbox", dockerfile)
	}
	last.want(t, http.StatusBadRequest, "32 sandboxes wait for builds")
	select {
	case g := <-logged:
		t.Errorf("the log has ended before the build: %s", g.Body)
	default:
	}
	close(w.hold)
	if g := <-logged; g.Status != http.StatusOK || !strings.Contains(g.Body, "run the first step") {
		t.Errorf("log: %d %s", g.Status, g.Body)
	}
	r.await(t, id, "started")
	if b := r.is(t, id); b.Name != "slow" || b.Labels["a"] != "b" || w.begun.Load() != 2 {
		t.Errorf("the sandbox: %+v, %d builds", b, w.begun.Load())
	}
	r.do(t, r.Ann, http.MethodGet, "/sandbox/"+deleted, "").want(t, http.StatusNotFound, "not found")
	// One that cannot be created after the build says why.
	again := r.do(t, r.Ann, http.MethodPost, "/sandbox", request)
	again.want(t, http.StatusConflict, "already exists")
}

// TestBuiltSnapshot builds a snapshot, follows its log, and creates a sandbox from it.
func TestBuiltSnapshot(t *testing.T) {
	t.Parallel()
	w := &workshop{hold: make(chan struct{})}
	r := buildRig(t, w)
	const request = `{"name":"tools:1.0","imageName":"host","cpu":2,"memory":4,"disk":8,"entrypoint":["sleep","infinity"]}`
	g := r.do(t, r.Ann, http.MethodPost, "/snapshots", request)
	g.want(t, http.StatusOK, `"name":"tools:1.0"`)
	var made struct {
		ID, State      string
		CPU, Mem, Disk float64
	}
	g.Decode(t, &made)
	if made.State != "pending" && made.State != "building" {
		t.Errorf("made %s", g.Body)
	}
	r.do(t, r.Ann, http.MethodPost, "/snapshots", request).want(t, http.StatusConflict, "already exists")
	r.do(t, r.Ann, http.MethodPost, "/snapshots/tools:1.0/activate", "").want(t, http.StatusBadRequest, "cannot be activated")
	var url struct{ URL string }
	r.do(t, r.Ann, http.MethodGet, "/snapshots/"+made.ID+"/build-logs-url", "").Decode(t, &url)
	path := strings.TrimPrefix(url.URL, r.URL+"/api")
	logged := make(chan got, 1)
	go func() { logged <- r.do(t, r.Ann, http.MethodGet, path+"?follow=true", "") }()
	select {
	case g := <-logged:
		t.Errorf("the log has ended before the build: %s", g.Body)
	case <-time.After(500 * time.Millisecond):
	}
	close(w.hold)
	if g := <-logged; g.Status != http.StatusOK || !strings.Contains(g.Body, "run the first step") {
		t.Errorf("log: %d %s", g.Status, g.Body)
	}
	g = r.do(t, r.Ann, http.MethodGet, "/snapshots/"+made.ID, "")
	g.want(t, http.StatusOK, `"state":"active"`)
	if g.Decode(t, &made); made.CPU != 2 || made.Mem != 4 || made.Disk != 8 {
		t.Errorf("limits %s", g.Body)
	}
	for _, name := range []string{"tools:1.0", made.ID} {
		if b := r.made(t, `{"snapshot":"`+name+`"}`); b.CPU != 2 || b.Snapshot != name {
			t.Errorf("from %s: %+v", name, b)
		}
	}
	// Another tag is another snapshot.
	r.do(t, r.Ann, http.MethodPost, "/snapshots", `{"name":"tools:2.0","imageName":"host"}`).want(t, http.StatusOK, `"name":"tools:2.0"`)
	r.do(t, r.Ann, http.MethodGet, "/snapshots", "").want(t, http.StatusOK, `"total":2`)
	r.do(t, r.Bob, http.MethodGet, "/snapshots/"+made.ID, "").want(t, http.StatusNotFound, "not found")
	r.do(t, r.Bob, http.MethodDelete, "/snapshots/tools:1.0", "").want(t, http.StatusNotFound, "not found")
	r.do(t, r.Bob, http.MethodPost, "/sandbox", `{"snapshot":"tools:1.0"}`).want(t, http.StatusNotFound, "not found")
	r.do(t, r.Ann, http.MethodDelete, "/snapshots/tools:1.0", "").want(t, http.StatusOK, "")
	r.do(t, r.Ann, http.MethodGet, "/snapshots/tools:1.0", "").want(t, http.StatusNotFound, "not found")
	r.do(t, r.Ann, http.MethodGet, "/snapshots/tools:2.0", "").want(t, http.StatusOK, "tools:2.0")
}
