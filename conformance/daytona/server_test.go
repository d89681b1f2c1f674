package daytona_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// long is how long an operation may take that is not under test.
const long = 2 * time.Minute

// server is a sandpit server whose sandboxes have this machine's files.
type server struct {
	url      string
	key      string // of an ordinary owner
	otherKey string // of another
	program  string
	environ  []string
	runtime  string // its runtime directory
}

// newServer starts a server. It ends with the test.
func newServer(tb testing.TB, settings ...string) *server {
	tb.Helper()
	dir := tb.TempDir()
	s := &server{program: testengine.Path(tb), runtime: filepath.Join(dir, "run")}
	s.environ = append(testengine.Environ(dir),
		"SANDPIT_SERVER_LISTEN=127.0.0.1:0", "SANDPIT_SERVER_KEYLESS=false", "SANDPIT_SERVER_DRAIN=1", "SANDPIT_E2B_TEMPLATES=base=host")
	s.environ = append(s.environ, settings...)
	process := testserver.Start(tb, s.environ)
	tb.Cleanup(func() {
		for _, key := range []string{s.key, s.otherKey} {
			if key != "" {
				s.deleteAll(tb, key)
			}
		}
		process.End(tb, syscall.SIGTERM)
		s.awaitEngines(tb)
	})
	s.url = process.URL
	s.key, s.otherKey = s.newKey(tb, "daytona"), s.newKey(tb, "other")
	return s
}

func (s *server) newKey(tb testing.TB, owner string) string {
	tb.Helper()
	return strings.TrimSpace(s.command(tb, "key", "create", "-q", "--owner", owner))
}

// command runs sandpit as a user of the server's machine does.
func (s *server) command(tb testing.TB, args ...string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), long)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env = s.environ
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		tb.Fatalf("%v: %v\n%s", args, err, &errs)
	}
	return out.String()
}

// call sends a request to the native API, and returns the status and the body.
func (s *server) call(tb testing.TB, key, method, path string) (int, []byte) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), long)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("X-Api-Key", key)
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return res.StatusCode, text
}

// deleteAll deletes the sandboxes of a key's owner, because sandboxes outlive their server.
func (s *server) deleteAll(tb testing.TB, key string) {
	tb.Helper()
	status, text := s.call(tb, key, http.MethodGet, "/v1/sandboxes?limit=1000")
	var page struct {
		Items []struct {
			ID string `json:"id"`
		} `json:"items"`
	}
	if err := json.Unmarshal(text, &page); err != nil || status != http.StatusOK {
		tb.Errorf("list sandboxes: status %d: %v: %s", status, err, text)
	}
	for _, box := range page.Items {
		s.call(tb, key, http.MethodDelete, "/v1/sandboxes/"+box.ID)
	}
}

// awaitEngines waits for engines to end, which they do soon after their last sandbox.
func (s *server) awaitEngines(tb testing.TB) {
	tb.Helper()
	for end := time.Now().Add(long); ; time.Sleep(50 * time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(s.runtime, "engines", "*"))
		if err != nil {
			tb.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			tb.Errorf("engines are left: %v", left)
			return
		}
	}
}

// clientEnviron returns what a program written for Daytona needs in order to use the server,
// and what the tests need besides. Nothing else in the environment may change the SDKs.
func (s *server) clientEnviron() []string {
	own := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "DAYTONA_") || strings.HasPrefix(v, "E2B_")
	})
	return append(own, "DAYTONA_API_URL="+s.url+"/api", "DAYTONA_API_KEY="+s.key,
		"SERVER_URL="+s.url, "OTHER_API_KEY="+s.otherKey, "E2B_API_URL="+s.url, "E2B_SANDBOX_URL="+s.url, "E2B_API_KEY="+s.key)
}
