package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestEncryptedPreviews sees a port behind certificates of the server's own authority, by
// host name and by path, with HTTP/1.1, HTTP/2 and a WebSocket.
func TestEncryptedPreviews(t *testing.T) {
	t.Parallel()
	inside := httptest.NewServer(http.HandlerFunc(serveInside)) // a fake sandbox has this machine's ports
	t.Cleanup(inside.Close)
	port := inside.Listener.Addr().(*net.TCPAddr).Port
	cfg := configured(t, "tls = 'local'", "[preview]", "listen = '127.0.0.1:0'")
	r := start(t, cfg, fakes(newWorld(t)))
	s := r.sandbox("POST", "/v1/sandboxes", `{}`, http.StatusCreated)
	var u wire.PreviewURL
	if err := json.Unmarshal([]byte(r.ask("POST", fmt.Sprintf("/v1/sandboxes/%s/ports/%d/url", s.ID, port), `{}`, http.StatusCreated)), &u); err != nil {
		t.Fatal(err)
	}
	roots := authority(t, AuthorityFile(cfg))
	for _, text := range []string{u.URL, u.PathURL} {
		where, err := url.Parse(text)
		if err != nil || where.Scheme != "https" {
			t.Fatalf("%q: %v, want it encrypted", text, err)
		}
		for _, second := range []bool{false, true} {
			c := previewClient(t, roots, second)
			if got := r.askAt(c, text, "GET", "", http.StatusOK); !strings.Contains(got, "https") {
				t.Errorf("%s: the program sees %s, want it told of https", text, got)
			}
			testVisit(t, c, where)
		}
		testSocket(t, previewClient(t, roots, false), where)
		// Nothing is shown without encryption.
		plain := *where
		plain.Scheme = "http"
		r.askAt(previewClient(t, roots, false), plain.String(), "GET", "", http.StatusBadRequest)
	}
	r.ask("DELETE", "/v1/sandboxes/"+string(s.ID), "", http.StatusNoContent)
}

// serveInside tells what it was told of the viewer, and echoes what a WebSocket says.
func serveInside(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		fmt.Fprintln(w, r.Header.Get("X-Forwarded-Proto"), r.Header.Get("Cookie"))
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // origins are the gateway's business
	if err != nil {
		return
	}
	defer conn.CloseNow()
	kind, text, err := conn.Read(r.Context())
	if err == nil {
		_ = conn.Write(r.Context(), kind, text)
	}
	_, _, _ = conn.Read(r.Context()) // until the other side has closed it
}

func authority(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		t.Fatalf("%s has no certificate", file)
	}
	return roots
}

// previewClient finds every name on this machine, and follows no redirects.
func previewClient(t *testing.T, roots *x509.CertPool, second bool) *http.Client {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(address)
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		},
	}
	transport.Protocols.SetHTTP1(!second)
	transport.Protocols.SetHTTP2(second)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// testVisit opens a preview as a browser does, which gets a cookie for encrypted
// connections alone.
func testVisit(t *testing.T, c *http.Client, where *url.URL) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, where.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Sec-Fetch-Mode", "navigate")
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	list := res.Cookies()
	if res.StatusCode != http.StatusSeeOther || len(list) != 1 {
		t.Fatalf("%s: %s with %v", where, res.Status, list)
	}
	if k := list[0]; !k.Secure || !k.HttpOnly || k.Domain != "" || strings.HasPrefix(k.Name, "__Host-") != (k.Path == "/") {
		t.Errorf("%s: cookie %+v", where, k)
	}
}

// testSocket speaks by a WebSocket, which only a page of the same origin may.
func testSocket(t *testing.T, c *http.Client, where *url.URL) {
	t.Helper()
	at := *where
	at.Scheme = "wss"
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	token := where.Query().Get("sandpit_token")
	conn, _, err := websocket.Dial(ctx, at.String(), &websocket.DialOptions{HTTPClient: c}) //nolint:bodyclose // the connection has it
	if err != nil {
		t.Fatalf("%s: %v", at.String(), err)
	}
	defer conn.CloseNow()
	if err := conn.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, text, err := conn.Read(ctx); err != nil || string(text) != "hello" {
		t.Errorf("%s: %q, %v", at.String(), text, err)
	}
	at.RawQuery = ""
	for origin, want := range map[string]bool{"https://" + where.Host: true, "https://evil.localhost": false, "http://evil.example": false} {
		header := http.Header{"Origin": {origin}, "Cookie": {"sandpit_preview=" + token}}
		other, _, err := websocket.Dial(ctx, at.String(), &websocket.DialOptions{HTTPClient: c, HTTPHeader: header}) //nolint:bodyclose // the connection has it
		if (err == nil) != want {
			t.Errorf("%s for a page of %s: %v, want it open: %v", at.String(), origin, err, want)
		}
		if err == nil {
			_ = other.CloseNow()
		}
	}
}
