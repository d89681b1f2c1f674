package native_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is how long a test waits for what must come.
const long = 60 * time.Second

// rig is a server with all its parts, on fake sandboxes, and keys of its clients.
type rig struct {
	*manager.Manager

	url    string
	store  *store.Store
	world  *fake.World
	images *shelf
	client *http.Client
	admin  string // keys
	ann    string
	bob    string
	docs   *judge
	log    *lines
	stop   context.CancelFunc // drains the server
	ended  chan error
}

func newRig(tb testing.TB, change func(*native.Options, *manager.Options, *api.EdgeOptions)) *rig {
	tb.Helper()
	r := &rig{world: fake.NewWorld(tb.TempDir()), images: &shelf{}, log: &lines{}, ended: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	var err error
	if r.store, err = store.Open(tb.Context(), tb.TempDir(), store.Options{}); err != nil {
		tb.Fatal(err)
	}
	provider := r.world.NewProvider()
	mo := manager.Options{Store: r.store, Providers: map[string]sandpit.Provider{"fake": provider}, Log: log, Drain: 100 * time.Millisecond}
	keys := api.NewKeys(r.store, clock.System{}, log)
	no := native.Options{
		Store: r.store, Keys: keys, Images: r.images, Log: log, MaxBody: 1 << 20,
		Version: wire.Version{Sandpit: "0.0.0", Go: "go1", OS: "linux", Arch: "amd64"},
	}
	eo := api.EdgeOptions{Keys: keys, Public: native.Public(), Log: log}
	if change != nil {
		change(&no, &mo, &eo)
	}
	if r.Manager, err = manager.Open(tb.Context(), testoptions.Manager(mo)); err != nil {
		tb.Fatal(err)
	}
	no.Manager, eo.Report = r.Manager, r.Events().Record
	mux := http.NewServeMux()
	described := native.Register(mux, no)
	inside := data.New(data.Options{Manager: r.Manager, Timeout: long})
	inside.Register(mux)
	data.Describe(described)
	mux.HandleFunc("GET /v1/panic", func(http.ResponseWriter, *http.Request) { panic("on purpose") })
	r.docs = newJudge(tb, described.OpenAPI())
	server, err := api.Listen(tb.Context(), api.ServerOptions{Handler: api.NewEdge(eo).Handler(mux), Address: "127.0.0.1:0", Log: log, Drain: long})
	if err != nil {
		tb.Fatal(err)
	}
	r.url = "http://" + server.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	r.stop = cancel
	go func() { r.ended <- server.Serve(ctx) }()
	transport := &http.Transport{DialContext: (&net.Dialer{}).DialContext}
	r.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	tb.Cleanup(func() {
		cancel()
		transport.CloseIdleConnections()
		if err := <-r.ended; err != nil {
			tb.Errorf("serve: %v", err)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), long)
		defer cancel()
		if err := errors.Join(inside.Close(), r.Close(ctx), provider.Close(), r.store.Close(), r.world.Close()); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	r.admin = newKey(tb, keys, api.NewKey{Owner: "root", Admin: true})
	r.ann = newKey(tb, keys, api.NewKey{Owner: "ann"})
	r.bob = newKey(tb, keys, api.NewKey{Owner: "bob"})
	return r
}

func newKey(tb testing.TB, keys *api.Keys, n api.NewKey) string {
	tb.Helper()
	_, secret, err := keys.Create(tb.Context(), n)
	if err != nil {
		tb.Fatal(err)
	}
	return secret
}

// ask is one request.
type ask struct {
	method, path string
	key          string
	body         string
	header       map[string]string
}

// got is a response.
type got struct {
	status int
	header http.Header
	body   []byte
}

// do asks, and holds the answer against the description of the API.
func (r *rig) do(tb testing.TB, a ask) got {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), a.method, r.url+a.path, strings.NewReader(a.body))
	if err != nil {
		tb.Fatal(err)
	}
	if a.key != "" {
		req.Header.Set(wire.HeaderKey, a.key)
	}
	if a.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range a.header {
		req.Header.Set(name, value)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	g := got{resp.StatusCode, resp.Header, body}
	r.docs.check(tb, a, g)
	if g.header.Get(wire.HeaderRequestID) == "" || g.header.Get("X-Content-Type-Options") != "nosniff" {
		tb.Errorf("%s %s: headers %v, want an ID, and no sniffing", a.method, a.path, g.header)
	}
	return g
}

// want asks and expects a status; the answer is read into v, if there is one.
func (r *rig) want(tb testing.TB, a ask, status int, v any) got {
	tb.Helper()
	g := r.do(tb, a)
	if g.status != status {
		tb.Fatalf("%s %s: %d %s, want %d", a.method, a.path, g.status, g.body, status)
	}
	if v != nil {
		if err := json.Unmarshal(g.body, v); err != nil {
			tb.Fatalf("%s %s: %s: %v", a.method, a.path, g.body, err)
		}
	}
	return g
}

// fails asks and expects a problem.
func (r *rig) fails(tb testing.TB, a ask, status int, code sandpit.Code, part string) wire.Problem {
	tb.Helper()
	g := r.do(tb, a)
	var p wire.Problem
	if err := json.Unmarshal(g.body, &p); err != nil || g.header.Get("Content-Type") != wire.ContentTypeProblem {
		tb.Fatalf("%s %s: %d %s %s: %v, want a problem", a.method, a.path, g.status, g.header.Get("Content-Type"), g.body, err)
	}
	texts := []string{p.Detail, p.Hint}
	for _, f := range p.Errors {
		texts = append(texts, f.Location, f.Message)
	}
	text := strings.Join(texts, " ")
	if g.status != status || p.Status != status || p.Code != code || !strings.Contains(text, part) {
		tb.Errorf("%s %s: %d %s, want %d %q and %q in it", a.method, a.path, g.status, g.body, status, code, part)
	}
	if p.RequestID != g.header.Get(wire.HeaderRequestID) {
		tb.Errorf("%s %s: request %q, and the header says %q", a.method, a.path, p.RequestID, g.header.Get(wire.HeaderRequestID))
	}
	return p
}

// make creates a sandbox with a key.
func (r *rig) make(tb testing.TB, key, body string) sandpit.Sandbox {
	tb.Helper()
	var s sandpit.Sandbox
	r.want(tb, ask{method: "POST", path: "/v1/sandboxes", key: key, body: body}, http.StatusCreated, &s)
	return s
}

// eventually waits until something holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	tb.Fatalf("timeout waiting until %s", what)
}

// lines keeps what is logged.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// shelf is a cache of images without content.
type shelf struct {
	mu   sync.Mutex
	list []wire.Image
}

func (s *shelf) List(context.Context, api.Principal, string) ([]wire.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list, nil
}

func (s *shelf) Pull(ctx context.Context, _ api.Principal, p wire.Pull, progress func(wire.Progress)) (wire.Image, error) {
	switch p.Name {
	case "none":
		return wire.Image{}, sandpit.Errorf(sandpit.NotFound, "the registry has no %s", p.Name)
	case "panic":
		panic("on purpose")
	case "slow":
		<-ctx.Done()
		return wire.Image{}, context.Cause(ctx)
	}
	progress(wire.Progress{Done: 1, Total: 2})
	time.Sleep(600 * time.Millisecond) // longer than progress is held back
	progress(wire.Progress{Done: 2, Total: 2})
	s.mu.Lock()
	defer s.mu.Unlock()
	img := wire.Image{Name: p.Name, ID: strings.Repeat("a", 64), Kind: "registry", Size: 2, Used: time.Now()}
	s.list = append(s.list, img)
	return img, nil
}

func (s *shelf) Remove(_ context.Context, _, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, img := range s.list {
		if img.ID == id {
			s.list = append(s.list[:i], s.list[i+1:]...)
			return nil
		}
	}
	return sandpit.Errorf(sandpit.NotFound, "there is no image %s", id)
}
