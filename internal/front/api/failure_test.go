package api_test

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// failing is an edge before a handler that fails with err, and the keys of an administrator
// and of another owner.
func failing(t *testing.T, err error, log io.Writer) (server *httptest.Server, admin, ann string) {
	t.Helper()
	handler := slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo})
	keys := api.NewKeys(openStore(t), clock.System{}, slog.New(slog.DiscardHandler))
	secret := func(owner string, admin bool) string {
		_, secret, err := keys.Create(t.Context(), api.NewKey{Owner: owner, Admin: admin})
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	edge := api.NewEdge(api.EdgeOptions{Keys: keys, Log: slog.New(handler), Private: api.NewRedactor("/srv/sandpit/state")})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes/{id}/run", func(w http.ResponseWriter, r *http.Request) { api.WriteError(w, r, err) })
	server = httptest.NewServer(edge.Handler(mux))
	t.Cleanup(server.Close)
	return server, secret("root", true), secret("ann", false)
}

func post(t *testing.T, server *httptest.Server, key, target string) (wire.Problem, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", key)
	r.Header.Set("X-Request-Id", "req-1")
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var p wire.Problem
	if err := json.NewDecoder(res.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return p, res.Header
}

// TestFailures: what an error concerns, and whether it may be tried again, is in the answer;
// internals of the server are not, but for administrators.
func TestFailures(t *testing.T) {
	t.Parallel()
	id := sandpit.NewID()
	lost := fmt.Errorf("create: %w", &fs.PathError{Op: "mkdir", Path: "/srv/sandpit/state/scratch", Err: fs.ErrNotExist})
	for name, tc := range map[string]struct {
		err        error
		want       wire.Problem
		retryAfter string
		admin      string // what administrators see instead
	}{
		"quota": {
			sandpit.Errorf(sandpit.Exhausted, "5 of 5"),
			wire.Problem{Status: 429, Code: sandpit.Exhausted, Detail: "5 of 5", Sandbox: id, Operation: "POST /v1/sandboxes/{id}/run"},
			"1", "5 of 5",
		},
		"busy": {
			sandpit.WithRetry(sandpit.Errorf(sandpit.Exhausted, "busy"), 2500*time.Millisecond),
			wire.Problem{Status: 429, Code: sandpit.Exhausted, Detail: "busy", Retryable: true, Sandbox: id, Operation: "POST /v1/sandboxes/{id}/run"},
			"3", "busy",
		},
		"away": {
			sandpit.WithSubject(sandpit.Errorf(sandpit.Unavailable, "dial unix /run/x.sock: connect: refused"), sandpit.Subject{Provider: "gvisor", Operation: "resume"}),
			wire.Problem{Status: 503, Code: sandpit.Unavailable, Detail: "network: connect: refused", Retryable: true, Provider: "gvisor", Sandbox: id, Operation: "resume"},
			"1", "dial unix /run/x.sock: connect: refused",
		},
		"lost directory": {
			sandpit.Errorf(sandpit.Internal, "%w", lost),
			wire.Problem{Status: 500, Code: sandpit.Internal, Detail: "create: mkdir (server): file does not exist", Sandbox: id, Operation: "POST /v1/sandboxes/{id}/run"},
			"", "create: mkdir /srv/sandpit/state/scratch: file does not exist",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &lines{}
			server, admin, ann := failing(t, tc.err, log)
			got, header := post(t, server, ann, "/v1/sandboxes/"+string(id)+"/run")
			tc.want.Type, tc.want.Title, tc.want.RequestID = "about:blank", http.StatusText(tc.want.Status), "req-1"
			if fmt.Sprint(got) != fmt.Sprint(tc.want) || header.Get("Retry-After") != tc.retryAfter {
				t.Errorf("got  %+v, Retry-After %q\nwant %+v, %q", got, header.Get("Retry-After"), tc.want, tc.retryAfter)
			}
			if p, _ := post(t, server, admin, "/v1/sandboxes/"+string(id)+"/run"); p.Detail != tc.admin {
				t.Errorf("administrators see %q, want %q", p.Detail, tc.admin)
			}
			server.Close() // waits for what is logged afterwards
			told := strings.Contains(log.String(), `"msg":"api: request failed"`) && strings.Contains(log.String(), `"request_id":"req-1"`) &&
				strings.Contains(log.String(), `"sandbox":"`+string(id)) && strings.Contains(log.String(), `"actor":"ann"`) && strings.Contains(log.String(), `"error":`)
			if told != (tc.want.Status >= 500) {
				t.Errorf("the log at info says: %s", log.String())
			}
		})
	}
}
