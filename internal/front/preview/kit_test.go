package preview_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is how long anything may take on a busy machine.
const long = 90 * time.Second

const (
	alice = "alice"
	bob   = "bob"
)

// rig is a server with previews.
type rig struct {
	testing.TB

	dir     string
	domain  string // of host names
	store   *store.Store
	manager *manager.Manager
	gateway *preview.Gateway
	tokens  *token.Tokens
	clock   *setClock
	apiKeys *api.Keys
	keys    map[string]string // by owner
	keyIDs  map[string]string // by owner
	main    string            // HOST:PORT of the API and of previews by host name
	paths   string            // HOST:PORT of previews by path

	mu      sync.Mutex
	answers []api.Outcome
}

// setClock can be set.
type setClock struct {
	clock.System

	mu sync.Mutex
	by time.Duration
}

func (c *setClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.System.Now().Add(c.by)
}

func (c *setClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by += d
}

// newRig is a server for sandboxes without isolation, whose ports are those of this
// machine.
func newRig(tb testing.TB) *rig {
	tb.Helper()
	return newRigAt(tb, "localhost")
}

// newRigAt is newRig with another domain of previews.
func newRigAt(tb testing.TB, domain string) *rig {
	tb.Helper()
	world := fake.NewWorld(tb.TempDir())
	tb.Cleanup(func() {
		if err := world.Close(); err != nil {
			tb.Errorf("close the world: %v", err)
		}
	})
	return rigOn(tb, domain, world.NewProvider(), false)
}

// rigOn is a server for the sandboxes of a provider.
func rigOn(tb testing.TB, domain string, p sandpit.Provider, keyless bool) *rig {
	tb.Helper()
	r := &rig{TB: tb, dir: tb.TempDir(), domain: domain, clock: &setClock{}, keys: map[string]string{}, keyIDs: map[string]string{}}
	var err error
	if r.store, err = store.Open(tb.Context(), r.dir, store.Options{}); err != nil {
		tb.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r.manager, err = manager.Open(tb.Context(), testoptions.Manager(manager.Options{
		Store: r.store, Providers: map[string]sandpit.Provider{"any": p}, DestroyOnClose: true, Drain: time.Second, KeepDeleted: time.Hour,
	}))
	if err != nil {
		tb.Fatal(err)
	}
	keys := api.NewKeys(r.store, clock.System{}, log)
	r.apiKeys = keys
	for _, owner := range []string{alice, bob} {
		var key store.Key
		if key, r.keys[owner], err = keys.Create(tb.Context(), api.NewKey{Owner: owner}); err != nil {
			tb.Fatal(err)
		}
		r.keyIDs[owner] = key.ID
	}
	edge := api.NewEdge(api.EdgeOptions{Keys: keys, Report: r.manager.Events().Record, Keyless: keyless, Public: native.Public()})
	r.open(edge.Admit)
	mux := http.NewServeMux()
	native.Register(mux, native.Options{Manager: r.manager, Store: r.store, Keys: keys, Previews: r.gateway, MaxBody: 1 << 20})
	inside := data.New(data.Options{Manager: r.manager, Timeout: long})
	inside.Register(mux)
	var stopMain, stopPaths func()
	r.main, stopMain = listen(tb, r.gateway.Handler(edge.Handler(mux)))
	r.paths, stopPaths = listen(tb, r.gateway.Paths())
	tb.Cleanup(func() {
		stopMain()
		stopPaths()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), long)
		defer cancel()
		if err := errors.Join(inside.Close(), r.manager.Close(ctx), p.Close(), r.store.Close()); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return r
}

// open opens the gateway, on what the last one has left.
func (r *rig) open(admit func(http.ResponseWriter, *http.Request) (*http.Request, error)) {
	r.Helper()
	r.tokens = r.openTokens()
	g, err := preview.Open(r.Context(), preview.Options{
		Manager: r.manager, Store: r.store, Tokens: r.tokens, Keys: r.apiKeys, Admit: admit, Domain: r.domain, Clock: r.clock,
		Places: func() preview.Places {
			return preview.Places{Scheme: "http", Host: r.domain + ":" + portOf(r.main), Paths: "http://" + r.paths}
		},
		Frames: []string{"https://app.example.org"},
		Observe: func(_ *http.Request, a api.Outcome) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.answers = append(r.answers, a)
		},
	})
	if err != nil {
		r.Fatal(err)
	}
	r.gateway = g
}

// openTokens opens the tokens, as a server that starts does.
func (r *rig) openTokens() *token.Tokens {
	r.Helper()
	t, err := token.Open(r.Context(), token.Options{Store: r.store, Keys: r.apiKeys, Dir: r.dir, Clock: r.clock})
	if err != nil {
		r.Fatal(err)
	}
	return t
}

// reopen returns a gateway on what this one has stored.
func (r *rig) reopen() *preview.Gateway {
	r.Helper()
	g, err := preview.Open(r.Context(), preview.Options{Manager: r.manager, Store: r.store, Tokens: r.openTokens(), Keys: r.apiKeys, Domain: r.domain})
	if err != nil {
		r.Fatal(err)
	}
	return g
}

func listen(tb testing.TB, h http.Handler) (address string, stop func()) {
	tb.Helper()
	s, err := api.Listen(tb.Context(), api.ServerOptions{Handler: h, Address: "127.0.0.1:0", MaxHeader: 1 << 20, Drain: 100 * time.Millisecond})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	return s.Addr().String(), func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				tb.Errorf("serve: %v", err)
			}
		case <-time.After(long):
			tb.Error("the server does not end")
		}
	}
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// app is a program that a sandbox of the fake world serves.
func app(tb testing.TB, h http.HandlerFunc) (port int) {
	tb.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	port, err := strconv.Atoi(portOf(server.Listener.Addr().String()))
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

// echo answers with the request as it has come.
func echo(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s %s\n", r.Method, r.RequestURI, r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			fmt.Fprintf(w, "%s: %s\n", name, value)
		}
	}
	_, _ = io.Copy(w, r.Body)
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

// as is the context of any request.
func (r *rig) as(owner string) context.Context {
	return api.WithPrincipal(r.Context(), api.Principal{Owner: owner, KeyID: r.keyIDs[owner]})
}

// token returns a token for a port.
func (r *rig) token(id sandpit.ID, port int) string {
	r.Helper()
	u, err := r.gateway.URL(r.as(alice), id, port, 0, "")
	if err != nil {
		r.Fatal(err)
	}
	return u.Token
}

// public makes a port public.
func (r *rig) public(id sandpit.ID, port int) {
	r.Helper()
	if err := r.gateway.SetPublic(r.as(alice), id, port, true); err != nil {
		r.Fatal(err)
	}
}

// host is the host name of a port.
func (r *rig) host(id sandpit.ID, port int) string {
	return fmt.Sprintf("%d-%s.%s:%s", port, id, r.domain, portOf(r.main))
}

// client is a program that finds every name at the right listener, follows no
// redirects and keeps no cookies.
func (r *rig) client(second bool) *http.Client {
	t := &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", portOf(address)))
		},
	}
	if second {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	r.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: long, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// both runs a test for each protocol.
func (r *rig) both(t *testing.T, test func(t *testing.T, c *http.Client)) {
	t.Helper()
	t.Run("HTTP1", func(t *testing.T) { test(t, r.client(false)) })
	t.Run("HTTP2", func(t *testing.T) { test(t, r.client(true)) })
}

// reply is an answer that was read.
type reply struct {
	status int
	header http.Header
	body   string
}

// get makes a request; the pairs are headers.
func get(tb testing.TB, c *http.Client, target string, pairs ...string) reply {
	tb.Helper()
	return send(tb, c, request(tb, http.MethodGet, target, nil, pairs...))
}

func request(tb testing.TB, method, target string, body io.Reader, pairs ...string) *http.Request {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, target, body)
	if err != nil {
		tb.Fatal(err)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == "Host" {
			req.Host = pairs[i+1]
			continue
		}
		req.Header.Add(pairs[i], pairs[i+1])
	}
	return req
}

func send(tb testing.TB, c *http.Client, req *http.Request) reply {
	tb.Helper()
	res, err := c.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	return reply{res.StatusCode, res.Header, string(text)}
}

// want checks status and a part of the body.
func (a reply) want(tb testing.TB, status int, part string) {
	tb.Helper()
	if a.status != status || !strings.Contains(a.body, part) {
		tb.Errorf("status %d, %.600s; want %d with %q", a.status, a.body, status, part)
	}
}

// seen is what the echo tells of a header.
func (a reply) seen(name string) []string {
	var list []string
	for line := range strings.Lines(a.body) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); ok && strings.EqualFold(key, name) {
			list = append(list, value)
		}
	}
	return list
}

// cookieOf returns the cookie that an answer sets, as a browser would send it.
func (a reply) cookieOf(tb testing.TB) *http.Cookie {
	tb.Helper()
	list := (&http.Response{Header: a.header}).Cookies()
	if len(list) != 1 {
		tb.Fatalf("cookies: %q, want one", a.header.Values("Set-Cookie"))
	}
	return list[0]
}

// raw writes bytes to a listener and returns all that comes back until it closes the
// connection.
func raw(tb testing.TB, address, text string) string {
	tb.Helper()
	return exchange(tb, address, text, func(*net.TCPConn) {})
}

// rawOnly is raw for a listener that may wait for more.
func rawOnly(tb testing.TB, address, text string) string {
	tb.Helper()
	return exchange(tb, address, text, func(conn *net.TCPConn) {
		time.Sleep(50 * time.Millisecond) // it would be taken for a client that has gone; if it comes too early nothing is tried
		if err := conn.CloseWrite(); err != nil {
			tb.Fatal(err)
		}
	})
}

func exchange(tb testing.TB, address, text string, written func(*net.TCPConn)) string {
	tb.Helper()
	conn, err := new(net.Dialer).DialContext(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(long)); err != nil {
		tb.Fatal(err)
	}
	if _, err := conn.Write([]byte(text)); err != nil {
		tb.Fatal(err)
	}
	written(conn.(*net.TCPConn))
	all, _ := io.ReadAll(conn) // one that is reset has said enough
	return string(all)
}

// pathURL is where a port is by path.
func (r *rig) pathURL(id sandpit.ID, port int) string {
	return fmt.Sprintf("http://%s/p/%s/%d", r.paths, id, port)
}

func (r *rig) hostURL(id sandpit.ID, port int) string { return "http://" + r.host(id, port) }

func parse(tb testing.TB, text string) *url.URL {
	tb.Helper()
	u, err := url.Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	return u
}

// forged is a token with another signature. Its last letters may have only some values.
func forged(token string) string {
	at, letter := len(token)-8, "A"
	if token[at] == 'A' {
		letter = "B"
	}
	return token[:at] + letter + token[at+1:]
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

// guestToken is alice's token for the guest of a sandbox.
func (r *rig) guestToken(id sandpit.ID) string {
	r.Helper()
	guest, _ := r.access(id)
	return guest
}

// trafficToken is alice's token for all other ports.
func (r *rig) trafficToken(id sandpit.ID) string {
	r.Helper()
	_, traffic := r.access(id)
	return traffic
}

func (r *rig) access(id sandpit.ID) (guest, traffic string) {
	r.Helper()
	guest, traffic, err := r.gateway.AccessTokens(r.as(alice), id, true)
	if err != nil {
		r.Fatal(err)
	}
	return guest, traffic
}
