package toolbox_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

// TestMachine goes through the calls on the sandbox itself, and its ports.
func TestMachine(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{Version: "1.2.3"}, sandpit.Spec{})
	var dir struct{ Dir string }
	for path, script := range map[string]string{"/user-home-dir": "cd; pwd", "/work-dir": "pwd", "/project-dir": "pwd"} {
		i.get(path).want(http.StatusOK, &dir)
		if want := strings.TrimSpace(i.run(script)); dir.Dir != want {
			t.Errorf("%s: %q, want %q", path, dir.Dir, want)
		}
	}
	if got := i.get("/version").want(http.StatusOK, nil); got.body != `{"version":"1.2.3"}` {
		t.Errorf("%s", got.body)
	}
	var metrics struct {
		CPUCount                      int
		CPUUsedPct                    float64
		MemTotal, MemUsed             int64
		DiskTotal, DiskUsed, DiskFree int64
		Timestamp                     time.Time
		TimestampUnix                 int64
	}
	i.get("/system/metrics").want(http.StatusOK, &metrics)
	if metrics.CPUCount < 1 || metrics.MemUsed <= 0 || metrics.MemTotal < metrics.MemUsed || metrics.Timestamp.Unix() != metrics.TimestampUnix {
		t.Errorf("%+v", metrics)
	}
	i.call(http.MethodPost, "/init", object{"token": "t"}).want(http.StatusOK, nil)
	i.get("/computeruse/status").wantCode(http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE")
	i.call(http.MethodPost, "/computeruse/mouse/click", object{"x": 1}).wantCode(http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE")
	i.get("/nothing").wantCode(http.StatusNotFound, "NOT_FOUND")
}

// server is a program that answers with the head of each request, and sets a cookie. With PUT it sends
// each byte back as soon as it has received it.
const server = `
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(418)
        self.send_header("Set-Cookie", "a=b")
        self.send_header("Refresh", "0; url=//example.com"); self.send_header("WWW-Authenticate", "Basic realm=x")
        self.send_header("X-Own", "yes")
        self.end_headers()
        self.wfile.write((self.path + "\n" + str(self.headers)).encode() + body)
    def do_PUT(self):
        self.send_response(200)
        self.end_headers()
        for _ in range(int(self.headers["Content-Length"])): self.wfile.write(self.rfile.read(1))
http.server.HTTPServer(("127.0.0.1", 8123), H).serve_forever()
`

// TestPorts finds a program that listens, and sends it a request.
func TestPorts(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	if !strings.Contains(i.run("command -v python3 || true"), "python") {
		t.Skip("no python3")
	}
	i.call(http.MethodPost, "/proxy/8123/x", object{}).wantCode(http.StatusBadGateway, "BAD_GATEWAY")
	i.upload([2]string{"server.py", server}).want(http.StatusOK, nil)
	i.run("(python3 server.py >/dev/null 2>&1 &)")
	var use struct{ IsInUse bool }
	for end := time.Now().Add(time.Minute); !use.IsInUse && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		i.get("/port/8123.0/in-use").want(http.StatusOK, &use)
	}
	var ports struct{ Ports []int }
	if i.get("/port").want(http.StatusOK, &ports); len(ports.Ports) != 1 || ports.Ports[0] != 8123 {
		t.Errorf("%+v", ports)
	}
	if i.get("/port/8124/in-use").want(http.StatusOK, &use); use.IsInUse {
		t.Error("another port is in use")
	}
	i.get("/port/70000/in-use").wantCode(http.StatusBadRequest, "BAD_REQUEST")

	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+"/proxy/8123/a%20b/c%2Fd?q=1&DAYTONA_SANDBOX_AUTH_KEY=secret", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{rigOwner: alice, "Authorization": "Bearer secret", "Cookie": "secret", "X-Daytona-Source": "secret", "X-Access-Token": token.Prefix + "secret", "X-Kept": "kept"} {
		r.Header.Set(name, value)
	}
	got := i.do(r).want(http.StatusTeapot, nil)
	if !strings.HasPrefix(got.body, "/a%20b/c%2Fd?q=1\n") || !strings.HasSuffix(got.body, "body") || !strings.Contains(got.body, "X-Kept: kept") ||
		strings.Contains(got.body, "secret") || got.header.Get("Set-Cookie") != "" || got.header.Get("Refresh") != "" || got.header.Get("Www-Authenticate") != "" || got.header.Get("X-Own") != "yes" ||
		!strings.Contains(got.header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%v\n%s", got.header, got.body)
	}
	talkToPort(t, i)
}

// talkToPort sends the second byte of a body after the first one has come back.
func talkToPort(t *testing.T, i *inside) {
	t.Helper()
	body, keys := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, i.url+"/proxy/8123/", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(rigOwner, alice)
	r.ContentLength = 2
	go func() { _, _ = io.WriteString(keys, "a") }() // a failure ends the request
	res, err := i.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for at, want := range "ab" {
		if at > 0 {
			go func() {
				_, _ = io.WriteString(keys, "b")
				_ = keys.Close()
			}()
		}
		var got [1]byte
		if _, err := io.ReadFull(res.Body, got[:]); err != nil || rune(got[0]) != want {
			t.Fatalf("byte %d: %q, %v; want %q", at, got, err, want)
		}
	}
}
