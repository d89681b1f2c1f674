package data_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/routers"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take on a busy machine.
const patience = 90 * time.Second

const (
	alice = "alice"
	bob   = "bob"
)

// ownerHeader names the owner of a test's request.
const ownerHeader = "Test-Owner"

// rig is a server on a manager on a world of fake sandboxes.
type rig struct {
	testing.TB

	store *store.Store

	manager *manager.Manager
	world   *fake.World
	judge   routers.Router
	server  *data.Server
	url     string
	client  *http.Client // HTTP/1.1
	second  *http.Client // HTTP/2
}

// newRig starts all of it until the test ends.
func newRig(tb testing.TB, o data.Options) *rig {
	tb.Helper()
	world := fake.NewWorld(tb.TempDir())
	tb.Cleanup(func() {
		if err := world.Close(); err != nil {
			tb.Errorf("close the world: %v", err)
		}
	})
	r := rigOn(tb, o, map[string]sandpit.Provider{"fake": world.NewProvider()})
	r.world = world
	return r
}

// rigOn starts a server for providers.
func rigOn(tb testing.TB, o data.Options, providers map[string]sandpit.Provider) *rig {
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
	o.Manager, o.Timeout = m, cmp.Or(o.Timeout, 5*time.Minute)
	r := &rig{TB: tb, store: s, manager: m, server: data.New(o), judge: newJudge(tb)}
	stop := r.listen()
	tb.Cleanup(func() {
		stop()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer cancel()
		errs := []error{r.server.Close(), m.Close(ctx)}
		for _, p := range providers {
			errs = append(errs, p.Close())
		}
		if err := errors.Join(append(errs, s.Close())...); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return r
}

// listen serves on a port of its own.
func (r *rig) listen() (stop func()) {
	mux := http.NewServeMux()
	r.server.Register(mux)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		if owner := req.Header.Get(ownerHeader); owner != "" {
			ctx = api.WithPrincipal(ctx, api.Principal{Owner: owner})
		}
		mux.ServeHTTP(w, req.WithContext(ctx))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	r.url = server.URL
	first := &http.Transport{DisableCompression: true}
	second := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	second.Protocols.SetUnencryptedHTTP2(true)
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	r.client = &http.Client{Transport: first, CheckRedirect: noRedirect}
	r.second = &http.Client{Transport: second, CheckRedirect: noRedirect}
	return func() {
		first.CloseIdleConnections()
		second.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	}
}

// box makes a sandbox of alice's.
func (r *rig) box() sandpit.ID {
	r.Helper()
	s, err := r.manager.Create(r.Context(), manager.CreateRequest{Owner: alice})
	if err != nil {
		r.Fatal(err)
	}
	return s.ID
}

// both runs a test for each protocol.
func (r *rig) both(test func(t *testing.T, client *http.Client)) {
	r.Helper()
	run, ok := r.TB.(*testing.T)
	if !ok {
		r.Fatal("not in a benchmark")
	}
	run.Run("HTTP1", func(t *testing.T) { test(t, r.client) })
	run.Run("HTTP2", func(t *testing.T) { test(t, r.second) })
}

// request makes a request of alice's. The target is below the sandbox.
func (r *rig) request(ctx context.Context, method string, id sandpit.ID, target string, body io.Reader) *http.Request {
	r.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.url+wire.Prefix+"/sandboxes/"+string(id)+target, body)
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set(ownerHeader, alice)
	return req
}

// reply is an answer that was read.
type reply struct {
	status int
	header http.Header
	body   string
}

// do makes a call and reads the answer.
func (r *rig) do(client *http.Client, method string, id sandpit.ID, target string, body io.Reader) reply {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	return r.send(client, r.request(ctx, method, id, target, body))
}

func (r *rig) send(client *http.Client, req *http.Request) reply {
	r.Helper()
	got, err := answerOf(client, req)
	if err != nil {
		r.Fatal(err)
	}
	r.judged(req, got)
	return got
}

// answerOf makes a call and reads the answer, in any goroutine.
func answerOf(client *http.Client, req *http.Request) (reply, error) {
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return reply{}, fmt.Errorf("%s %s: status %d: read the answer: %w", req.Method, req.URL, res.StatusCode, err)
	}
	return reply{res.StatusCode, res.Header, string(text)}, nil
}

// asJSON is a body.
func asJSON(t *testing.T, value any) io.Reader {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(text)
}

// want checks a status and reads JSON into value, if that is not nil.
func (a reply) want(t *testing.T, status int, value any) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d: %.500s; want %d", a.status, a.body, status)
	}
	if value == nil {
		return
	}
	decoder := json.NewDecoder(strings.NewReader(a.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		t.Fatalf("%v: %.500s", err, a.body)
	}
}

// wantProblem checks that an answer is a problem of a kind.
func (a reply) wantProblem(t *testing.T, code sandpit.Code) wire.Problem {
	t.Helper()
	var p wire.Problem
	a.want(t, api.Status(code), &p)
	if p.Code != code || a.header.Get("Content-Type") != wire.ContentTypeProblem {
		t.Errorf("problem %+v of type %q, want %s", p, a.header.Get("Content-Type"), code)
	}
	if a.header.Get("Content-Disposition") != "" || a.header.Get("ETag") != "" {
		t.Errorf("headers of a file at a problem: %v", a.header)
	}
	return p
}

func jsonInto(text string, value any) error { return json.Unmarshal([]byte(text), value) }

// event is one of a stream.
type event struct{ id, name, data string }

// stream is a stream of events that is being read.
type stream struct {
	t     testing.TB
	res   *http.Response
	lines *bufio.Scanner
}

func (r *rig) stream(client *http.Client, req *http.Request) *stream {
	r.Helper()
	req.Header.Set("Accept", "text/event-stream")
	res, err := client.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(res.Body)
		r.Fatalf("status %d, %v: %.500s; want events", res.StatusCode, res.Header, text)
	}
	s := &stream{t: r.TB, res: res, lines: bufio.NewScanner(res.Body)}
	s.lines.Buffer(nil, 1<<20)
	return s
}

// next returns the next event; comments are left out.
func (s *stream) next() (event, bool) {
	s.t.Helper()
	var e event
	for s.lines.Scan() {
		key, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch key {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = value
		case "":
			if e.name != "" {
				return e, true
			}
		}
	}
	return e, false
}

// must returns the next event, which must have a name, with its data in value.
func (s *stream) must(name string, value any) event {
	s.t.Helper()
	e, ok := s.next()
	if !ok || e.name != name {
		s.t.Fatalf("event %+v (%t, %v), want %s", e, ok, s.lines.Err(), name)
	}
	if err := json.Unmarshal([]byte(e.data), value); err != nil {
		s.t.Fatalf("%v: %s", err, e.data)
	}
	return e
}

// eventually waits until something holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	tb.Fatalf("timeout waiting until %s", what)
}

// idle waits until no call uses a sandbox.
func (r *rig) idle() {
	r.Helper()
	eventually(r.TB, "all sandboxes are released", func() bool { return r.manager.Stats().ActiveOperations == 0 })
}

func query(pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	return "?" + values.Encode()
}

// dial opens a connection on which a test says what it wants to.
func (r *rig) dial() net.Conn {
	r.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(r.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = conn.Close() })
	return conn
}
