package mcp_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// server is a sandpit server, as anybody starts it. It can be ended and started again.
type server struct {
	dir      string
	settings []string

	url     string
	admin   *client.Client     // by the server's socket
	process *testserver.Server // nil: it has ended
	log     *testserver.Log

	transport *http.Transport // of all clients
}

// newServer starts a server with settings of its own.
func newServer(tb testing.TB, settings ...string) *server {
	tb.Helper()
	dir := tb.TempDir()
	s := &server{dir: dir, transport: &http.Transport{MaxIdleConnsPerHost: 1000}, settings: append(testengine.Environ(dir),
		"SANDPIT_SERVER_LISTEN=127.0.0.1:0", "SANDPIT_SERVER_KEYLESS=false", "SANDPIT_SERVER_DRAIN=5")}
	s.settings = append(s.settings, settings...)
	var err error
	if s.admin, err = client.New(client.Options{URL: "unix://" + filepath.Join(dir, "run", "sandpit.sock")}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.admin.Close)
	s.start(tb)
	tb.Cleanup(func() { s.end(tb, syscall.SIGTERM) })
	tb.Cleanup(s.transport.CloseIdleConnections)
	return s
}

func (s *server) start(tb testing.TB) {
	tb.Helper()
	s.process = testserver.Start(tb, s.settings)
	s.url, s.log = s.process.URL, s.process.Log
}

// end ends the server, which complains about nothing unless it is killed.
func (s *server) end(tb testing.TB, how syscall.Signal) {
	tb.Helper()
	if s.process == nil {
		return
	}
	s.process.End(tb, how)
	s.process = nil
}

// key makes a key of an owner.
func (s *server) key(tb testing.TB, owner string) string {
	tb.Helper()
	made, err := s.admin.Keys.Create(tb.Context(), owner, "test", 0, false)
	if err != nil {
		tb.Fatal(err)
	}
	return made.Secret
}

// boxes are the sandboxes of an owner.
func (s *server) boxes(tb testing.TB, owner string) []sandpit.Sandbox {
	tb.Helper()
	list, err := s.admin.Sandboxes.List(context.WithoutCancel(tb.Context()), client.Filter{Owner: owner})
	if err != nil {
		tb.Fatalf("%v\n%s", err, s.log)
	}
	return list
}

// awaitBoxes waits until an owner has so many sandboxes.
func (s *server) awaitBoxes(tb testing.TB, owner string, count int) {
	tb.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		list := s.boxes(tb, owner)
		if len(list) == count {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s has %d sandboxes: %+v; want %d", owner, len(list), list, count)
		}
	}
}

// keyed adds a key to requests.
type keyed struct {
	key  string
	next http.RoundTripper
}

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.key)
	return k.next.RoundTrip(r)
}

// connect connects a client by HTTP. The query chooses what its session is like.
func (s *server) connect(tb testing.TB, key, query string, o *sdk.ClientOptions) *sdk.ClientSession {
	tb.Helper()
	session, err := s.dial(tb, key, query, o)
	if err != nil {
		tb.Fatal(err)
	}
	return session
}

func (s *server) dial(tb testing.TB, key, query string, o *sdk.ClientOptions) (*sdk.ClientSession, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(ctx, &sdk.StreamableClientTransport{
		Endpoint: s.url + "/mcp" + query, HTTPClient: &http.Client{Transport: keyed{key, s.transport}}, MaxRetries: -1,
	}, nil)
	if err != nil {
		return nil, err
	}
	tb.Cleanup(func() { _ = session.Close() }) // the test may have ended it, or the server
	return session, nil
}

// visitor is a client with its credentials.
type visitor struct{ key, session string }

// reply is the response to a request.
type reply struct {
	status int
	header http.Header
	text   string
}

// ask sends a request. The method may have a query after it.
func (s *server) ask(tb testing.TB, who visitor, method, body string, headers ...string) reply {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	method, query, _ := strings.Cut(method, " ")
	r, err := http.NewRequestWithContext(ctx, method, s.url+"/mcp"+query, bytes.NewBufferString(body))
	if err != nil {
		tb.Fatal(err)
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, value := range map[string]string{"X-API-Key": who.key, "Mcp-Session-Id": who.session} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return reply{answer.StatusCode, answer.Header, string(text)}
}
