package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(docked{m}) }

// docked are tests with a docker engine, which is ended after them.
type docked struct{ *testing.M }

func (d docked) Run() int { return testdocker.Main(d.M) }

// patience is how long anything may take on a busy machine.
const patience = 2 * time.Minute

// configured is a configuration whose directories are the test's own. The names of
// sockets must be short.
func configured(t *testing.T, lines ...string) config.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp") //nolint:usetesting // t.TempDir is too long a name for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "config.toml")
	text := "provider = 'fake'\n[server]\nlisten = '127.0.0.1:0'\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{File: file, Environ: testengine.Environ(dir)[2:], UID: 1000, Home: dir})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// fakes is a table of providers with one that works and one that does not.
func fakes(world *fake.World) []registration.Provider {
	endpoint := func(config.Config) string { return "here" }
	return []registration.Provider{
		{Name: "fake", Endpoint: endpoint, Open: func(context.Context, registration.Surroundings) (sandpit.Provider, error) {
			return world.NewProvider(), nil
		}},
		{Name: "broken", Endpoint: endpoint, Open: func(context.Context, registration.Surroundings) (sandpit.Provider, error) {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "no answer"), "start it")
		}},
	}
}

func newWorld(t *testing.T) *fake.World {
	t.Helper()
	world := fake.NewWorld(t.TempDir())
	t.Cleanup(func() {
		if err := world.Close(); err != nil {
			t.Errorf("close the world: %v", err)
		}
	})
	return world
}

// running is a server of a test.
type running struct {
	Addresses

	t      *testing.T
	client *http.Client // by the unix socket
	out    *pages
	log    *pages
	end    context.CancelFunc
	done   chan error
}

// pages takes concurrent writes.
type pages struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *pages) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *pages) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func start(t *testing.T, cfg config.Config, list []registration.Provider) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{t: t, out: &pages{}, log: &pages{}, end: cancel, done: make(chan error, 1)}
	started := make(chan Addresses, 1)
	go func() {
		r.done <- serveWith(ctx, cfg, Options{Out: r.out, Log: r.log, Started: func(a Addresses) { started <- a }}, list)
	}()
	select {
	case r.Addresses = <-started:
	case err := <-r.done:
		cancel()
		t.Fatalf("serve: %v\n%s", err, r.log)
	case <-time.After(patience):
		cancel()
		t.Fatalf("the server does not start\n%s", r.log)
	}
	r.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", r.Socket)
		},
	}}
	t.Cleanup(func() { r.stop() })
	return r
}

// stop ends the server and expects that nothing goes wrong.
func (r *running) stop() {
	r.t.Helper()
	if r.end == nil {
		return
	}
	r.client.CloseIdleConnections()
	r.end()
	r.end = nil
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Errorf("serve: %v\n%s", err, r.log)
		}
	case <-time.After(patience):
		r.t.Errorf("the server does not end\n%s", r.log)
	}
}

// ask sends a request by the unix socket and expects a status.
func (r *running) ask(method, path, body string, want int) string {
	r.t.Helper()
	return r.askAt(r.client, "http://localhost"+path, method, body, want)
}

func (r *running) askAt(c *http.Client, url, method, body string, want int) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v\n%s", method, url, err, r.log)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		r.t.Fatalf("%s %s: %s, want %d; %v\n%s\n%s", method, url, res.Status, want, err, text, r.log)
	}
	return string(text)
}

// made is a sandbox as the API tells of it.
func (r *running) sandbox(method, path, body string, want int) sandpit.Sandbox {
	r.t.Helper()
	var s sandpit.Sandbox
	if err := json.Unmarshal([]byte(r.ask(method, path, body, want)), &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func TestServe(t *testing.T) {
	t.Parallel()
	cfg := configured(t, "[telemetry]", "metrics_listen = '127.0.0.1:0'", "[[pool]]", "size = 1", "[sandbox]", "pids_limit = 77")
	world := newWorld(t)
	r := start(t, cfg, fakes(world))
	if want := fmt.Sprintf("sandpit listens at %s and unix://%s\nTry: sandpit create\n", r.URL, r.Socket); r.out.String() != want {
		t.Errorf("out: %q, want %q", r.out, want)
	}
	r.ask("GET", "/healthz", "", http.StatusOK)
	if got := r.ask("GET", "/readyz", "", http.StatusOK); !strings.Contains(got, `"engine"`) || !strings.Contains(got, `"store"`) || !strings.Contains(got, `"queue"`) || !strings.Contains(got, `"disk"`) {
		t.Errorf("ready: %s", got)
	}
	if got := r.ask("GET", "/v1/providers", "", http.StatusOK); !strings.Contains(got, `"reason":"no answer"`) || !strings.Contains(got, `"hint":"start it"`) {
		t.Errorf("providers: %s", got)
	}
	s := r.sandbox("POST", "/v1/sandboxes", `{}`, http.StatusCreated)
	if s.State != sandpit.StateRunning || s.Spec.Resources.PIDs != 77 || s.Spec.Image != sandpit.HostImage || s.Spec.Env["LANG"] != "C.UTF-8" {
		t.Errorf("sandbox: %+v", s)
	}
	// Over TCP, with no key, from this machine.
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r.askAt(c, r.URL+"/v1/sandboxes", "GET", "", http.StatusOK)
	for _, text := range []string{r.askAt(c, r.Metrics, "GET", "", http.StatusOK), r.ask("GET", "/metrics", "", http.StatusOK)} {
		for _, line := range []string{
			`sandpit_sandboxes{state="running"} 1`, `sandpit_operations_total{action="create",code="ok"} 1`,
			`sandpit_http_requests_total{code="201",method="POST",route="/v1/sandboxes"} 1`, `sandpit_source_up{source="queue"} 1`,
			`sandpit_pool_requests_total{image="host",provider="fake",result=`, `sandpit_provider_calls_total{call="create",code="ok",provider="fake"}`,
		} {
			if !strings.Contains(text, line) {
				t.Errorf("metrics: nothing of %s in\n%s", line, text)
			}
		}
	}
	r.ask("DELETE", "/v1/sandboxes/"+string(s.ID), "", http.StatusNoContent)
}

// A sandbox and its programs continue to run when the server is started again.
func TestRestartKeepsSandboxes(t *testing.T) {
	t.Parallel()
	world := newWorld(t)
	testRestart(t, configured(t), fakes(world))
}

func TestRestartKeepsRealSandboxes(t *testing.T) {
	t.Parallel()
	cfg := configured(t)
	cfg.Engine, cfg.Provider = testengine.Path(t), "gvisor"
	testRestart(t, cfg, registrations())
}

func testRestart(t *testing.T, cfg config.Config, list []registration.Provider) {
	t.Helper()
	r := start(t, cfg, list)
	s := r.sandbox("POST", "/v1/sandboxes", `{"spec":{"name":"kept"}}`, http.StatusCreated)
	if _, err := os.Stat(r.Socket); err != nil {
		t.Error(err)
	}
	// Two servers cannot have one state directory.
	other := cfg
	other.Server.Socket = cfg.Server.Socket + "2"
	if err := serveWith(t.Context(), other, Options{}, list); !errors.Is(err, sandpit.Conflict) {
		t.Errorf("second server: %v, want a conflict", err)
	}
	r.stop()
	if _, err := os.Stat(r.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	r = start(t, cfg, list)
	got := r.sandbox("GET", "/v1/sandboxes/"+string(s.ID), "", http.StatusOK)
	if got.State != sandpit.StateRunning || got.Spec.Name != "kept" || !got.CreatedAt.Equal(s.CreatedAt) {
		t.Errorf("after the restart: %+v", got)
	}
	r.ask("DELETE", "/v1/sandboxes/"+string(s.ID), "", http.StatusNoContent)
	r.stop()
}

func TestServeRefuses(t *testing.T) {
	t.Parallel()
	world := newWorld(t)
	for name, tc := range map[string]struct {
		lines []string
		edit  func(*config.Config)
		code  sandpit.Code
		text  string
		hint  string
	}{
		"an unknown provider": {
			edit: func(c *config.Config) { c.Provider = "x" },
			code: sandpit.Unsupported, text: `Unsupported provider type: "x". Available providers: fake, broken`,
		},
		"a broken default": {
			edit: func(c *config.Config) { c.Provider = "broken" },
			code: sandpit.Unavailable, text: "no answer", hint: "start it",
		},
		"an open door without a key": {
			edit: func(c *config.Config) { c.Server.Listen = "0.0.0.0:0" },
			code: sandpit.PermissionDenied, text: "there is no API key", hint: "SANDPIT_SERVER_LISTEN=none",
		},
		"no such Redis": {
			lines: []string{"[queue]", "provider = 'redis'", "redis_url = 'redis://:s3cret@127.0.0.1:1'"},
			code:  sandpit.Unavailable, text: "redis: ",
		},
		"no certificate": {
			edit: func(c *config.Config) { c.Server.TLSCert, c.Server.TLSKey = "/nowhere", "/nowhere" },
			code: sandpit.Invalid, text: "certificate",
		},
		"a pool of an unknown provider": {
			lines: []string{"[[pool]]", "size = 1", "provider = 'nobody'"},
			code:  sandpit.Invalid, text: `there is no provider "nobody"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := configured(t, tc.lines...)
			if tc.edit != nil {
				tc.edit(&cfg)
			}
			err := serveWith(t.Context(), cfg, Options{}, fakes(world))
			if !errors.Is(err, tc.code) || !strings.Contains(err.Error(), tc.text) || !strings.Contains(sandpit.HintOf(err), tc.hint) ||
				strings.Contains(err.Error(), "s3cret") {
				t.Errorf("serve: %v (%s, hint %q)", err, sandpit.CodeOf(err), sandpit.HintOf(err))
			}
			// Everything was given back.
			s, err := store.Open(t.Context(), cfg.StateDir, store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Close()
		})
	}
}

// With a key the server may be reached from elsewhere.
func TestServeEverywhereWithAKey(t *testing.T) {
	t.Parallel()
	cfg := configured(t)
	cfg.Server.Listen = "0.0.0.0:0"
	for _, dir := range []string{cfg.StateDir} {
		if err := config.MakePrivate(dir, os.Geteuid()); err != nil {
			t.Fatal(err)
		}
	}
	s, err := store.Open(t.Context(), cfg.StateDir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := api.NewKeys(s, clock.System{}, nil).Create(t.Context(), api.NewKey{Owner: "me"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	start(t, cfg, fakes(newWorld(t))).stop()
}

// TestSystemd plays systemd.
func TestSystemd(t *testing.T) {
	t.Parallel()
	cfg := configured(t)
	cfg.Systemd = config.Systemd{Socket: filepath.Join(filepath.Dir(cfg.File), "notify"), Watchdog: time.Second}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: cfg.Systemd.Socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan string, 100)
	go func() {
		defer close(heard)
		buffer := make([]byte, 4096)
		for {
			n, err := l.Read(buffer)
			if err != nil {
				return
			}
			heard <- string(buffer[:n])
		}
	}()
	expect := func(want string) {
		t.Helper()
		for timer := time.After(patience); ; {
			select {
			case got := <-heard:
				if strings.HasPrefix(got, want) {
					return
				}
			case <-timer:
				t.Fatalf("systemd did not hear %s", want)
			}
		}
	}
	r := start(t, cfg, fakes(newWorld(t)))
	expect("READY=1\nSTATUS=listening at http://127.0.0.1:")
	expect("WATCHDOG=1")
	r.stop()
	expect("STOPPING=1")
	_ = l.Close()
	for range heard { // until its goroutine has ended
	}
}

func TestProviders(t *testing.T) {
	t.Parallel()
	cfg := configured(t)
	var names []string
	for _, p := range registrations() {
		names = append(names, p.Name)
	}
	if _, err := Providers(t.Context(), cfg); err == nil || err.Error() != `Unsupported provider type: "fake". Available providers: `+strings.Join(names, ", ") {
		t.Errorf("providers: %v", err)
	}
	cfg.Provider, cfg.Engine = "gvisor", "/nowhere/sandpit"
	list, err := Providers(t.Context(), cfg)
	if err != nil || len(list) != len(registrations()) {
		t.Fatalf("providers: %+v, %v", list, err)
	}
	if p := list[0]; p.Name != "gvisor" || !p.Default || p.Err == nil || p.Endpoint != "/nowhere/sandpit" {
		t.Errorf("gvisor: %+v", p)
	}
}

func TestConsoleWanted(t *testing.T) {
	t.Parallel()
	for format, want := range map[string][2]bool{"auto": {false, true}, "console": {true, true}, "json": {false, false}} {
		if got := [2]bool{consoleWanted(format, false), consoleWanted(format, true)}; got != want {
			t.Errorf("%s: %v, want %v", format, got, want)
		}
	}
}
