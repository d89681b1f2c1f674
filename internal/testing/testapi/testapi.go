// Package testapi runs a server's API on fake sandboxes in the process of a test.
package testapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// Patience bounds each request, and the end of the server.
const Patience = 60 * time.Second

// Server is a server with its parts, and keys of its clients.
type Server struct {
	*manager.Manager

	Store *store.Store
	Keys  *api.Keys
	World *fake.World // where its sandboxes are, unless the test has providers of its own

	URL             string
	Client          *http.Client
	Admin, Ann, Bob string // keys

	providers map[string]sandpit.Provider
}

// Open opens the manager of a server. The caller must Serve.
func Open(tb testing.TB, o manager.Options) *Server {
	tb.Helper()
	return OpenAt(tb, tb.TempDir(), o)
}

// OpenAt is Open with a state directory.
func OpenAt(tb testing.TB, dir string, o manager.Options) *Server {
	tb.Helper()
	s := &Server{World: fake.NewWorld(tb.TempDir())}
	var err error
	if s.Store, err = store.Open(tb.Context(), dir, store.Options{}); err != nil {
		tb.Fatal(err)
	}
	if o.Providers == nil {
		o.Providers = map[string]sandpit.Provider{"fake": s.World.NewProvider()}
	}
	s.providers = o.Providers
	o.Store, o.Drain, o.DestroyOnClose = s.Store, 100*time.Millisecond, true
	if s.Manager, err = manager.Open(tb.Context(), testoptions.Manager(o)); err != nil {
		tb.Fatal(err)
	}
	s.Keys = api.NewKeys(s.Store, clock.System{}, nil)
	return s
}

// Serve serves routes behind an edge until the test ends, and creates the keys. It completes the
// options of the edge. Then it calls end, before it closes the manager.
func (s *Server) Serve(tb testing.TB, routes *http.ServeMux, o api.EdgeOptions, end func() error) {
	tb.Helper()
	o.Keys, o.Report = s.Keys, s.Events().Record
	server, err := api.Listen(tb.Context(), api.ServerOptions{Handler: api.NewEdge(o).Handler(routes), Address: "127.0.0.1:0", Drain: Patience})
	if err != nil {
		tb.Fatal(err)
	}
	s.URL = "http://" + server.Addr().String()
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	transport := &http.Transport{DialContext: (&net.Dialer{}).DialContext}
	s.Client = &http.Client{Transport: transport}
	tb.Cleanup(func() {
		stop()
		transport.CloseIdleConnections()
		if err := errors.Join(<-ended, end(), s.close(context.WithoutCancel(tb.Context()))); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	s.Admin = s.NewKey(tb, api.NewKey{Owner: "root", Admin: true})
	s.Ann, s.Bob = s.NewKey(tb, api.NewKey{Owner: "ann", Name: "laptop"}), s.NewKey(tb, api.NewKey{Owner: "bob"})
}

func (s *Server) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	errs := []error{s.Close(ctx)}
	for _, provider := range s.providers {
		errs = append(errs, provider.Close())
	}
	return errors.Join(append(errs, s.Store.Close(), s.World.Close())...)
}

// NewKey creates a key and returns its secret.
func (s *Server) NewKey(tb testing.TB, n api.NewKey) string {
	tb.Helper()
	_, secret, err := s.Keys.Create(tb.Context(), n)
	if err != nil {
		tb.Fatal(err)
	}
	return secret
}

// Response is a response that was read.
type Response struct {
	Status int
	Header http.Header
	Body   string
}

// Send sends a request to a path of the server.
func (s *Server) Send(tb testing.TB, method, path, body string, header http.Header) Response {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	maps.Copy(req.Header, header)
	res, err := s.Client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return Response{res.StatusCode, res.Header, string(text)}
}

// Decode decodes the response, which is JSON.
func (r Response) Decode(tb testing.TB, to any) {
	tb.Helper()
	if err := json.Unmarshal([]byte(r.Body), to); err != nil {
		tb.Fatalf("%v: %s", err, r.Body)
	}
}
