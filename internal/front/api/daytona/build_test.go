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
	return newRigOf(t, manager.Options{Builder: w, BuilderProvider: "fake", Builtins: map[string]sandpit.Recipe{"browser": {From: "host"}}},
		func(o *daytona.Options) { o.ParseDockerfile = parseLines })
}

const dockerfile = `{"buildInfo":{"dockerfileContent":"FROM host\nRUN true\n"}}`

// TestDockerfile builds an image once for each owner, and reports failures.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	w := &workshop{}
	r := buildRig(t, w)
	b := r.made(t, dockerfile)
	if again := r.made(t, dockerfile); again.Snapshot != b.Snapshot || !strings.HasPrefix(b.Snapshot, "template:daytona-") || w.begun.Load() != 1 {
		t.Errorf("%q, %q, %d builds", b.Snapshot, again.Snapshot, w.begun.Load())
	}
	r.do(t, r.bob, http.MethodPost, "/sandbox", dockerfile).want(t, http.StatusOK, "started")
	if n := w.begun.Load(); n != 2 {
		t.Errorf("%d builds for two owners", n)
	}
	r.do(t, r.ann, http.MethodGet, "/sandbox/"+b.ID+"/build-logs-url", "").want(t, http.StatusOK, r.url+"/api/sandbox/"+b.ID+"/build-logs")
	r.do(t, r.ann, http.MethodGet, "/sandbox/"+b.ID+"/build-logs?follow=true", "").want(t, http.StatusOK, "run the first step")
	for content, want := range map[string]string{`FROM host\nCOPY a b`: "copies files", `FROM host\nMAINTAINER x`: "MAINTAINER"} {
		r.do(t, r.ann, http.MethodPost, "/sandbox", `{"buildInfo":{"dockerfileContent":"`+content+`"}}`).want(t, http.StatusBadRequest, want)
	}
	r.made(t, `{"snapshot":"browser"}`)
}

// TestFailedBuild reports why a build failed, and tries again at the next request.
func TestFailedBuild(t *testing.T) {
	t.Parallel()
	w := &workshop{failure: sandpit.Errorf(sandpit.Invalid, "exit status 7")}
	r := buildRig(t, w)
	for n := range int64(2) {
		r.do(t, r.ann, http.MethodPost, "/sandbox", dockerfile).want(t, http.StatusBadRequest, "exit status 7")
		if w.begun.Load() != n+1 {
			t.Errorf("%d builds, want %d", w.begun.Load(), n+1)
		}
	}
}

// TestBuiltSnapshot builds a snapshot, follows its log, and creates a sandbox from it.
func TestBuiltSnapshot(t *testing.T) {
	t.Parallel()
	w := &workshop{hold: make(chan struct{})}
	r := buildRig(t, w)
	const request = `{"name":"tools:1.0","imageName":"host","cpu":2,"memory":4,"disk":8,"entrypoint":["sleep","infinity"]}`
	g := r.do(t, r.ann, http.MethodPost, "/snapshots", request)
	g.want(t, http.StatusOK, `"name":"tools:1.0"`)
	var made struct {
		ID, State      string
		CPU, Mem, Disk float64
	}
	g.into(t, &made)
	if made.State != "pending" && made.State != "building" {
		t.Errorf("made %s", g.body)
	}
	r.do(t, r.ann, http.MethodPost, "/snapshots", request).want(t, http.StatusConflict, "already exists")
	r.do(t, r.ann, http.MethodPost, "/snapshots/tools:1.0/activate", "").want(t, http.StatusBadRequest, "cannot be activated")
	var url struct{ URL string }
	r.do(t, r.ann, http.MethodGet, "/snapshots/"+made.ID+"/build-logs-url", "").into(t, &url)
	path := strings.TrimPrefix(url.URL, r.url+"/api")
	logged := make(chan got, 1)
	go func() { logged <- r.do(t, r.ann, http.MethodGet, path+"?follow=true", "") }()
	select {
	case g := <-logged:
		t.Errorf("the log has ended before the build: %s", g.body)
	case <-time.After(500 * time.Millisecond):
	}
	close(w.hold)
	if g := <-logged; g.status != http.StatusOK || !strings.Contains(g.body, "run the first step") {
		t.Errorf("log: %d %s", g.status, g.body)
	}
	g = r.do(t, r.ann, http.MethodGet, "/snapshots/"+made.ID, "")
	g.want(t, http.StatusOK, `"state":"active"`)
	if g.into(t, &made); made.CPU != 2 || made.Mem != 4 || made.Disk != 8 {
		t.Errorf("limits %s", g.body)
	}
	for _, name := range []string{"tools:1.0", made.ID} {
		if b := r.made(t, `{"snapshot":"`+name+`"}`); b.CPU != 2 || b.Snapshot != name {
			t.Errorf("from %s: %+v", name, b)
		}
	}
	// Another tag is another snapshot.
	r.do(t, r.ann, http.MethodPost, "/snapshots", `{"name":"tools:2.0","imageName":"host"}`).want(t, http.StatusOK, `"name":"tools:2.0"`)
	r.do(t, r.ann, http.MethodGet, "/snapshots", "").want(t, http.StatusOK, `"total":2`)
	r.do(t, r.bob, http.MethodGet, "/snapshots/"+made.ID, "").want(t, http.StatusNotFound, "not found")
	r.do(t, r.bob, http.MethodDelete, "/snapshots/tools:1.0", "").want(t, http.StatusNotFound, "not found")
	r.do(t, r.bob, http.MethodPost, "/sandbox", `{"snapshot":"tools:1.0"}`).want(t, http.StatusNotFound, "not found")
	r.do(t, r.ann, http.MethodDelete, "/snapshots/tools:1.0", "").want(t, http.StatusOK, "")
	r.do(t, r.ann, http.MethodGet, "/snapshots/tools:1.0", "").want(t, http.StatusNotFound, "not found")
	r.do(t, r.ann, http.MethodGet, "/snapshots/tools:2.0", "").want(t, http.StatusOK, "tools:2.0")
}
