package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// TestUseSandbox counts a use of a sandbox that runs, by a call into it. A paused one is not resumed by that.
func TestUseSandbox(t *testing.T) {
	t.Parallel()
	for state, want := range map[sandpit.State]bool{sandpit.StateRunning: true, sandpit.StatePaused: false, sandpit.StateStopped: false} {
		id := sandpit.NewID()
		used := false
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == "/v1/sandboxes/"+string(id) {
				_, _ = w.Write([]byte(`{"id":"` + string(id) + `","state":"` + string(state) + `"}`))
				return
			}
			used = used || strings.HasPrefix(r.URL.Path, "/v1/sandboxes/"+string(id)+"/envd/")
			w.WriteHeader(http.StatusNotFound) // the call has counted all the same
		}))
		t.Cleanup(server.Close)
		c, err := client.New(client.Options{URL: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if err := useSandbox(t.Context(), c, id); used != want || (err != nil) != want {
			t.Errorf("state %s: used: %t, %v", state, used, err)
		}
	}
}
