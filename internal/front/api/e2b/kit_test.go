package e2b_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/e2b"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is how long a test waits for what must come.
const long = 60 * time.Second

// rig is a server on fake sandboxes, and keys of its clients.
type rig struct {
	*manager.Manager

	url             string
	client          *http.Client
	admin, ann, bob string // keys
	keys            *api.Keys
	store           *store.Store
}

// tokens are such that they can be told apart.
type tokens struct{}

func (tokens) AccessTokens(_ context.Context, id sandpit.ID, wantTraffic bool) (guest, traffic string, err error) {
	if wantTraffic {
		traffic = "traffic " + string(id)
	}
	return "guest " + string(id), traffic, nil
}

func newRig(tb testing.TB, change func(*e2b.Options)) *rig {
	tb.Helper()
	return newRigOf(tb, manager.Options{}, change)
}

// newRigOf is newRig with more options of the manager.
func newRigOf(tb testing.TB, more manager.Options, change func(*e2b.Options)) *rig {
	tb.Helper()
	world, r := fake.NewWorld(tb.TempDir()), &rig{}
	var err error
	if r.store, err = store.Open(tb.Context(), tb.TempDir(), store.Options{}); err != nil {
		tb.Fatal(err)
	}
	provider := world.NewProvider()
	more.Store, more.Providers = r.store, map[string]sandpit.Provider{"fake": provider}
	more.Drain, more.DestroyOnClose = 100*time.Millisecond, true
	r.Manager, err = manager.Open(tb.Context(), testoptions.Manager(more))
	if err != nil {
		tb.Fatal(err)
	}
	r.keys = api.NewKeys(r.store, clock.System{}, nil)
	o := e2b.Options{
		Manager: r.Manager, Store: r.store, Keys: r.keys, Tokens: tokens{}, Public: true, MaxBody: 1 << 20,
		Domain: func() string { return "localhost:1" },
	}
	if change != nil {
		change(&o)
	}
	mux := http.NewServeMux()
	e2b.New(o).Register(mux)
	edge := api.NewEdge(api.EdgeOptions{Keys: r.keys, Report: r.Events().Record, Refuse: e2b.WriteError})
	server, err := api.Listen(tb.Context(), api.ServerOptions{Handler: edge.Handler(mux), Address: "127.0.0.1:0", Drain: long})
	if err != nil {
		tb.Fatal(err)
	}
	r.url = "http://" + server.Addr().String()
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	transport := &http.Transport{DialContext: (&net.Dialer{}).DialContext}
	r.client = &http.Client{Transport: transport}
	tb.Cleanup(func() {
		stop()
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), long)
		defer cancel()
		if err := errors.Join(<-ended, r.Close(ctx), provider.Close(), r.store.Close(), world.Close()); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	r.admin = r.newKey(tb, api.NewKey{Owner: "root", Admin: true})
	r.ann, r.bob = r.newKey(tb, api.NewKey{Owner: "ann"}), r.newKey(tb, api.NewKey{Owner: "bob"})
	return r
}

func (r *rig) newKey(tb testing.TB, n api.NewKey) string {
	tb.Helper()
	_, secret, err := r.keys.Create(tb.Context(), n)
	if err != nil {
		tb.Fatal(err)
	}
	return secret
}

// got is a response.
type got struct {
	status int
	header http.Header
	body   string
}

// do sends a request with a key.
func (r *rig) do(tb testing.TB, key, method, path, body string) got {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), long)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	res, err := r.client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return got{res.StatusCode, res.Header, string(text)}
}

// want checks a status, and that failures have E2B's form and say something.
func (g got) want(tb testing.TB, status int, text string) {
	tb.Helper()
	if g.status != status || !strings.Contains(g.body, text) {
		tb.Errorf("status %d: %s; want %d and %q", g.status, g.body, status, text)
	}
	if g.status < 400 {
		return
	}
	var problem struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal([]byte(g.body), &problem); err != nil || problem.Code != g.status || problem.Message == "" {
		tb.Errorf("status %d and no failure as E2B has them: %s", g.status, g.body)
	}
}

// into reads an answer.
func (g got) into(tb testing.TB, to any) {
	tb.Helper()
	if err := json.Unmarshal([]byte(g.body), to); err != nil {
		tb.Fatalf("%v: %s", err, g.body)
	}
}

// made is a new sandbox of ann's.
func (r *rig) made(tb testing.TB, body string) string {
	tb.Helper()
	return r.madeBy(tb, r.ann, body)
}

// madeBy is made with a key.
func (r *rig) madeBy(tb testing.TB, key, body string) string {
	tb.Helper()
	g := r.do(tb, key, http.MethodPost, "/v2/sandboxes", body)
	g.want(tb, http.StatusCreated, "sandboxID")
	var b struct {
		ID string `json:"sandboxID"`
	}
	g.into(tb, &b)
	return b.ID
}
