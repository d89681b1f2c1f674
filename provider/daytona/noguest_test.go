package daytona_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/daytona"
)

// fakeID is a program that says that its user is not root.
const fakeID = `#!/bin/sh
case "$*" in -u) echo 1000;; *) exec /usr/bin/id "$@";; esac
`

// newRefusing returns the spec of a sandbox in which sandpit's guest cannot run: its user cannot get the
// rights of root. Its programs are otherwise those of the default image.
func newRefusing(t *testing.T, p *daytona.Provider) sandpit.Spec {
	t.Helper()
	builder := create(t, p, sandpit.Spec{})
	for name, content := range map[string]string{"id": fakeID, "sudo": "#!/bin/sh\nexit 1\n"} {
		if err := builder.Guest().WriteFile(within(t), "", "/srv/bin/"+name, strings.NewReader(content), sandpit.WriteOptions{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	id := sandpit.NewSnapshotID()
	if _, err := builder.Snapshot(within(t), id); err != nil {
		t.Fatal(err)
	}
	return sandpit.Spec{Image: sandpit.SnapshotImage(id), Env: map[string]string{"PATH": "/srv/bin:/usr/local/bin:/usr/bin:/bin"}}
}

// headerServer answers with what it has received.
const headerServer = `
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def answer(self, body):
        text = " ".join([self.path, self.headers.get("Authorization", "-"), self.headers.get("Cookie", "-"), str(len(body)),
            self.headers.get("X-Daytona-Preview-Token", "-")]).encode()
        self.send_response(502 if self.path == "/502" else 200)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Set-Cookie", "own=1")
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self): self.answer(b"")
    def do_POST(self): self.answer(self.rfile.read(int(self.headers["Content-Length"])))
s = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler)
print("ready", flush=True)
s.serve_forever()
`

// startServer starts headerServer in a sandbox.
func startServer(t *testing.T, box sandpit.Instance) {
	t.Helper()
	out, in := io.Pipe()
	if _, err := box.Guest().Start(within(t), sandpit.Command{Args: []string{"python3", "-c", headerServer}, Stdout: in, Stderr: in}); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the server says %q, %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // until the test's process ends
}

// answer is a response and its body.
type answer struct {
	status  int
	cookies []string
	text    string
}

// ask sends a request to port 8000 of a sandbox.
func ask(t *testing.T, box sandpit.Instance, method, path, body string) (answer, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), method, "http://sandbox"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Basic b3du")
	r.Header.Set("Cookie", "a=b")
	res, err := box.HTTP(8000).RoundTrip(r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header["Set-Cookie"], string(text)}, nil
}

// cloudNetwork is the network between a provider and its cloud, which can break.
type cloudNetwork struct {
	http *http.Transport

	mu       sync.Mutex
	away     bool   // URLs of previews cannot be reached
	spoiled  string // the token of the next preview
	requests int    // to URLs of previews
	refused  int    // because of a spoiled token
}

func newCloudNetwork(t *testing.T) *cloudNetwork {
	t.Helper()
	n := &cloudNetwork{http: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:"+port) // all is here
	}}}
	t.Cleanup(n.http.CloseIdleConnections)
	return n
}

func (n *cloudNetwork) set(change func(*cloudNetwork)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

// RoundTrip implements http.RoundTripper.
func (n *cloudNetwork) RoundTrip(r *http.Request) (*http.Response, error) {
	isPreview := strings.HasSuffix(r.URL.Hostname(), ".localhost")
	n.mu.Lock()
	away, spoiled := n.away, n.spoiled
	if isPreview {
		n.requests++
	}
	n.mu.Unlock()
	switch {
	case isPreview && away:
		if r.Body != nil {
			_ = r.Body.Close() // was not read
		}
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("no such host")}
	case isPreview && r.Header.Get(daytona.TokenHeader) == "spoiled":
		n.mu.Lock()
		n.refused++
		n.mu.Unlock()
		return &http.Response{StatusCode: http.StatusUnauthorized, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
	res, err := n.http.RoundTrip(r)
	if err == nil && spoiled != "" && strings.HasSuffix(r.URL.Path, "/preview-url") {
		n.mu.Lock()
		n.spoiled = ""
		n.mu.Unlock()
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		before, rest, _ := bytes.Cut(data, []byte(`"token":"`))
		_, after, found := bytes.Cut(rest, []byte(`"`))
		if err != nil || !found {
			return nil, errors.Join(err, errors.New("no token"))
		}
		text := string(before) + `"token":"` + spoiled + `"` + string(after)
		res.Body, res.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
		res.Header.Del("Content-Length")
	}
	return res, err
}

// TestNoGuest uses a sandbox in which the guest cannot run: the toolbox API replaces it, and ports are
// reached by the URLs of their previews.
func TestNoGuest(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	o := c.options(t)
	var log syncBuffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	p := open(t, o)
	refusing := newRefusing(t, p)
	box := create(t, p, refusing)
	if text := log.String(); !strings.Contains(text, "guest cannot run") || !strings.Contains(text, "rights of root") || !strings.Contains(text, string(box.ID())) {
		t.Errorf("the log does not say why the sandbox has no guest: %s", text)
	}
	if got := shell(t, box, "echo $((6 * 7))"); got != "42\n" {
		t.Errorf("got %q", got)
	}
	_, err := ask(t, box, http.MethodGet, "/", "")
	wantCode(t, err, sandpit.Unavailable)
	startServer(t, box)
	testPort(t, box)
	testRelay(t, box)
	if err := box.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	_, err = ask(t, box, http.MethodGet, "/", "")
	wantCode(t, err, sandpit.Conflict)
	if err := box.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	startServer(t, box)
	testPort(t, box)

	again := open(t, o) // finds out again that there is no guest
	attached, err := again.Attach(within(t), box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	testPort(t, attached)
	refusing.User = "daemon"
	_, err = p.Create(within(t), sandpit.NewID(), refusing)
	wantCode(t, err, sandpit.Unsupported)
	if left := c.names(t, o.Manager); len(left) != 2 { // box and its builder
		t.Errorf("sandboxes: %v", left)
	}
}

// testPort sends requests to the server in a sandbox.
func testPort(t *testing.T, box sandpit.Instance) {
	t.Helper()
	for _, tc := range []struct{ method, path, body, want string }{
		{http.MethodGet, "/a%20b?c=d", "", "/a%20b?c=d Basic b3du a=b 0 -"},
		{http.MethodPost, "/", strings.Repeat("x", 1<<20), "/ Basic b3du a=b 1048576 -"},
		{http.MethodGet, "/502", "", "/502 Basic b3du a=b 0 -"}, // of the program
	} {
		got, err := ask(t, box, tc.method, tc.path, tc.body)
		if err != nil || got.text != tc.want || !slices.Equal(got.cookies, []string{"own=1"}) {
			t.Errorf("%s %s: %+v, %v; want %q and the cookie", tc.method, tc.path, got, err, tc.want)
		}
	}
}

// testRelay sends requests over connections.
func testRelay(t *testing.T, box *daytona.Instance) {
	t.Helper()
	talk := func(text string) string {
		t.Helper()
		conn, err := box.Dial(within(t), 8000)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(long)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		return string(got)
	}
	if got := talk("GET /x HTTP/1.1\r\nHost: y\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200") || !strings.Contains(got, "/x - - 0 -") {
		t.Errorf("got %q", got)
	}
	if got := talk("SSH-2.0-client\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 400") {
		t.Errorf("another protocol: got %q, want the status 400", got)
	}
	_, err := box.Dial(within(t), 8001)
	wantCode(t, err, sandpit.Unavailable)
}

// TestPreviewsAway reaches ports when a token has ended, and when URLs of previews cannot be reached.
func TestPreviewsAway(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	o := c.options(t)
	n := newCloudNetwork(t)
	o.Transport, o.Toolbox = n, true
	box := create(t, open(t, o), sandpit.Spec{})
	startServer(t, box)
	n.set(func(n *cloudNetwork) { n.spoiled = "spoiled" })
	if got, err := ask(t, box, http.MethodGet, "/", ""); err != nil || got.status != http.StatusUnauthorized {
		t.Errorf("a token that was refused just after it was given: %+v, %v", got, err)
	}
	time.Sleep(2100 * time.Millisecond)
	testPort(t, box)
	if n.refused != 2 {
		t.Errorf("%d requests with the old token, want 2", n.refused)
	}
	n.set(func(n *cloudNetwork) { n.away, n.requests = true, 0 })
	for range 2 {
		r, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://sandbox/p", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := box.HTTP(8000).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		if err != nil || string(text) != "/p - - 4 -" {
			t.Errorf("through the toolbox: %q, %v", text, err)
		}
		_ = res.Body.Close() // was read
	}
	if n.requests != 1 {
		t.Errorf("%d requests to URLs that cannot be reached, want 1", n.requests)
	}
	_, err := ask(t, box, http.MethodGet, "/", "")
	wantCode(t, err, sandpit.Unsupported) // the toolbox keeps the headers
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

// Write implements io.Writer.
func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

// String returns what was written.
func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
