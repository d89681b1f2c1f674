package daytona_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// brokenRig returns a server that was started after an earlier one ended while it stopped a sandbox. The provider
// refuses to finish that, so that the sandbox is in the state error.
func brokenRig(t *testing.T) (r *rig, world *fake.World, id string) {
	t.Helper()
	world = fake.NewWorld(t.TempDir())
	t.Cleanup(func() {
		if err := world.Close(); err != nil {
			t.Error(err)
		}
	})
	open := func(dir string) *rig {
		return newRigAt(t, dir, manager.Options{Providers: map[string]sandpit.Provider{"fake": world.NewProvider()}}, nil)
	}
	first := open(t.TempDir())
	id = first.made(t, `{"name":"work"}`).ID
	dir := first.copyState(t)
	beginStop(t, dir, sandpit.ID(id))
	remove := world.Inject(fake.Fault{Op: fake.OpStop, Err: sandpit.Errorf(sandpit.PermissionDenied, "not permitted"), Times: -1})
	defer remove()
	r = open(dir)
	r.await(t, id, "error")
	return r, world, id
}

// beginStop writes that a sandbox is being stopped.
func beginStop(t *testing.T, dir string, id sandpit.ID) {
	t.Helper()
	s, err := store.Open(t.Context(), dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	row, err := s.Sandboxes().Sandbox(t.Context(), id)
	if err == nil {
		row.State = sandpit.StateStopping
		_, err = s.Sandboxes().UpdateSandbox(t.Context(), row)
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestRecover recovers a sandbox in the state error.
func TestRecover(t *testing.T) {
	t.Parallel()
	for query, state := range map[string]string{"": "started", "?skipStart=false": "started", "?skipStart=true": "stopped"} {
		r, _, id := brokenRig(t)
		path := "/sandbox/" + id
		g := r.do(t, r.Ann, http.MethodGet, path, "")
		if g.want(t, http.StatusOK, `"recoverable":true`); !strings.Contains(r.is(t, id).ErrorReason, "not permitted") {
			t.Errorf("the reason: %s", g.Body)
		}
		r.do(t, r.Ann, http.MethodGet, "/sandbox?isRecoverable=true", "").want(t, http.StatusOK, id)
		r.do(t, r.Ann, http.MethodPost, path+"/start", "").want(t, http.StatusBadRequest, "Sandbox is in an errored state")
		r.do(t, r.Ann, http.MethodPost, path+"/recover?skipStart=x", "").want(t, http.StatusBadRequest, "skipStart")
		r.do(t, r.Bob, http.MethodPost, path+"/recover", "").want(t, http.StatusNotFound, "not found")
		r.do(t, r.Ann, http.MethodPost, path+"/recover"+query, "").want(t, http.StatusOK, `"state":"`+state+`"`)
		r.do(t, r.Ann, http.MethodGet, path, "").want(t, http.StatusOK, `"recoverable":false`)
		r.do(t, r.Ann, http.MethodPost, path+"/recover", "").want(t, http.StatusBadRequest, "must be in error state")
	}
}

// TestRecoverInVain recovers a sandbox that its provider does not have any more.
func TestRecoverInVain(t *testing.T) {
	t.Parallel()
	r, world, id := brokenRig(t)
	if err := world.Vanish(sandpit.ID(id)); err != nil {
		t.Fatal(err)
	}
	path := "/sandbox/" + id
	r.do(t, r.Ann, http.MethodPost, path+"/recover", "").want(t, http.StatusBadRequest, "Sandbox is not recoverable")
	r.do(t, r.Ann, http.MethodGet, path, "").want(t, http.StatusOK, `"state":"error"`)
	r.do(t, r.Ann, http.MethodDelete, path, "").want(t, http.StatusOK, `"state":"destroyed"`)
}

// TestRecoverPending recovers a sandbox for which there was no room after the build of its image.
func TestRecoverPending(t *testing.T) {
	t.Parallel()
	held := &workshop{hold: make(chan struct{})}
	r := newRigOf(t, manager.Options{Builder: held, BuilderProvider: "fake", MaxSandboxes: 1}, func(o *daytona.Options) { o.ParseDockerfile = parseLines })
	id := r.pending(t, r.Ann, `{"name":"late","buildInfo":{"dockerfileContent":"FROM host\nRUN true\n"}}`)
	path := "/sandbox/" + id
	r.do(t, r.Ann, http.MethodPost, path+"/recover", "").want(t, http.StatusConflict, "Sandbox state change in progress")
	other := r.made(t, `{}`)
	close(held.hold)
	r.await(t, id, "error")
	r.do(t, r.Ann, http.MethodGet, path, "").want(t, http.StatusOK, `"recoverable":true`)
	r.do(t, r.Ann, http.MethodPost, path+"/recover?skipStart=true", "").want(t, http.StatusBadRequest, "never created")
	r.do(t, r.Ann, http.MethodPost, path+"/recover", "").want(t, http.StatusOK, `"state":"building_snapshot"`)
	r.await(t, id, "error") // there is still no room
	r.do(t, r.Ann, http.MethodDelete, "/sandbox/"+other.ID, "").want(t, http.StatusOK, "destroyed")
	r.do(t, r.Ann, http.MethodPost, path+"/recover", "").want(t, http.StatusOK, `"recoverable":false`)
	r.await(t, id, "started")
	if b := r.is(t, id); b.Name != "late" || held.begun.Load() != 1 {
		t.Errorf("the sandbox: %+v, %d builds", b, held.begun.Load())
	}
	r.wantStored(t, 0)
}
