package api_test

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is how long a test waits for what must come.
const long = 60 * time.Second

func openStore(tb testing.TB) *store.Store {
	tb.Helper()
	s, err := store.Open(tb.Context(), tb.TempDir(), store.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// serving is a server that runs.
type serving struct {
	*api.Server

	stop  context.CancelFunc
	ended chan error
}

// serve runs a server till the end of the test.
func serve(tb testing.TB, o api.ServerOptions) *serving {
	tb.Helper()
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	o.Drain = cmp.Or(o.Drain, 30*time.Second)
	s, err := api.Listen(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	run := &serving{Server: s, stop: cancel, ended: make(chan error, 1)}
	go func() { run.ended <- s.Serve(ctx) }()
	tb.Cleanup(func() {
		cancel()
		select {
		case err := <-run.ended:
			if err != nil {
				tb.Errorf("serve: %v", err)
			}
		case <-time.After(long):
			tb.Error("the server does not end")
		}
	})
	return run
}

// dial opens a connection that is closed with the test.
func (s *serving) dial(tb testing.TB) net.Conn {
	tb.Helper()
	var d net.Dialer
	c, err := d.DialContext(tb.Context(), "tcp", s.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(long)); err != nil {
		tb.Fatal(err)
	}
	return c
}

// gate is an edge with keys, in front of a few routes.
type gate struct {
	*serving

	keys    *api.Keys
	key     string        // of ann
	release chan struct{} // what /wait waits for
	written chan error    // how the answers of /large went
	mu      sync.Mutex
	reports []manager.Report
	answers []api.Outcome
	log     *lines
	client  *http.Client
}

func newGate(tb testing.TB, change func(*api.EdgeOptions, *api.ServerOptions)) *gate {
	tb.Helper()
	g := &gate{log: &lines{}, release: make(chan struct{}), written: make(chan error, 10)}
	log := slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g.keys = api.NewKeys(openStore(tb), clock.System{}, log)
	_, secret, err := g.keys.Create(tb.Context(), api.NewKey{Owner: "ann"})
	if err != nil {
		tb.Fatal(err)
	}
	g.key = secret
	eo := api.EdgeOptions{
		Keys: g.keys, Log: log, Public: []string{"/public"}, PublicBelow: []string{"/below/"},
		Report: func(r manager.Report) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.reports = append(g.reports, r)
		},
		Observe: func(_ *http.Request, a api.Outcome) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.answers = append(g.answers, a)
		},
	}
	so := api.ServerOptions{Log: log}
	if change != nil {
		change(&eo, &so)
	}
	mux := http.NewServeMux()
	who := func(w http.ResponseWriter, r *http.Request) {
		p, err := api.PrincipalOf(r.Context())
		if err != nil {
			_, _ = io.WriteString(w, "no principal")
			return
		}
		_, _ = io.WriteString(w, p.Owner)
	}
	mux.HandleFunc("GET /public", who)
	mux.HandleFunc("GET /below/{path...}", who)
	mux.HandleFunc("GET /who", who)
	mux.HandleFunc("POST /who", who)
	mux.HandleFunc("GET /box/{id}", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.PathValue("id")) })
	mux.HandleFunc("GET /wait", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush() // the request has come in
		select {
		case <-r.Context().Done():
		case <-g.release:
			_, _ = io.WriteString(w, "whole")
		}
	})
	mux.HandleFunc("GET /large", func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(make([]byte, 64<<20))
		g.written <- err
	})
	mux.HandleFunc("GET /panic", func(http.ResponseWriter, *http.Request) { panic("on purpose") })
	mux.HandleFunc("GET /late", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half of")
		_ = http.NewResponseController(w).Flush()
		panic("on purpose")
	})
	so.Handler = api.NewEdge(eo).Handler(mux)
	g.serving = serve(tb, so)
	transport := &http.Transport{}
	tb.Cleanup(transport.CloseIdleConnections)
	g.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return g
}

// got is a response.
type got struct {
	status int
	header http.Header
	body   string
}

// ask makes one request, with ann's key unless the header has another.
func (g *gate) ask(tb testing.TB, method, path string, header map[string]string) got {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, "http://"+g.Addr().String()+path, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("X-Api-Key", g.key)
	for name, value := range header {
		switch {
		case name == "Host":
			req.Host = value
		case value == "":
			req.Header.Del(name)
		default:
			req.Header.Set(name, value)
		}
	}
	resp, err := g.client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		body = append(body, (" !" + err.Error())...)
	}
	return got{resp.StatusCode, resp.Header, string(body)}
}

// lines keeps what is logged.
type lines struct {
	mu sync.Mutex
	b  []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}

func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	tb.Fatalf("timeout waiting until %s", what)
}
