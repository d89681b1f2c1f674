package toolbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take on a busy machine.
const patience = 90 * time.Second

// rigOwner names the owner of a request of a test; the value tells clients apart.
const (
	rigOwner = "Rig-Owner"
	alice    = "alice"
	bob      = "bob"
	admin    = "admin" // an administrator
)

// rigAccount is a header of requests of a test whose memory counts, as behind the edge.
const rigAccount = "Rig-Account"

// rig is a toolbox server on a manager, with a sandbox of alice.
type rig struct {
	testing.TB

	manager   *manager.Manager
	toolboxes *toolbox.Server
	id        sandpit.ID
	url       string
	client    *http.Client
}

// newRig starts all of it, with fake sandboxes, until the test ends.
func newRig(tb testing.TB, o toolbox.Options) *rig {
	tb.Helper()
	world := fake.NewWorld(tb.TempDir())
	tb.Cleanup(func() {
		if err := world.Close(); err != nil {
			tb.Errorf("close the world: %v", err)
		}
	})
	return rigOn(tb, o, map[string]sandpit.Provider{"fake": world.NewProvider()})
}

// rigOn starts a server for providers.
func rigOn(tb testing.TB, o toolbox.Options, providers map[string]sandpit.Provider) *rig {
	tb.Helper()
	s, err := store.Open(tb.Context(), tb.TempDir(), store.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	m, err := manager.Open(tb.Context(), testoptions.Manager(manager.Options{
		Store: s, Log: slog.New(slog.DiscardHandler), Providers: providers, DestroyOnClose: true,
	}))
	if err != nil {
		tb.Fatal(err)
	}
	o.Manager = m
	toolboxes := toolbox.New(o)
	mux := http.NewServeMux()
	toolboxes.Register(mux)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if owner := r.Header.Get(rigOwner); owner != "" {
			r = r.WithContext(api.WithPrincipal(r.Context(), api.Principal{Owner: owner, Admin: owner == admin}))
			if r.Header.Get(rigAccount) != "" {
				account := o.Memory.OpenRequest(owner)
				defer account.Close()
				r = r.WithContext(memory.WithAccount(r.Context(), account))
			}
		}
		mux.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	transport := &http.Transport{}
	r := &rig{TB: tb, manager: m, toolboxes: toolboxes, url: server.URL, client: &http.Client{Transport: transport}}
	tb.Cleanup(func() {
		transport.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer cancel()
		errs := []error{toolboxes.Close(), m.Close(ctx)}
		for _, p := range providers {
			errs = append(errs, p.Close())
		}
		if err := errors.Join(append(errs, s.Close())...); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	r.id = r.newSandbox(alice)
	return r
}

// newSandbox creates a sandbox of an owner.
func (r *rig) newSandbox(owner string) sandpit.ID {
	r.Helper()
	s, err := r.manager.Create(r.Context(), manager.CreateRequest{Owner: owner})
	if err != nil {
		r.Fatal(err)
	}
	return s.ID
}

// reply is a response that was read.
type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request of alice to the sandbox.
func (r *rig) do(method, path, body string, headers ...string) reply {
	r.Helper()
	return r.doAs(alice, r.url+toolbox.Path+string(r.id)+path, method, body, headers...)
}

// doAs sends a request of an owner.
func (r *rig) doAs(owner, url, method, body string, headers ...string) reply {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	if owner != "" {
		req.Header.Set(rigOwner, owner)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatalf("%s %s: read the response: %v", method, url, err)
	}
	return reply{res.StatusCode, res.Header, string(text)}
}

// want checks a status and reads JSON into value, unless that is nil.
func (a reply) want(tb testing.TB, status int, value any) {
	tb.Helper()
	if a.status != status {
		tb.Fatalf("status %d: %.500s; want %d", a.status, a.body, status)
	}
	if value == nil {
		return
	}
	if err := json.Unmarshal([]byte(a.body), value); err != nil {
		tb.Fatalf("%v: %.500s", err, a.body)
	}
}

// failure is Daytona's form of an error.
type failure struct {
	StatusCode int       `json:"statusCode"`
	Message    string    `json:"message"`
	Code       string    `json:"code"`
	Timestamp  time.Time `json:"timestamp"`
	Path       string    `json:"path"`
	Method     string    `json:"method"`
	Source     string    `json:"source"`
}

// wantFailure checks that a response is an error of the toolbox.
func (a reply) wantFailure(tb testing.TB, status int, code string) failure {
	tb.Helper()
	var f failure
	a.want(tb, status, &f)
	if f.StatusCode != status || f.Code != code || f.Source != "DAYTONA_DAEMON" || f.Message == "" || f.Method == "" || f.Path == "" || f.Timestamp.IsZero() {
		tb.Errorf("error %+v, want status %d and code %s", f, status, code)
	}
	return f
}

// eventually waits until something holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	tb.Fatalf("it did not happen that %s", what)
}

// checkIdle waits until no request uses a sandbox.
func (r *rig) checkIdle() {
	r.Helper()
	eventually(r.TB, "all sandboxes are released", func() bool { return r.manager.Stats().ActiveOperations == 0 })
}

// wire is a WebSocket of a test.
type wire struct {
	testing.TB

	conn *websocket.Conn
	ctx  context.Context //nolint:containedctx // of the test
}

// dial opens a WebSocket of alice to the sandbox.
func (r *rig) dial(path string, headers http.Header, protocols ...string) *wire {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	r.Cleanup(cancel)
	h := http.Header{rigOwner: {alice}}
	maps.Copy(h, headers)
	url := strings.Replace(r.url, "http", "ws", 1) + toolbox.Path + string(r.id) + path
	conn, res, err := websocket.Dial(ctx, url, //nolint:bodyclose // the library closes it
		&websocket.DialOptions{HTTPHeader: h, HTTPClient: r.client, Subprotocols: protocols})
	if err != nil {
		r.Fatalf("dial %s: %v, %+v", path, err, res)
	}
	r.Cleanup(func() { _ = conn.CloseNow() })
	return &wire{r.TB, conn, ctx}
}

// frame reads a frame.
func (w *wire) frame() (websocket.MessageType, []byte, error) { return w.conn.Read(w.ctx) }

// control reads a text frame with JSON.
func (w *wire) control() map[string]any {
	w.Helper()
	kind, text, err := w.frame()
	var value map[string]any
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil || kind != websocket.MessageText {
		w.Fatalf("read a control frame: %v, %v, %q", err, kind, text)
	}
	return value
}

// until reads frames until they contain a text, and returns all of it.
func (w *wire) until(want string) string {
	w.Helper()
	var all strings.Builder
	for !strings.Contains(all.String(), want) {
		_, p, err := w.frame()
		if err != nil {
			w.Fatalf("read until %q: %v, after %q", want, err, all.String())
		}
		all.Write(p)
	}
	return all.String()
}

// rest reads binary frames until the connection is closed, and returns them with the reason.
func (w *wire) rest() (string, websocket.CloseError) {
	w.Helper()
	var all strings.Builder
	for {
		_, p, err := w.frame()
		if err != nil {
			closed, ok := errors.AsType[websocket.CloseError](err)
			if !ok {
				w.Fatalf("read to the end: %v, after %q", err, all.String())
			}
			return all.String(), closed
		}
		all.Write(p)
	}
}

// send sends a text frame.
func (w *wire) send(text string) {
	w.Helper()
	if err := w.conn.Write(w.ctx, websocket.MessageText, []byte(text)); err != nil {
		w.Fatal(err)
	}
}
