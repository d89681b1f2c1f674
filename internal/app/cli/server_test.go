package cli_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
	"github.com/sandpit-dev/sandpit/internal/front/publish"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// long is how long a test waits for what must come.
const long = 60 * time.Second

// server is a real server in this process.
type server struct {
	*manager.Manager

	url  string
	keys *api.Keys
}

// newServer serves sandboxes of a provider, which it closes at the end.
func newServer(t *testing.T, name string, provider sandpit.Provider, pools ...manager.Pool) *server {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	st, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{keys: api.NewKeys(st, clock.System{}, log)}
	ports := publish.New(log)
	if s.Manager, err = manager.Open(t.Context(), testoptions.Manager(manager.Options{
		Store: st, Providers: map[string]sandpit.Provider{name: provider}, Log: log, Drain: 100 * time.Millisecond,
		MaxSandboxes: 1000, DestroyOnClose: true, Pools: pools,
		Publisher: ports,
	})); err != nil {
		t.Fatal(err)
	}
	edge := api.NewEdge(api.EdgeOptions{Keys: s.keys, Report: s.Events().Record, Public: native.Public(), Log: log})
	tokens, err := token.Open(t.Context(), token.Options{Store: st, Keys: s.keys, Dir: t.TempDir(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	previews, err := preview.Open(t.Context(), preview.Options{
		Manager: s.Manager, Store: st, Tokens: tokens, Keys: s.keys, Domain: "localhost", Admit: edge.Admit, Log: log, Places: s.places,
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	native.Register(mux, native.Options{
		Manager: s.Manager, Store: st, Keys: s.keys, Log: log, Previews: previews, Tokens: tokens, MaxBody: 4 << 20,
		Version: wire.Version{Sandpit: "v0.0.0-server", GVisor: "release-1", Go: "go1.99", OS: "linux", Arch: "amd64"},
		Providers: func(context.Context) []wire.Provider {
			return []wire.Provider{
				{
					Name: name, Default: true, Available: true, Abilities: []string{"pause", "stop"}, Missing: map[string]string{"snapshot": "not in this plan"},
					Circuit: "open", CircuitReason: "it was full", CircuitSeconds: 20,
					Sandboxes: 2, MaxSandboxes: 10, SandboxHours: 1.5, MaxSandboxHours: 100,
					Account: &sandpit.Account{Endpoint: "https://api.example.com", Name: "team a", MaxLifetime: time.Hour},
				},
				{Name: "nowhere", Reason: "connection refused", Endpoint: "unix:///no.sock", Hint: "start it"},
			}
		},
	})
	data.New(data.Options{Manager: s.Manager, Timeout: 5 * time.Minute}).Register(mux)
	listener, err := api.Listen(t.Context(), api.ServerOptions{Handler: previews.Handler(edge.Handler(mux)), Address: "127.0.0.1:0", Log: log, Drain: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + listener.Addr().String()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- listener.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		err := <-ended
		if errors.Is(err, sandpit.Timeout) {
			err = nil // a program that was killed may have left something behind
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
		defer cancel()
		if err := errors.Join(err, ports.Close(), s.Close(ctx), provider.Close(), st.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// places tells where previews are seen.
func (s *server) places() preview.Places {
	host, ok := strings.CutPrefix(s.url, "http://127.0.0.1:")
	if !ok {
		return preview.Places{}
	}
	return preview.Places{Scheme: "http", Host: "localhost:" + host}
}

// newFakeServer serves sandboxes without isolation.
func newFakeServer(t *testing.T) *server {
	t.Helper()
	world := fake.NewWorld(t.TempDir())
	t.Cleanup(func() { _ = world.Close() })
	kind := sandpit.Spec{Hostname: "pooled"}
	return newServer(t, "fake", world.NewProvider(), manager.Pool{Spec: kind, Size: 1})
}

// key makes an API key.
func (s *server) key(t interface{ Fatal(args ...any) }, owner string, admin bool) string {
	_, secret, err := s.keys.Create(context.Background(), api.NewKey{Owner: owner, Admin: admin})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// environ is for a program that uses the server.
func (s *server) environ(dir, key string) []string {
	return append(testengine.Environ(dir), "SANDPIT_URL="+s.url, "SANDPIT_API_KEY="+key)
}

// runServerScripts runs scripts against a server. Each has a key of its own, whose
// sandboxes only it sees, OWNER, its owner, and ADMIN_KEY.
func runServerScripts(t *testing.T, dir string, s *server, environ ...string) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir: dir, RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			owner := filepath.Base(env.WorkDir)
			env.Vars = append(env.Vars, s.environ(env.WorkDir, s.key(env.T(), owner, false))...)
			env.Setenv("OWNER", owner)
			env.Setenv("ADMIN_KEY", s.key(env.T(), "root", true))
			env.Setenv("OWNER", owner)
			env.Vars = append(env.Vars, environ...)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": statusIs, "until": until, "set": set},
	})
}

// until runs a command again and again until what it prints matches:
//
//	until 'gone' sandpit inspect work
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP COMMAND [ARG...]")
	}
	re := regexp.MustCompile(args[0])
	for end := time.Now().Add(long); ; time.Sleep(50 * time.Millisecond) {
		_ = ts.Exec(args[1], args[2:]...) // may well fail until then
		out := ts.ReadFile("stdout") + ts.ReadFile("stderr")
		if re.MatchString(out) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("no %s in:\n%s", args[0], out)
		}
	}
}

// set keeps what a command prints in a variable:
//
//	set ID sandpit create -q
func set(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: set NAME COMMAND [ARG...]")
	}
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		ts.Fatalf("%v", err)
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// TestServerScripts uses a server as a person would, whose sandboxes are not isolated.
func TestServerScripts(t *testing.T) {
	t.Parallel()
	runServerScripts(t, filepath.Join("testdata", "server"), newFakeServer(t))
}

// TestServerScriptsInGVisor does some of it with real sandboxes.
func TestServerScriptsInGVisor(t *testing.T) {
	t.Parallel()
	engine := testengine.Path(t)
	dir := t.TempDir()
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"run", "scratch", "stopped"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	provider, err := gvisor.New(gvisor.Config{
		RuntimeDir: filepath.Join(dir, "run"), ScratchDir: filepath.Join(dir, "scratch"), KeepDir: filepath.Join(dir, "stopped"),
		VolumeDir: filepath.Join(dir, "volumes"), SuspendDir: filepath.Join(dir, "suspended"), Images: images, Engine: engine,
		Defaults: testengine.Limits(),
	})
	if err != nil {
		t.Fatal(err)
	}
	runServerScripts(t, filepath.Join("testdata", "gvisor"), newServer(t, "gvisor", provider))
}

// user works with a server at a terminal or by signals.
type user struct {
	server *server
	dir    string
	key    string
}

func newUser(t *testing.T) *user {
	t.Helper()
	s := newFakeServer(t)
	return &user{server: s, dir: t.TempDir(), key: s.key(t, "user", false)}
}

func (u *user) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...) //nolint:noctx // each test ends it in its own way
	cmd.Args[0] = "sandpit"                  // as TestMain wants it
	cmd.Env = u.server.environ(u.dir, u.key)
	return cmd
}

func (u *user) run(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := u.command(args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, &stderr)
	}
	return strings.TrimSpace(stdout.String())
}
