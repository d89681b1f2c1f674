package e2b_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// long is how long anything may take that is not under test.
const long = 2 * time.Minute

// server is a sandpit server, as anybody starts it.
type server struct {
	url     string
	key     string
	domain  string // of ports, with the server's port
	program string
	environ []string
	runtime string // its runtime directory
	client  *http.Client
}

// newServer starts a server whose template "base" is the image that the recipe makes,
// with more of its settings. The template "code" is what this machine has: the packages
// of a code interpreter would make an image of more than a gigabyte.
func newServer(tb testing.TB, settings ...string) *server {
	tb.Helper()
	return newServerBy(tb, nil, settings...)
}

// newServerBy is newServer by a command whose further arguments are what it is to run.
func newServerBy(tb testing.TB, launcher []string, settings ...string) *server {
	tb.Helper()
	dir := tb.TempDir()
	s := &server{program: testengine.Path(tb), runtime: filepath.Join(dir, "run"), client: http.DefaultClient}
	s.environ = append(testengine.Environ(dir),
		"SANDPIT_SERVER_LISTEN=127.0.0.1:0", "SANDPIT_SERVER_KEYLESS=false", "SANDPIT_SERVER_DRAIN=1", "SANDPIT_E2B_TEMPLATES=code=host base="+string(buildImage(tb)))
	s.environ = append(s.environ, settings...)
	process := testserver.Start(tb, s.environ, launcher...)
	tb.Cleanup(func() {
		if s.key != "" {
			s.killAll(tb)
		}
		process.End(tb, syscall.SIGTERM)
		s.awaitEngines(tb)
	})
	s.url = process.URL
	s.domain = "localhost:" + s.url[strings.LastIndexByte(s.url, ':')+1:]
	s.key = strings.TrimSpace(s.command(tb, "key", "create", "-q", "--owner", "e2b", "--admin"))
	return s
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

// call calls the API, and returns the status and the body of the response.
func (s *server) call(tb testing.TB, method, path, body string) (int, []byte) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), long)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("X-Api-Key", s.key)
	req.Close = true
	res, err := s.client.Do(req)
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

// killAll ends what the tests have left: sandboxes outlive their server.
func (s *server) killAll(tb testing.TB) {
	tb.Helper()
	_, text := s.call(tb, http.MethodGet, "/v2/sandboxes?limit=1000", "")
	var list []struct {
		ID string `json:"sandboxID"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		tb.Errorf("list: %v: %s", err, text)
	}
	for _, box := range list {
		s.call(tb, http.MethodDelete, "/sandboxes/"+box.ID, "")
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

// environ returns what a program written for E2B needs in order to work here.
func (s *server) clientEnviron() []string {
	return append(withoutE2B(os.Environ()), "E2B_API_URL="+s.url, "E2B_SANDBOX_URL="+s.url, "E2B_API_KEY="+s.key)
}
