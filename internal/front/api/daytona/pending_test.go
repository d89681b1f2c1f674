package daytona_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// copyState returns a directory with the state as the end of the server at this moment would leave it.
func (r *rig) copyState(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := r.Store.Backup(t.Context(), filepath.Join(dir, "state.db")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// wantStored checks how many pending sandboxes are stored.
func (r *rig) wantStored(t *testing.T, want int) {
	t.Helper()
	for end := time.Now().Add(long); ; time.Sleep(5 * time.Millisecond) {
		list, err := r.Store.PendingSandboxes().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d pending sandboxes are stored, want %d: %+v", len(list), want, list)
		}
	}
}

// TestPendingAfterRestart ends the server while it builds the image of a sandbox. The next one builds
// it again and creates the sandbox under its ID, or says why not.
func TestPendingAfterRestart(t *testing.T) {
	t.Parallel()
	held := &workshop{hold: make(chan struct{})}
	defer close(held.hold)
	r := buildRig(t, held)
	const request = `{"name":"slow","labels":{"a":"b"},"env":{"X":"y"},"ttlMinutes":60,"buildInfo":{"dockerfileContent":"FROM host\nRUN true\n"}}`
	id := r.pending(t, r.Ann, request)
	r.await(t, id, "building_snapshot")
	r.wantStored(t, 1)

	next := &workshop{}
	second := buildRigAt(t, r.copyState(t), next)
	second.await(t, id, "started")
	b := second.is(t, id)
	if left := time.Until(b.AutoDestroyAt); b.Name != "slow" || b.Labels["a"] != "b" || b.Env["X"] != "y" || next.begun.Load() != 1 || left <= 0 || left > time.Hour {
		t.Errorf("the sandbox: %+v, %d builds", b, next.begun.Load())
	}
	second.wantStored(t, 0)

	third := buildRigAt(t, r.copyState(t), &workshop{failure: sandpit.Errorf(sandpit.Invalid, "exit status 7")})
	third.await(t, id, "build_failed")
	if b := third.is(t, id); !strings.Contains(b.ErrorReason, "exit status 7") || b.Name != "slow" {
		t.Errorf("the sandbox: %+v", b)
	}
	third.do(t, third.Bob, http.MethodGet, "/sandbox/"+id, "").want(t, http.StatusNotFound, "not found")

	fourth := &workshop{}
	last := buildRigAt(t, third.copyState(t), fourth)
	if b := last.is(t, id); b.State != "build_failed" || !strings.Contains(b.ErrorReason, "exit status 7") || fourth.begun.Load() != 0 {
		t.Errorf("a failure after a restart: %+v, %d builds", b, fourth.begun.Load())
	}
	last.do(t, last.Ann, http.MethodDelete, "/sandbox/"+id, "").want(t, http.StatusOK, "destroying")
	last.do(t, last.Ann, http.MethodGet, "/sandbox/"+id, "").want(t, http.StatusNotFound, "not found")
	last.wantStored(t, 0)
}

// TestPendingCreation ends the server while it creates a sandbox whose image it has built. The next one
// creates it under the same ID.
func TestPendingCreation(t *testing.T) {
	t.Parallel()
	held := &workshop{hold: make(chan struct{})}
	defer close(held.hold)
	r := buildRig(t, held)
	id := r.pending(t, r.Ann, `{"name":"late","buildInfo":{"dockerfileContent":"FROM host\nRUN true\n"}}`)
	r.await(t, id, "building_snapshot")
	dir := r.copyState(t)
	s, err := store.Open(t.Context(), dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	row := store.Row{Provider: "fake", Sandbox: sandpit.Sandbox{
		ID: sandpit.ID(id), State: sandpit.StateCreating, Spec: sandpit.Spec{Name: "late", Image: "host"}, Lease: sandpit.Lease{Owner: "ann"},
		CreatedAt: time.Now(), ChangedAt: time.Now(),
	}}
	_, err = s.Sandboxes().InsertSandbox(t.Context(), row)
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	next := buildRigAt(t, dir, &workshop{})
	next.await(t, id, "started")
	if b := next.is(t, "late"); b.ID != id {
		t.Errorf("the sandbox: %+v", b)
	}
	next.wantStored(t, 0)
	next.do(t, next.Ann, http.MethodDelete, "/sandbox/"+id, "").want(t, http.StatusOK, "destroyed")

	// One that was deleted after its creation is not created again.
	last := buildRigAt(t, next.copyState(t), &workshop{})
	last.do(t, last.Ann, http.MethodGet, "/sandbox/"+id, "").want(t, http.StatusNotFound, "not found")
}

// TestPendingUnreadable finds a stored request that cannot be read, and reports it as a failure.
func TestPendingUnreadable(t *testing.T) {
	t.Parallel()
	held := &workshop{hold: make(chan struct{})}
	defer close(held.hold)
	r := buildRig(t, held)
	id := r.pending(t, r.Ann, dockerfile)
	rows, err := r.Store.PendingSandboxes().List(t.Context())
	if err != nil || len(rows) != 1 {
		t.Fatalf("%+v, %v", rows, err)
	}
	rows[0].Request = []byte(`{"about":`)
	if err := r.Store.PendingSandboxes().Save(t.Context(), rows[0]); err != nil {
		t.Fatal(err)
	}
	second := buildRigAt(t, r.copyState(t), &workshop{})
	if b := second.is(t, id); b.State != "build_failed" || !strings.Contains(b.ErrorReason, "the server was restarted during the build") {
		t.Errorf("the sandbox: %+v", b)
	}
}

// TestPendingBytes bounds the requests of an owner's pending sandboxes together.
func TestPendingBytes(t *testing.T) {
	t.Parallel()
	held := &workshop{hold: make(chan struct{})}
	defer close(held.hold)
	r := buildRig(t, held)
	request := `{"env":{"X":"` + strings.Repeat("y", 900_000) + `"},` + dockerfile[1:] // the stored one has it twice
	r.pending(t, r.Ann, request)
	r.pending(t, r.Ann, request)
	r.do(t, r.Ann, http.MethodPost, "/sandbox", request).want(t, http.StatusBadRequest, "would have")
	r.pending(t, r.Ann, dockerfile)
	r.pending(t, r.Bob, request)
	r.wantStored(t, 4)
}
