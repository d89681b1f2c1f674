package owners_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// build builds a template of a party's and returns the build's ID when it is ready, or
// fails.
func (p party) build(t *testing.T, name string, recipe map[string]any) string {
	t.Helper()
	id := p.startBuild(t, name, recipe)
	for end := time.Now().Add(callTimeout); ; time.Sleep(50 * time.Millisecond) {
		switch status := p.buildStatus(t, id); {
		case status == "ready":
			return id
		case status == "failed" || time.Now().After(end):
			log := p.call(t, http.MethodGet, "/v1/builds/"+id+"/log", nil)
			t.Fatalf("%s: build %s is %s\n%s", p.name, id, status, log.body)
		}
	}
}

// startBuild starts a build of a template of a party's and returns the build's ID.
func (p party) startBuild(t *testing.T, name string, recipe map[string]any) string {
	t.Helper()
	var made struct {
		Build struct {
			ID string `json:"id"`
		} `json:"build"`
	}
	p.must(t, http.MethodPost, "/v1/templates", map[string]any{"name": name}).decode(t, &made)
	p.must(t, http.MethodPost, "/v1/builds/"+made.Build.ID, map[string]any{"recipe": recipe})
	return made.Build.ID
}

func (p party) buildStatus(t *testing.T, id string) string {
	t.Helper()
	var b struct {
		Status string `json:"status"`
	}
	p.must(t, http.MethodGet, "/v1/builds/"+id, nil).decode(t, &b)
	return b.Status
}

// createTimes creates and deletes sandboxes one after another and returns how long each
// creation took, the shortest first.
func (p party) createTimes(t *testing.T, image string, count int) []time.Duration {
	t.Helper()
	var times []time.Duration
	for range count {
		begin := time.Now()
		id := p.create(t, image)
		times = append(times, time.Since(begin))
		p.must(t, http.MethodDelete, "/v1/sandboxes/"+id, nil)
	}
	slices.Sort(times)
	return times
}

// attack has workers repeat something until the returned function is called, which waits
// for them.
func attack(workers int, do func(ctx context.Context, worker int)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			for ctx.Err() == nil {
				do(ctx, i)
			}
		})
	}
	return func() { cancel(); group.Wait() }
}

// slowest is how much longer another owner's work may take while an owner does its worst.
const slowest = 3

// wantNotSlower compares what something took with what it takes on a quiet server. Little
// is allowed for in any case: what takes milliseconds is decided by the machine.
func wantNotSlower(t *testing.T, what string, quiet, took time.Duration) {
	t.Helper()
	t.Logf("%s: %v, on a quiet server %v", what, took, quiet)
	if limit := max(slowest*quiet, time.Second); took > limit {
		t.Errorf("%s takes %v, on a quiet server %v: more than %d times as long", what, took, quiet, slowest)
	}
}

// TestReadyCheckThatNeverSucceeds has one owner create as many sandboxes as are started at
// a time, whose ready check never succeeds: another owner's are created as ever. The shortest
// of the times are compared, since some of bob's wait for the machine, and those of a quiet server
// are measured before and after: other programs may begin or end meanwhile.
func TestReadyCheckThatNeverSucceeds(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	l.alice.build(t, "slow", map[string]any{
		"from": l.image, "start": "sleep 1000", "start_anew": true,
		"ready": map[string]any{"command": `test -z "$SLOW"`, "timeout_seconds": 1800},
	})
	before := l.bob.createTimes(t, l.image, 3)
	body, err := json.Marshal(map[string]any{
		"create_timeout_seconds": 3600, "spec": map[string]any{"image": "template:slow", "env": map[string]string{"SLOW": "1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	end := attack(8, func(ctx context.Context, _ int) {
		_, _ = l.alice.do(ctx, http.MethodPost, "/v1/sandboxes", json.RawMessage(body), nil) // ends with the test
	})
	defer end()
	l.waitForSandboxes(t, "alice", func(n int) bool { return n >= 8 })
	times := l.bob.createTimes(t, l.image, 5)
	end()
	l.waitForSandboxes(t, "alice", func(n int) bool { return n == 0 })
	after := l.bob.createTimes(t, l.image, 3)
	wantNotSlower(t, "bob's creation", max(before[0], after[0]), times[0])
}

// waitForSandboxes waits until the number of an owner's sandboxes, in whatever state, is enough.
func (l *lab) waitForSandboxes(t *testing.T, owner string, isEnough func(int) bool) {
	t.Helper()
	for end := time.Now().Add(callTimeout); ; time.Sleep(50 * time.Millisecond) {
		var page struct {
			Items []json.RawMessage `json:"items"`
		}
		l.socket.must(t, http.MethodGet, "/v1/sandboxes?owner="+owner, nil).decode(t, &page)
		if isEnough(len(page.Items)) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s has %d sandboxes", owner, len(page.Items))
		}
	}
}

// TestBuildsOfOneOwner has one owner start more builds than are carried out at a time.
func TestBuildsOfOneOwner(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: "[manager]\nmax_builds = 2\n"})
	sleep := map[string]any{"from": l.image, "steps": []any{map[string]any{"run": []string{"sleep", "1000"}}}}
	var builds []string
	for i := range 4 {
		builds = append(builds, l.alice.startBuild(t, fmt.Sprint("slow", i), sleep))
	}
	begun := func(id string) bool { return l.alice.buildStatus(t, id) == "building" } // whichever comes first
	for end := time.Now().Add(callTimeout); !slices.ContainsFunc(builds, begun); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("none of alice's builds begins")
		}
	}
	// It would wait for two of alice's, which take longer than any call.
	l.bob.build(t, "quick", map[string]any{"from": l.image, "steps": []any{map[string]any{"run": []string{"true"}}}})
	for _, id := range builds {
		if status := l.alice.buildStatus(t, id); status != "building" && status != "waiting" {
			t.Errorf("alice's build is %s, and should still hold its place", status)
		}
	}
	for i := range builds {
		l.alice.must(t, http.MethodDelete, "/v1/templates/slow"+strconv.Itoa(i), nil)
	}
}
