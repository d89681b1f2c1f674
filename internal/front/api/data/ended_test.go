package data_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestSessionsEndWithTheirSandbox stops a sandbox, with a session in it, and starts it
// again: the session says why it has ended, and there can be new ones.
func TestSessionsEndWithTheirSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	open := func() {
		t.Helper()
		r.do(r.client, http.MethodPost, id, "/sessions", asJSON(t, wire.NewSession{Name: "build"})).want(t, http.StatusCreated, nil)
	}
	open()
	for range 2 {
		if err := r.manager.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if err := r.manager.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		p := r.do(r.client, http.MethodPost, id, "/sessions/build/run", asJSON(t, wire.SessionRun{Command: "true"})).wantProblem(t, sandpit.Gone)
		if !strings.Contains(p.Detail, "is stopping") {
			t.Errorf("the session ended since %q", p.Detail)
		}
		open()
		var ran wire.SessionResult
		r.do(r.client, http.MethodPost, id, "/sessions/build/run", asJSON(t, wire.SessionRun{Command: "echo again"})).want(t, http.StatusOK, &ran)
		if ran.Stdout != "again\n" {
			t.Errorf("a new session says %+v", ran)
		}
	}
	r.idle()
}
