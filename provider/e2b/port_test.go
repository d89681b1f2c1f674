package e2b_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/e2b"
)

const (
	trafficHeader = "E2b-Traffic-Access-Token"
	// mirrorPort is where mirrorServer listens, which responds with the headers that it gets.
	mirrorPort   = 8123
	mirrorServer = `
import http.server
class Mirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"mirror\n" + str(self.headers).encode())
http.server.HTTPServer(("", 8123), Mirror).serve_forever()
`
)

// portSpy sends requests, and sees and changes the tokens of those to a program's port.
type portSpy struct {
	next http.RoundTripper

	mu     sync.Mutex
	change func(http.Header)
	host   string            // of the last request
	tokens map[string]string // by host
}

// RoundTrip implements http.RoundTripper.
func (s *portSpy) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Host, "8123-") {
		s.mu.Lock()
		s.host, s.tokens[r.URL.Host] = r.URL.Host, r.Header.Get(trafficHeader)
		if s.change != nil {
			s.change(r.Header)
		}
		s.mu.Unlock()
	}
	return s.next.RoundTrip(r)
}

func (s *portSpy) use(change func(http.Header)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = change
}

// newSecureCloud starts a cloud that serves each port of a sandbox at a host of its own, over HTTPS.
func newSecureCloud(t *testing.T) (*cloud, *portSpy) {
	t.Helper()
	c := newCloud(t, "SANDPIT_SERVER_TLS=local")
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM([]byte(c.Output(t, "tls", "ca"))) {
		t.Fatal("the cloud has no certificate")
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) { // not every machine knows names below localhost
			return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(c.url, "https://"))
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	c.client = &http.Client{Transport: transport}
	return c, &portSpy{next: transport, tokens: make(map[string]string)}
}

// TestPortHosts reaches a program at the host of its port: the cloud requires the traffic token of the sandbox, which
// neither the program nor a log or an error has.
func TestPortHosts(t *testing.T) {
	t.Parallel()
	c, spy := newSecureCloud(t)
	var notices sync.Map
	o := c.options()
	o.SandboxURL, o.Domain, o.Transport, o.Guest = "", "localhost"+c.url[strings.LastIndexByte(c.url, ':'):], spy, e2b.GuestCloud
	o.Notice = func(text string) { notices.Store(text, true) }
	p := newProvider(t, o)
	box, other := create(t, p, sandpit.Spec{}), create(t, p, sandpit.Spec{})
	for _, one := range []sandpit.Instance{other, box} {
		if err := one.Guest().WriteFile(soon(t), "", "/srv/mirror.py", strings.NewReader(mirrorServer), sandpit.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		shell(t, one, "python3 /srv/mirror.py >/dev/null 2>&1 &")
		awaitMirror(t, one)
	}
	host, token := spy.host, spy.tokens[spy.host]
	if len(spy.tokens) != 2 || token == "" || !strings.HasSuffix(host, "."+o.Domain) {
		t.Fatalf("reached at %q, with %d tokens", host, len(spy.tokens))
	}
	for name, value := range spy.tokens {
		if name != host {
			testPortToken(t, box, spy, token, map[string]string{"no token": "", "a wrong one": "x" + token, "another sandbox's": value})
		}
	}
	text, err := askMirror(t, box, trafficHeader, "of the caller")
	if err != nil || strings.Contains(strings.ToLower(text), "traffic") || strings.Contains(text, token) {
		t.Errorf("with a header of the caller the program got %q, %v", text, err)
	}
	res, err := c.client.Do(must(http.NewRequestWithContext(soon(t), http.MethodGet, "https://"+host+"/", http.NoBody))(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close() // only the status counts
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("without the provider: status %d, want 403", res.StatusCode)
	}
	notices.Range(func(text, _ any) bool {
		if strings.Contains(text.(string), token) {
			t.Errorf("a notice has the token")
		}
		return true
	})
	if strings.Contains(c.Log.String(), token) {
		t.Error("the log of the cloud has the token")
	}
}

// testPortToken sends requests with other tokens than the sandbox's.
func testPortToken(t *testing.T, box sandpit.Instance, spy *portSpy, token string, wrong map[string]string) {
	t.Helper()
	for name, value := range wrong {
		spy.use(func(h http.Header) {
			h.Del(trafficHeader)
			if value != "" {
				h.Set(trafficHeader, value)
			}
		})
		_, err := askMirror(t, box, "X-Test", name)
		wantCode(t, name, err, sandpit.Unauthenticated)
		if err != nil && (strings.Contains(err.Error(), token) || value != "" && strings.Contains(err.Error(), value)) {
			t.Errorf("%s: the error has a token: %v", name, err)
		}
	}
	spy.use(nil)
}

// awaitMirror waits until the program listens.
func awaitMirror(t *testing.T, box sandpit.Instance) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := askMirror(t, box, "X-Test", "yes")
		if err == nil {
			return
		}
		wantCode(t, "before it listens", err, sandpit.Unavailable)
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// askMirror sends a request with a header to the program, and returns the response.
func askMirror(t *testing.T, box sandpit.Instance, name, value string) (string, error) {
	t.Helper()
	r := must(http.NewRequestWithContext(soon(t), http.MethodGet, "http://sandbox/", http.NoBody))(t)
	r.Header.Set(name, value)
	res, err := box.HTTP(mirrorPort).RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || !strings.HasPrefix(string(text), "mirror\n")) {
		t.Errorf("the program responds %d %q", res.StatusCode, text)
	}
	return string(text), err
}

// must returns a value, or ends the test.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
