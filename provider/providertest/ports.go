package providertest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func portChecks() []check {
	return []check{
		{"nothing listens", nothingListens},
		{"ports that cannot be", badPorts},
		{"a server inside", serverInside},
	}
}

// closedPort is a port without a listener.
const closedPort = 1

func sendRequest(c *trial, rt http.RoundTripper, method, path string, body io.Reader) (*http.Response, error) {
	c.Helper()
	r, err := http.NewRequestWithContext(c.ctx(), method, "http://sandbox"+path, body)
	c.must(err, "make a request")
	return rt.RoundTrip(r)
}

func nothingListens(c *trial) {
	res, err := sendRequest(c, c.box.HTTP(closedPort), http.MethodGet, "/", nil)
	if err == nil {
		_ = res.Body.Close()
	}
	c.wantCode(err, "http to a closed port", sandpit.Unavailable)
	d := ability[sandpit.Dialer](c, c.box, "Dialer")
	conn, err := d.Dial(c.ctx(), closedPort)
	if err == nil {
		_ = conn.Close()
	}
	c.wantCode(err, "dial a closed port", sandpit.Unavailable)
}

func badPorts(c *trial) {
	for _, port := range []int{0, -1, 65536, 1 << 40} {
		res, err := sendRequest(c, c.box.HTTP(port), http.MethodGet, "/", nil)
		if err == nil {
			_ = res.Body.Close()
		}
		c.wantCode(err, fmt.Sprint("http to port ", port), sandpit.Invalid)
		if d, ok := c.box.(sandpit.Dialer); ok {
			_, err := d.Dial(c.ctx(), port)
			c.wantCode(err, fmt.Sprint("dial port ", port), sandpit.Invalid)
		}
	}
}

// server answers every path with its name, /big with zeros, /slow never, and "Upgrade: echo" with
// an echo in upper case. It prints its port first.
const server = `
import http.server, socketserver, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def answer(self, body, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Host", self.headers.get("Host", ""))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.headers.get("Upgrade") == "echo":
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "echo")
            self.end_headers()
            while True:
                line = self.rfile.readline()
                if not line: break
                self.wfile.write(line.upper())
                self.wfile.flush()
            self.close_connection = True
        elif self.path == "/slow": time.sleep(1000)
        elif self.path == "/big": self.answer(bytes(8 << 20))
        elif self.path == "/missing": self.answer(b"nothing here", 404)
        else: self.answer(("you asked for " + self.path).encode())
    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64
s = Server(("127.0.0.1", 0), Handler)
print(s.server_port, "ready", sep="\n", flush=True)
s.serve_forever()
`

func serverInside(c *trial) {
	if !c.hasProgram("python3") {
		c.Skip("the image has no python3 for a server")
	}
	process, output := c.startReady(sandpit.Command{Args: []string{"python3", "-c", server}})
	port, err := strconv.Atoi(strings.TrimSpace(output))
	c.must(err, "the server's port")
	each(c, []named[func(*trial, int)]{
		{"get and post", httpCalls},
		{"many at once", httpMany},
		{"upgrade", httpUpgrade},
		{"dial", dialServer},
		{"given up", httpGivenUp},
	}, func(c *trial, run func(*trial, int)) { run(c, port) })

	c.must(process.Signal(c.ctx(), sandpit.SIGKILL), "kill the server")
	c.wait(process)
	c.eventually("the closed port", func() bool {
		res, err := sendRequest(c, c.box.HTTP(port), http.MethodGet, "/", nil)
		if err == nil {
			_ = res.Body.Close()
		}
		return sandpit.CodeOf(err) == sandpit.Unavailable
	})
}

func httpCalls(c *trial, port int) {
	rt := c.box.HTTP(port)
	for path, want := range map[string]string{"/": "you asked for /", "/a%20b?c=d": "you asked for /a%20b?c=d", "/missing": "nothing here"} {
		res, err := sendRequest(c, rt, http.MethodGet, path, nil) //nolint:bodyclose // readAll closes it
		c.must(err, "get "+path)
		equal(c, "answer", c.readAll(res.Body, nil), want)
		if !c.OwnHost {
			equal(c, "the host that the server received", res.Header.Get("X-Host"), "sandbox")
		}
		equal(c, "missing", res.StatusCode == http.StatusNotFound, path == "/missing")
	}
	res, err := sendRequest(c, rt, http.MethodGet, "/big", nil) //nolint:bodyclose // readAll closes it
	c.must(err, "get much")
	equal(c, "bytes", len(c.readAll(res.Body, nil)), 8<<20)
	data := noise(4 << 20)
	res, err = sendRequest(c, rt, http.MethodPost, "/", bytes.NewReader(data)) //nolint:bodyclose // readAll closes it
	c.must(err, "post much")
	equal(c, "hash", sha256.Sum256([]byte(c.readAll(res.Body, nil))), sha256.Sum256(data))
}

func httpMany(c *trial, port int) {
	client := &http.Client{Transport: c.box.HTTP(port)}
	ctx := c.ctx()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			path := fmt.Sprint("/number/", i)
			if got, err := get(ctx, client, path); err != nil || got != "you asked for "+path {
				c.Errorf("%s: %q, %v", path, got, err)
			}
		})
	}
	c.promptly("many requests", wg.Wait)
}

func get(ctx context.Context, client *http.Client, path string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox"+path, nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

func httpUpgrade(c *trial, port int) {
	r, err := http.NewRequestWithContext(c.ctx(), http.MethodGet, "http://sandbox/", nil)
	c.must(err, "make a request")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	res, err := c.box.HTTP(port).RoundTrip(r) //nolint:bodyclose // converse closes it
	c.must(err, "upgrade")
	equal(c, "status", res.StatusCode, http.StatusSwitchingProtocols)
	conn, ok := res.Body.(io.ReadWriteCloser)
	if !ok {
		c.Fatalf("the connection is a %T, which cannot be written to", res.Body)
	}
	converse(c, conn)
}

// converse exchanges data with the server's echo and closes the connection.
func converse(c *trial, conn io.ReadWriteCloser) {
	c.Helper()
	lines := bufio.NewReader(conn)
	for range 3 {
		_, err := io.WriteString(conn, "hello\n")
		c.must(err, "write")
		got, err := lines.ReadString('\n')
		c.must(err, "read")
		equal(c, "echo", got, "HELLO\n")
	}
	c.must(conn.Close(), "close")
}

func dialServer(c *trial, port int) {
	d := ability[sandpit.Dialer](c, c.box, "Dialer")
	conn, err := d.Dial(c.ctx(), port)
	c.must(err, "dial")
	defer conn.Close()
	c.must(conn.SetDeadline(time.Now().Add(c.Patience)), "set a deadline")
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	c.must(err, "write")
	lines := bufio.NewReader(conn)
	first, err := lines.ReadString('\n')
	c.must(err, "read")
	if !strings.HasPrefix(first, "HTTP/1.1 101") {
		c.Fatalf("the server says %q", first)
	}
	for line := ""; line != "\r\n"; {
		line, err = lines.ReadString('\n')
		c.must(err, "read")
	}
	converse(c, struct {
		io.Reader
		io.WriteCloser
	}{lines, conn})
}

func httpGivenUp(c *trial, port int) {
	r, err := http.NewRequestWithContext(c.soon(50*time.Millisecond), http.MethodGet, "http://sandbox/slow", nil)
	c.must(err, "make a request")
	res, err := c.box.HTTP(port).RoundTrip(r)
	if err == nil {
		_ = res.Body.Close()
	}
	c.wantCode(err, "a request that was given up", sandpit.Canceled)
}
