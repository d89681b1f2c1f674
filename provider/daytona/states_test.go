package daytona_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/daytona"
)

// scripted is a server with Daytona's API that has one sandbox, which goes through states.
type scripted struct {
	mu     sync.Mutex
	refuse int    // the status of the request for a sandbox, or 0
	reason string // of the refusal or the last state
	states []string
	// recoverable says that the last state is an error from which Daytona can recover.
	recoverable bool

	created map[string]any // the request
	calls   []string
}

// ServeHTTP implements http.Handler.
func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, r.Method+" "+r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	case r.Method == http.MethodPost && r.URL.Path == "/sandbox" && s.refuse != 0:
		w.WriteHeader(s.refuse)
		_ = json.NewEncoder(w).Encode(map[string]any{"statusCode": s.refuse, "message": s.reason})
	case r.Method == http.MethodPost && r.URL.Path == "/sandbox":
		_ = json.Unmarshal(body, &s.created)
		s.describe(w)
	case s.created == nil || slices.Contains(s.calls[:len(s.calls)-1], "DELETE /sandbox/box-1"):
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"statusCode":404,"message":"not found"}`)
	default:
		s.describe(w)
	}
}

// describe writes the sandbox in its next state.
func (s *scripted) describe(w io.Writer) {
	state := s.states[0]
	if len(s.states) > 1 {
		s.states = s.states[1:]
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"id": "box-1", "name": s.created["name"], "state": state, "errorReason": s.reason, "recoverable": s.recoverable, "labels": s.created["labels"],
	})
}

// count returns how often a call was made.
func (s *scripted) count(call string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.calls {
		if one == call {
			n++
		}
	}
	return n
}

// TestFailedCreations creates sandboxes that Daytona does not bring to run. Each failure has its own code, and none
// leaves a sandbox.
func TestFailedCreations(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cloud      *scripted
		code       sandpit.Code
		text       string
		recoveries int
		tooLate    bool
	}{
		"image": {
			cloud: &scripted{states: []string{"pending_build", "building_snapshot", "build_failed"}, reason: "failed to pull image: manifest unknown"},
			code:  sandpit.NotFound, text: "its image cannot be fetched: failed to pull image: manifest unknown",
		},
		"build": {
			cloud: &scripted{states: []string{"building_snapshot", "build_failed"}, reason: "step 3 failed"},
			code:  sandpit.Invalid, text: "the build of its image failed: step 3 failed",
		},
		"quota": {
			cloud: &scripted{states: []string{"creating", "error"}, reason: "Total CPU limit exceeded. Maximum allowed: 10."},
			code:  sandpit.Exhausted, text: "a limit of the account is reached",
		},
		"error": {
			cloud: &scripted{states: []string{"creating", "error"}, reason: "runner lost"},
			code:  sandpit.Conflict, text: "is in the state error at Daytona: runner lost",
		},
		"recoverable": {
			cloud: &scripted{states: []string{"creating", "error"}, reason: "runner lost", recoverable: true},
			code:  sandpit.Conflict, text: "is in the state error at Daytona: runner lost", recoveries: 1,
		},
		"late":          {cloud: &scripted{states: []string{"pulling_snapshot"}}, code: sandpit.Timeout, text: `is still "pulling_snapshot" at Daytona after 2s`},
		"unknown state": {cloud: &scripted{states: []string{"dreaming"}}, code: sandpit.Timeout, text: `is still "dreaming" at Daytona after 2s`},
		"destroyed":     {cloud: &scripted{states: []string{"creating", "destroyed"}}, code: sandpit.Gone, text: "was deleted at Daytona"},
		"refused quota": {
			cloud: &scripted{refuse: http.StatusBadRequest, reason: "Disk request 90GB exceeds maximum allowed per sandbox (10GB)."},
			code:  sandpit.Exhausted, text: "a quota of the account at Daytona is used up",
		},
		"late deadline": {
			cloud: &scripted{refuse: http.StatusBadRequest, reason: "ttlMinutes exceeds the maximum of 60"},
			code:  sandpit.Invalid, text: "the deadline is later than the provider allows", tooLate: true,
		},
		"refused image": {
			cloud: &scripted{refuse: http.StatusBadRequest, reason: "Snapshot x cannot be used"},
			code:  sandpit.Invalid, text: "Snapshot x cannot be used",
		},
		"suspended": {
			cloud: &scripted{refuse: http.StatusForbidden, reason: "Organization is suspended"},
			code:  sandpit.PermissionDenied, text: "Organization is suspended",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tc.cloud)
			t.Cleanup(server.Close)
			p := open(t, daytona.Options{
				Endpoint: server.URL, Key: "key", StateDir: t.TempDir(), Target: "us", Public: true, CreateTimeout: 2 * time.Second,
			})
			_, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Expiry: sandpit.Expiry{Deadline: time.Now().Add(5 * time.Hour)}})
			wantCode(t, err, tc.code)
			if got := errors.Is(err, sandpit.ErrDeadlineTooLate); got != tc.tooLate {
				t.Errorf("%v is marked as the refusal of a deadline: %t", err, got)
			}
			if err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %q, want one with %q", err, tc.text)
			}
			if n := tc.cloud.count("POST /sandbox/box-1/recover"); n != tc.recoveries {
				t.Errorf("%d recoveries, want %d", n, tc.recoveries)
			}
			if tc.cloud.refuse == 0 {
				checkRequest(t, tc.cloud)
			}
			if deleted := tc.cloud.count("DELETE /sandbox/box-1") > 0; deleted != (tc.cloud.refuse == 0) {
				t.Errorf("deleted: %t; calls %q", deleted, tc.cloud.calls)
			}
		})
	}
}

// checkRequest compares the request for a sandbox without wishes with OpenManus's.
func checkRequest(t *testing.T, s *scripted) {
	t.Helper()
	for name, want := range map[string]any{
		"target": "us", "public": true, "cpu": 2.0, "memory": 4.0, "disk": 5.0, "autoStopInterval": 15.0, "autoArchiveInterval": 1440.0, "autoDeleteInterval": 43200.0,
	} {
		if got := s.created[name]; got != want {
			t.Errorf("request: %s %v, want %v", name, got, want)
		}
	}
	build, _ := s.created["buildInfo"].(map[string]any)
	if got := build["dockerfileContent"]; got != "FROM whitezxj/sandbox:0.1.0\n" {
		t.Errorf("request: image %q", got)
	}
	if env, _ := s.created["env"].(map[string]any); len(env) != 11 {
		t.Errorf("request: %d variables, want 11: %v", len(env), env)
	}
}
