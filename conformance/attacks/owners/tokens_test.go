package owners_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// e2bHeader names a port of a sandbox, as E2B's clients do.
func e2bHeader(id, port string, pairs ...string) http.Header {
	h := http.Header{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {port}}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// access is what E2B's API tells of a sandbox that it made.
type access struct {
	ID      string `json:"sandboxID"`
	Guest   string `json:"envdAccessToken"`
	Traffic string `json:"trafficAccessToken"`
}

// createE2B creates a sandbox by E2B's API whose ports are open only with a token.
func (p party) createE2B(t *testing.T) (a access) {
	t.Helper()
	p.must(t, http.MethodPost, "/sandboxes", map[string]any{
		"templateID": "base", "secure": true, "network": map[string]any{"allowPublicTraffic": false}, "allow_internet_access": false,
	}).decode(t, &a)
	if a.Guest == "" || a.Traffic == "" {
		t.Fatalf("%s gets no tokens: %+v", p.name, a)
	}
	return a
}

// signFile returns the query with which any client reads a file, without an expiration.
func signFile(path, token string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{path, "read", "root", token}, ":")))
	return url.Values{"path": {path}, "username": {"root"}, "signature": {"v1_" + base64.RawStdEncoding.EncodeToString(sum[:])}}.Encode()
}

// opening is one way into a sandbox without an API key.
type opening struct {
	name, method, path string
	body               string
	header             http.Header
}

// openings are all ways in that the party was given for a sandbox with a website at port 8000.
func (p party) openings(t *testing.T, a access) []opening {
	t.Helper()
	var preview struct {
		Token string `json:"token"`
	}
	p.must(t, http.MethodPost, "/v1/sandboxes/"+a.ID+"/ports/8000/url", map[string]any{"expires_seconds": 86400}).decode(t, &preview)
	return []opening{
		{"the guest's token", http.MethodGet, "/files?path=/etc/passwd&username=root", "", e2bHeader(a.ID, "49983", "X-Access-Token", a.Guest)},
		{"the guest's token alone", http.MethodGet, "/files?path=/etc/passwd&username=root", "", http.Header{"X-Access-Token": {a.Guest}}},
		{
			"the guest's token, as root", http.MethodPost, "/filesystem.Filesystem/ListDir", `{"path":"/root"}`,
			e2bHeader(a.ID, "49983", "X-Access-Token", a.Guest, "Authorization", "Basic cm9vdDo="),
		},
		{"a signed URL", http.MethodGet, "/files?" + signFile("/etc/passwd", a.Guest), "", e2bHeader(a.ID, "49983")},
		{"the token of ports", http.MethodGet, "/index.html", "", e2bHeader(a.ID, "8000", "E2b-Traffic-Access-Token", a.Traffic)},
		{"a preview's token", http.MethodGet, "/index.html", "", e2bHeader(a.ID, "8000", "Sandpit-Preview-Token", preview.Token)},
	}
}

// status returns the server's response to an opening from a client without a key.
func (l *lab) status(t *testing.T, o opening) int {
	t.Helper()
	stranger := party{name: "stranger", url: l.url, http: l.alice.http}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), callTimeout)
	defer cancel()
	h := o.header.Clone()
	var body any
	if o.body != "" {
		h.Set("Content-Type", "application/json")
		body = bytes.NewReader([]byte(o.body))
	}
	r, err := stranger.do(ctx, o.method, o.path, body, h)
	if err != nil {
		t.Fatalf("%s: %v", o.name, err)
	}
	return r.status
}

// serveSite starts a website at a port, which the image's BusyBox serves.
func (p party) serveSite(t *testing.T, id, port string) {
	t.Helper()
	out, code := p.run(t, id, "mkdir -p /tmp/www && echo page > /tmp/www/index.html && busybox httpd -p 127.0.0.1:"+port+" -h /tmp/www")
	if code != 0 {
		t.Fatalf("httpd: exit status %d: %s", code, out)
	}
}

const e2bBase = "[e2b.templates]\nbase = \"busybox:owners\"\n"

// TestTokensEndWithTheirKey has carol keep all that she was given for a sandbox, and use it
// after her key was deleted. A colleague of the same owner continues with a key and tokens of
// their own.
func TestTokensEndWithTheirKey(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: e2bBase})
	var made struct {
		ID  string `json:"id"`
		Key string `json:"secret"`
	}
	l.admin.must(t, http.MethodPost, "/v1/keys", map[string]any{"owner": "carol"}).decode(t, &made)
	carol := party{name: "carol", key: made.Key, url: l.url, http: l.alice.http}
	colleague := l.newParty(t, "carol", false)
	a := carol.createE2B(t)
	carol.serveSite(t, a.ID, "8000")
	of := carol.openings(t, a)
	var again access
	colleague.must(t, http.MethodPost, "/sandboxes/"+a.ID+"/connect", map[string]any{"timeout": 600}).decode(t, &again)
	for _, o := range of {
		if got := l.status(t, o); got != http.StatusOK {
			t.Errorf("%s opens nothing while the key is good: %d", o.name, got)
		}
	}
	stream := l.follow(t, a)
	l.admin.must(t, http.MethodDelete, "/v1/keys/"+made.ID, nil)
	if r := carol.call(t, http.MethodGet, "/v1/sandboxes/"+a.ID, nil); r.status != http.StatusUnauthorized {
		t.Errorf("the deleted key: %d, want 401", r.status)
	}
	for _, o := range of {
		if got := l.status(t, o); got != http.StatusUnauthorized && got != http.StatusForbidden {
			t.Errorf("%s still works after its key was deleted: %d", o.name, got)
		}
	}
	select {
	case <-stream:
	case <-time.After(5 * time.Second):
		t.Error("a stream that the token opened continues")
	}
	o := opening{"the colleague's token", http.MethodGet, "/files?path=/etc/passwd&username=root", "", e2bHeader(a.ID, "49983", "X-Access-Token", again.Guest)}
	if got := l.status(t, o); got != http.StatusOK {
		t.Errorf("the colleague's token ends with another key: %d", got)
	}
	if r := colleague.call(t, http.MethodGet, "/v1/sandboxes/"+a.ID, nil); r.status != http.StatusOK {
		t.Errorf("the sandbox ends with one key of its owner: %d", r.status)
	}
}

// follow watches a directory with the guest's token until that ends.
func (l *lab) follow(t *testing.T, a access) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	text := []byte(`{"path":"/etc"}`)
	body := append([]byte{0, 0, 0, 0, byte(len(text))}, text...) // an envelope of Connect
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/filesystem.Filesystem/WatchDir", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = e2bHeader(a.ID, "49983", "X-Access-Token", a.Guest, "Content-Type", "application/connect+json")
	res, err := l.alice.http.Do(req) //nolint:bodyclose // the goroutine below closes it
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("watch a directory: %s", res.Status)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer res.Body.Close()
		for buffer := make([]byte, 1024); err == nil; {
			_, err = res.Body.Read(buffer)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return ended
}

// TestTokensOfOthers has alice look for bob's tokens and try to end them, and bob end them:
// one alone, then all of the sandbox.
func TestTokensOfOthers(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: e2bBase})
	a := l.bob.createE2B(t)
	l.bob.serveSite(t, a.ID, "8000")
	of := l.bob.openings(t, a)
	type listed struct {
		Items []struct {
			ID   string `json:"id"`
			Kind string `json:"kind"`
		} `json:"items"`
	}
	var bobs, alices listed
	bobsText := l.bob.must(t, http.MethodGet, "/v1/tokens", nil)
	bobsText.decode(t, &bobs)
	l.alice.must(t, http.MethodGet, "/v1/tokens", nil).decode(t, &alices)
	if len(bobs.Items) != 3 || len(alices.Items) != 0 {
		t.Errorf("bob sees %d tokens and alice %d, want 3 and 0", len(bobs.Items), len(alices.Items))
	}
	if strings.Contains(string(bobsText.body), "spv_") {
		t.Errorf("secrets are listed: %s", bobsText.body)
	}
	for _, one := range bobs.Items {
		if r := l.alice.call(t, http.MethodDelete, "/v1/tokens/"+one.ID, nil); r.status != http.StatusNotFound {
			t.Errorf("alice revokes bob's token: %d, want 404", r.status)
		}
	}
	if r := l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+a.ID+"/tokens/revoke", nil); r.status != http.StatusNotFound {
		t.Errorf("alice revokes the tokens of bob's sandbox: %d, want 404", r.status)
	}
	if r := l.alice.call(t, http.MethodGet, "/v1/tokens?owner=bob", nil); r.status < http.StatusBadRequest {
		t.Errorf("alice lists bob's tokens: %d", r.status)
	}
	for _, o := range of {
		if got := l.status(t, o); got != http.StatusOK {
			t.Errorf("%s opens nothing: %d", o.name, got)
		}
	}
	for _, one := range bobs.Items {
		if one.Kind == "preview" {
			l.bob.must(t, http.MethodDelete, "/v1/tokens/"+one.ID, nil)
		}
	}
	for _, o := range of {
		revoked := o.name == "a preview's token"
		if got := l.status(t, o); (got == http.StatusOK) == revoked {
			t.Errorf("%s after the preview's was revoked: %d", o.name, got)
		}
	}
	l.bob.must(t, http.MethodPost, "/v1/sandboxes/"+a.ID+"/tokens/revoke", nil)
	for _, o := range of {
		if got := l.status(t, o); got != http.StatusUnauthorized && got != http.StatusForbidden {
			t.Errorf("%s works after all were revoked: %d", o.name, got)
		}
	}
	var again access
	l.bob.must(t, http.MethodPost, "/sandboxes/"+a.ID+"/connect", map[string]any{"timeout": 600}).decode(t, &again)
	if got := l.status(t, opening{"a new token", http.MethodGet, "/files?path=/etc/passwd&username=root", "", e2bHeader(a.ID, "49983", "X-Access-Token", again.Guest)}); got != http.StatusOK || again.Guest == a.Guest {
		t.Errorf("a token after that: %d, the same %v", got, again.Guest == a.Guest)
	}
}
