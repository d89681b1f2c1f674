package daemon

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// TestCodeServer builds the template of that name on a server, and looks at the editor as
// browsers do: by its preview, without a password, with a wrong one and with the right one.
func TestCodeServer(t *testing.T) {
	if os.Getenv("SANDPIT_TEST_RECIPES") == "" {
		t.Skip("SANDPIT_TEST_RECIPES is not set")
	}
	cfg := configured(t, "[preview]", "listen = '127.0.0.1:0'")
	cfg.Engine, cfg.Provider = testengine.Path(t), "gvisor"
	keepPackages(t, cfg.CacheDir)
	r := start(t, cfg, registrations())
	c, err := client.New(client.Options{URL: "unix://" + r.Socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	recipe, _, err := ReadTemplate("builtin:code-server", nil)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	b, log := buildTemplate(t, c, client.TemplateRequest{Name: "code-server", Recipe: recipe})
	if b.Status != sandpit.BuildReady || b.Snapshot != "" {
		t.Fatalf("%+v\n%s", b, log)
	}
	t.Logf("built in %v, %d MB", time.Since(begun), b.Size>>20)
	begun = time.Now()
	mine := made(t, c, sandpit.Spec{Image: "template:code-server"})
	t.Logf("a sandbox whose editor answers after %v", time.Since(begun))
	yours := made(t, c, sandpit.Spec{Image: "template:code-server", Env: map[string]string{"PASSWORD": "xyzzy-plugh"}})
	const own = `sed -n 's/^password: //p' ~/.config/code-server/config.yaml`
	password := shell(t, mine, own)
	if len(password) < 20 || password == shell(t, yours, own) {
		t.Errorf("the password that it has made is %q", password)
	}
	if got := shell(t, mine, "stat -c %a ~/.config/code-server/config.yaml"); got != "600" {
		t.Errorf("the file with the password has mode %s", got)
	}
	if got := shell(t, mine, `awk '$4 == "0A" && $2 ~ /:1F90$/ { print $2 }' /proc/net/tcp /proc/net/tcp6`); got != "0100007F:1F90" {
		t.Errorf("it listens at %q, want only 127.0.0.1", got)
	}
	visitEditor(t, r, mine, password)
	visitEditor(t, r, yours, "xyzzy-plugh")
	shell(t, mine, `pkill -f '[o]ut/node/entry.js'; sleep 1; for i in $(seq 120); do ! curl -sf http://127.0.0.1:8080/healthz || exit 0; sleep 0.5; done; exit 1`)
	if got := shell(t, mine, "grep -c 'is started again in 1 s' ~/.local/state/code-server/log"); got != "1" {
		t.Errorf("its log says %s times that it is started again", got)
	}
	gone(t, mine, yours)
}

// keepPackages has what is fetched kept for the next test.
func keepPackages(t *testing.T, cacheDir string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(cacheDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"debian", "npm"} {
		dir := filepath.Join(cache, "sandpit-test", name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir, filepath.Join(cacheDir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// showing has every request show the token of a preview.
type showing struct {
	token string
	http.RoundTripper
}

func (s showing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Sandpit-Preview-Token", s.token)
	return s.RoundTripper.RoundTrip(r)
}

func visitEditor(t *testing.T, r *running, s *client.Sandbox, password string) {
	t.Helper()
	var u wire.PreviewURL
	if err := json.Unmarshal([]byte(r.ask("POST", "/v1/sandboxes/"+string(s.ID)+"/ports/8080/url", `{}`, http.StatusCreated)), &u); err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Transport: showing{u.Token, &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(address)
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
	}}}}
	page := func(address string, form url.Values) string {
		t.Helper()
		method := http.MethodGet
		if form != nil {
			method = http.MethodPost
		}
		req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := browser.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }() // only read
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const login, wrong, editor = "<title>code-server login</title>", "Incorrect password", "vscode-workbench-web-configuration"
	if got := page(u.URL, nil); !strings.Contains(got, login) {
		t.Errorf("without a password: %.500s", got)
	}
	where, err := url.Parse(u.URL)
	if err != nil {
		t.Fatal(err)
	}
	where.RawQuery, where.Path = "", "/"
	socket := func() int {
		header := http.Header{"Origin": {where.Scheme + "://" + where.Host}}
		target := where.String() + "?reconnectionToken=7d4c6c3e-36b1-4f4b-9d7c-2f6f0c6e7a11&reconnection=false&skipWebSocketFrames=false"
		conn, resp, err := websocket.Dial(t.Context(), target, &websocket.DialOptions{HTTPClient: browser, HTTPHeader: header}) //nolint:bodyclose // Dial has closed it
		if err == nil {
			_ = conn.CloseNow()
		}
		if resp == nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	if status := socket(); status == http.StatusSwitchingProtocols {
		t.Error("the editor serves a client without the password")
	}
	enter := *where
	enter.Path = "/login"
	if got := page(enter.String(), url.Values{"password": {"xyzzy"}}); !strings.Contains(got, wrong) {
		t.Errorf("with a wrong password: %.500s", got)
	}
	if got := page(enter.String(), url.Values{"password": {password}}); !strings.Contains(got, editor) {
		t.Errorf("with the password: %.500s", got)
	}
	if status := socket(); status != http.StatusSwitchingProtocols {
		t.Errorf("the editor's own connection is answered with %d", status)
	}
}
