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
// a time, whose ready check never succeeds: another owner's are created as ever. The middle
// one of the times is compared: while alice's boot, one of bob's waits for the machine.
func TestReadyCheckThatNeverSucceeds(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	l.alice.build(t, "slow", map[string]any{
		"from": l.image, "start": "sleep 1000", "start_anew": true,
		"ready": map[string]any{"command": `test -z "$SLOW"`, "timeout_seconds": 1800},
	})
	quiet := l.bob.createTimes(t, l.image, 5)
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
	l.waitForSandboxes(t, "alice", 8)
	times := l.bob.createTimes(t, l.image, 5)
	wantNotSlower(t, "bob's creation", quiet[len(quiet)/2], times[len(times)/2])
}

// waitForSandboxes waits until an owner has so many sandboxes, in whatever state.
func (l *lab) waitForSandboxes(t *testing.T, owner string, count int) {
	t.Helper()
	var page struct {
		Items []json.RawMessage `json:"items"`
	}
	for end := time.Now().Add(callTimeout); len(page.Items) < count; time.Sleep(50 * time.Millisecond) {
		l.socket.must(t, http.MethodGet, "/v1/sandboxes?owner="+owner, nil).decode(t, &page)
		if time.Now().After(end) {
			t.Fatalf("%s has %d sandboxes, want %d", owner, len(page.Items), count)
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
	begin := time.Now()
	l.bob.build(t, "quick", map[string]any{"from": l.image, "steps": []any{map[string]any{"run": []string{"true"}}}})
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("bob's build took %v beside alice's", took)
	}
	for i := range builds {
		l.alice.must(t, http.MethodDelete, "/v1/templates/slow"+strconv.Itoa(i), nil)
	}
}
