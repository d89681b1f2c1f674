package network_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

const (
	secretValue  = "hunter2-hunter2"
	secondSecret = "correct-horse"
	apiAddress   = "93.184.215.20:443"
)

// secretHost is a host on the internet that tells what it was sent.
type secretHost struct {
	*httptest.Server

	mu   sync.Mutex
	seen []*http.Request
}

// newSecretHost serves by HTTPS under the addresses, with a certificate for names.
func newSecretHost(tb testing.TB, n *internet, names []string, addrs ...string) (*secretHost, *network.Authority) {
	tb.Helper()
	world, err := network.NewAuthority()
	if err != nil {
		tb.Fatal(err)
	}
	h := &secretHost{}
	h.Server = httptest.NewUnstartedServer(h)
	h.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return world.Leaf(names[0]) }}
	h.EnableHTTP2 = true
	h.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	h.StartTLS()
	tb.Cleanup(h.Close)
	for _, a := range addrs {
		n.route("tcp", a, h.Listener.Addr().String())
	}
	return h, world
}

// ServeHTTP answers with what came, and echoes after an upgrade.
func (h *secretHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.seen = append(h.seen, r)
	h.mu.Unlock()
	if r.Header.Get("Upgrade") != "" {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, buf)
		return
	}
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s body=%d", r.Method, r.Proto, r.URL.Path, len(body))
}

func (h *secretHost) requests() []*http.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*http.Request(nil), h.seen...)
}

// secretBox is a sandbox for which headers are set at api.example.org.
func secretBox(tb testing.TB, n *internet, world *network.Authority) (*box, *x509.CertPool) {
	tb.Helper()
	own, err := network.NewAuthority()
	if err != nil {
		tb.Fatal(err)
	}
	names := newNameServer(tb)
	for name, addr := range map[string]string{"api.example.org": "93.184.215.20", "other.example.org": "93.184.215.21"} {
		names.set(name, address(name, addr, 60))
	}
	b := newBox(tb, n, network.Config{
		Resolvers: resolvers(names), Authority: own, Roots: world.Certificate(), Secrets: map[string]string{"TOKEN": secretValue},
		Policy: sandpit.NetworkPolicy{Headers: []sandpit.NetworkHeader{
			{Host: "api.example.org", Name: "Authorization", Value: "Bearer ${TOKEN}"},
		}},
	})
	b.resolve("api.example.org")
	b.resolve("other.example.org")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(own.Certificate())
	return b, pool
}

// browser is an HTTP client in the sandbox that dials addr, whatever it asks for.
func (b *box) browser(pool *x509.CertPool, addr, serverName string, two bool) *http.Client {
	t := &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return b.dial(addr) },
		TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: serverName, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: two,
	}
	b.tb.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: patience}
}

func get(tb testing.TB, c *http.Client, r *http.Request) (int, string) {
	tb.Helper()
	res, err := c.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func request(tb testing.TB, method, url string, body io.Reader) *http.Request {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), method, url, body)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// TestHeaders has headers set in requests by both versions of HTTP: what the sandbox
// sent under the name is replaced, and nothing else changes.
func TestHeaders(t *testing.T) {
	t.Parallel()
	for _, two := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %v", two), func(t *testing.T) {
			t.Parallel()
			n := newInternet()
			host, world := newSecretHost(t, n, []string{"api.example.org"}, apiAddress)
			b, pool := secretBox(t, n, world)
			c := b.browser(pool, apiAddress, "", two)
			r := request(t, http.MethodPost, "https://api.example.org/v1/things?q=a;b", bytes.NewReader(make([]byte, 1<<20)))
			r.Header.Set("Authorization", "mine")
			r.Header.Add("X-Twice", "1")
			r.Header.Add("X-Twice", "2")
			r.Header.Set("X-Forwarded-For", "1.2.3.4")
			const want = "POST HTTP/2.0 /v1/things body=1048576" // as the host likes best, whatever the client speaks
			if status, got := get(t, c, r); status != http.StatusOK || got != want {
				t.Fatalf("answer: %d %q, want %q", status, got, want)
			}
			seen := host.requests()[0]
			if a := seen.Header["Authorization"]; len(a) != 1 || a[0] != "Bearer "+secretValue {
				t.Errorf("authorization: %q", a)
			}
			if len(seen.Header["X-Twice"]) != 2 || seen.Header.Get("X-Forwarded-For") != "1.2.3.4" || seen.Host != "api.example.org" || seen.URL.RawQuery != "q=a;b" {
				t.Errorf("the request was changed: %q for %s %s", seen.Header, seen.Host, seen.URL)
			}
			if err := b.SetSecrets(map[string]string{"TOKEN": secondSecret}); err != nil {
				t.Fatal(err)
			}
			if status, _ := get(t, c, request(t, http.MethodGet, "https://api.example.org/", nil)); status != http.StatusOK {
				t.Errorf("with another secret: %d", status)
			}
			if a := host.requests()[1].Header.Get("Authorization"); a != "Bearer "+secondSecret {
				t.Errorf("authorization: %q, want the new one", a)
			}
			neverTold(t, b)
		})
	}
}

// neverTold wants no secret in anything that the gateway tells.
func neverTold(tb testing.TB, b *box) {
	tb.Helper()
	explained, err := b.Explain(tb.Context(), "api.example.org:443")
	if err != nil {
		tb.Fatal(err)
	}
	text, err := json.Marshal([]any{b.Decisions(0, 10000), b.Policy(), b.Stats(), explained})
	if err != nil {
		tb.Fatal(err)
	}
	if bytes.Contains(text, []byte(secretValue)) || bytes.Contains(text, []byte(secondSecret)) {
		tb.Errorf("a secret was revealed: %s", text)
	}
}

// TestHeadersUpgrade has an upgraded connection pass, as WebSockets are.
func TestHeadersUpgrade(t *testing.T) {
	t.Parallel()
	n := newInternet()
	host, world := newSecretHost(t, n, []string{"api.example.org"}, apiAddress)
	b, pool := secretBox(t, n, world)
	conn, err := b.dial(apiAddress)
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(conn, &tls.Config{RootCAs: pool, ServerName: "api.example.org", MinVersion: tls.VersionTLS12})
	r := request(t, http.MethodGet, "https://api.example.org/socket", nil)
	r.Header.Set("Connection", "Upgrade, Authorization") // which would have it taken out on the way
	r.Header.Set("Upgrade", "echo")
	if err := r.Write(c); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", res.StatusCode)
	}
	for range 3 {
		if _, err := io.WriteString(c, "ping"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(in, got); err != nil || string(got) != "ping" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if a := host.requests()[0].Header.Get("Authorization"); a != "Bearer "+secretValue {
		t.Errorf("authorization: %q", a)
	}
	// New rules close it like any other.
	if err := b.SetPolicy(sandpit.NetworkPolicy{Online: true, Deny: []string{"93.184.215.20"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReadByte(); err == nil {
		t.Error("the connection continues although it is forbidden")
	}
}

// TestHeadersStayHome tries to get a secret to where it does not belong.
func TestHeadersStayHome(t *testing.T) {
	t.Parallel()
	t.Run("a host without a trusted certificate", func(t *testing.T) {
		t.Parallel()
		n := newInternet()
		host, _ := newSecretHost(t, n, []string{"api.example.org"}, apiAddress)
		stranger, err := network.NewAuthority()
		if err != nil {
			t.Fatal(err)
		}
		b, pool := secretBox(t, n, stranger)
		refused(t, host, b.browser(pool, apiAddress, "", true), request(t, http.MethodGet, "https://api.example.org/", nil), "502 sandpit: the host's certificate is not trusted\n")
	})
	t.Run("a host of another name", func(t *testing.T) { // as when an answer was forged
		t.Parallel()
		n := newInternet()
		host, world := newSecretHost(t, n, []string{"evil.example.org"}, apiAddress)
		b, pool := secretBox(t, n, world)
		refused(t, host, b.browser(pool, apiAddress, "", true), request(t, http.MethodGet, "https://api.example.org/", nil), "502 sandpit: the host's certificate is not trusted\n")
	})
	n := newInternet()
	host, world := newSecretHost(t, n, []string{"api.example.org"}, apiAddress, "93.184.215.21:443")
	b, pool := secretBox(t, n, world)
	t.Run("another host of the same server", func(t *testing.T) {
		for _, two := range []bool{false, true} {
			r := request(t, http.MethodGet, "https://other.example.org/", nil)
			refused(t, host, b.browser(pool, apiAddress, "api.example.org", two), r, "421 sandpit: the request is for another host than the connection\n")
		}
	})
	t.Run("shown again", func(t *testing.T) {
		refused(t, host, b.browser(pool, apiAddress, "", false), request(t, http.MethodTrace, "https://api.example.org/", nil), "405 sandpit: a TRACE request would reveal the headers that are set\n")
	})
	t.Run("an address of another name", func(t *testing.T) {
		// It was resolved for another name, so the gateway does not look into it: the
		// sandbox speaks to the server itself, without any secret.
		outside := x509.NewCertPool()
		outside.AppendCertsFromPEM(world.Certificate())
		before := len(host.requests())
		if status, _ := get(t, b.browser(outside, "93.184.215.21:443", "api.example.org", false), request(t, http.MethodGet, "https://api.example.org/", nil)); status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		if a := host.requests()[before].Header.Get("Authorization"); a != "" {
			t.Errorf("authorization %q", a)
		}
	})
	t.Run("a secret that is not known", func(t *testing.T) {
		if err := b.SetSecrets(nil); err != nil {
			t.Fatal(err)
		}
		refused(t, host, b.browser(pool, apiAddress, "", false), request(t, http.MethodGet, "https://api.example.org/", nil), "502 sandpit: header Authorization needs the unknown secret TOKEN\n")
	})
	neverTold(t, b)
}

// refused wants a request answered by the gateway, and never to come to the host.
func refused(tb testing.TB, host *secretHost, c *http.Client, r *http.Request, want string) {
	tb.Helper()
	before := len(host.requests())
	status, body := get(tb, c, r)
	if got := fmt.Sprint(status, " ", body); got != want {
		tb.Errorf("%s %s: %q, want %q", r.Method, r.URL, got, want)
	}
	if len(host.requests()) != before {
		tb.Errorf("%s %s came to the host", r.Method, r.URL)
	}
}

// TestHeadersOnly shows that connections to other hosts are not looked into, and that
// HTTP/3 is not used where it would hide.
func TestHeadersOnly(t *testing.T) {
	t.Parallel()
	n := newInternet()
	_, world := newSecretHost(t, n, []string{"other.example.org"}, "93.184.215.21:443")
	b, pool := secretBox(t, n, world)
	outside := x509.NewCertPool()
	outside.AppendCertsFromPEM(world.Certificate())
	if status, _ := get(t, b.browser(outside, "93.184.215.21:443", "", true), request(t, http.MethodGet, "https://other.example.org/", nil)); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	_, err := b.browser(pool, "93.184.215.21:443", "", true).Do(request(t, http.MethodGet, "https://other.example.org/", nil)) //nolint:bodyclose // no body
	if err == nil {
		t.Error("the gateway shows a certificate of its own for a host without headers")
	}
	n.servePackets(t, apiAddress)
	conn := b.dialPackets(apiAddress)
	_, _ = conn.Write([]byte("hello"))
	for end := time.Now().Add(patience); b.last().Protocol != "udp" && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if got := b.last(); got.Allowed || got.Protocol != "udp" {
		t.Errorf("decision: %+v", got)
	}
	_ = conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 10)); err == nil {
		t.Error("HTTP/3 is answered")
	}
}

func TestAuthority(t *testing.T) {
	t.Parallel()
	a, err := network.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	data, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := network.ParseAuthority(data)
	if err != nil || !bytes.Equal(again.Certificate(), a.Certificate()) {
		t.Fatalf("read again: %v", err)
	}
	if bytes.Contains(a.Certificate(), []byte("PRIVATE")) {
		t.Error("the certificate holds the key")
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Certificate())
	leaf, err := again.Leaf("a.example.org")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "a.example.org", Roots: pool}); err != nil {
		t.Errorf("verify: %v", err)
	}
	if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "b.example.org", Roots: pool}); err == nil {
		t.Error("a certificate is good for another name")
	}
	for _, bad := range [][]byte{nil, []byte("x"), a.Certificate(), data[:len(data)/2]} {
		if _, err := network.ParseAuthority(bad); err == nil {
			t.Errorf("%d bytes are read as an authority", len(bad))
		}
	}
}
