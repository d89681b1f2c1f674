package preview_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
)

func readAll(r io.Reader) (string, error) {
	text, err := io.ReadAll(r)
	return string(text), err
}

// rawApp answers every connection with the same bytes.
func rawApp(t *testing.T, answer string) (port int) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = conn.Write([]byte(answer))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

// TestEvents has events come when they are sent, one by one.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	next := make(chan string)
	port := app(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for text := range next {
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
		}
	})
	id := r.box()
	r.public(id, port)
	c := r.client(false)
	res, err := c.Do(request(t, http.MethodGet, r.hostURL(id, port), nil))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for _, text := range []string{"data: 1\n", "data: 2\n"} {
		next <- text // the second is sent when the first has come
		if got, err := lines.ReadString('\n'); got != text || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
	close(next)
	if rest, err := readAll(lines); rest != "" || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
}

// TestBothWays has a body and its answer go on at the same time, and much of it.
func TestBothWays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, func(w http.ResponseWriter, req *http.Request) {
		c := http.NewResponseController(w)
		_ = c.EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_ = c.Flush()
		buffer := make([]byte, 64<<10)
		for {
			n, err := req.Body.Read(buffer)
			_, _ = w.Write(buffer[:n])
			_ = c.Flush()
			if err != nil {
				return
			}
		}
	})
	id := r.box()
	r.public(id, port)
	r.both(t, func(t *testing.T, c *http.Client) { //nolint:thelper // it is the test
		body, send := io.Pipe()
		res, err := c.Do(request(t, http.MethodPost, r.hostURL(id, port), body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := send.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "ping" {
			t.Fatalf("%q, %v", got, err)
		}
		const size = 32 << 20
		sent := sha256.New()
		go func() {
			_, err := io.Copy(send, io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sent))
			_ = send.CloseWithError(err)
		}()
		back := sha256.New()
		n, err := io.Copy(back, res.Body)
		if n != size || err != nil || !bytes.Equal(back.Sum(nil), sent.Sum(nil)) {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}

// TestEarlyAnswer has a program answer that does not want the body, and the next request
// not be taken from what is left of it.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/smuggled" {
			t.Error("the rest of a body was taken for a request")
		}
		w.WriteHeader(http.StatusTeapot)
	})
	id := r.box()
	r.public(id, port)
	for _, at := range []int{port, closedPort} {
		r.public(id, at)
		got := raw(t, r.main, "POST / HTTP/1.1\r\nHost: "+r.host(id, at)+"\r\nContent-Length: 1000000\r\n\r\n"+
			strings.Repeat("GET /smuggled HTTP/1.1\r\nHost: "+r.host(id, port)+"\r\n\r\n", 10))
		if strings.Count(got, "HTTP/1.1 ") != 1 || !strings.Contains(got, "Connection: close") {
			t.Errorf("%s", got)
		}
	}
}

// wsEcho answers each message with itself.
func wsEcho(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mine"}})
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(8 << 20)
	for {
		kind, text, err := conn.Read(r.Context())
		if err != nil || conn.Write(r.Context(), kind, text) != nil {
			return
		}
	}
}

// dialWS opens a WebSocket.
func dialWS(tb testing.TB, c *http.Client, target string, pairs ...string) (*websocket.Conn, error) {
	tb.Helper()
	o := &websocket.DialOptions{HTTPClient: &http.Client{Transport: c.Transport}, HTTPHeader: http.Header{}, Subprotocols: []string{"mine"}}
	for i := 0; i+1 < len(pairs); i += 2 {
		o.HTTPHeader.Add(pairs[i], pairs[i+1])
	}
	ctx, cancel := context.WithTimeout(tb.Context(), long)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, target, o) //nolint:bodyclose // the connection has it
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(8 << 20)
	tb.Cleanup(func() { _ = conn.CloseNow() })
	return conn, nil
}

// TestWebSocket speaks with a program inside by every way there is.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, wsEcho)
	id := r.box()
	token := r.token(id, port)
	c := r.client(false)
	own := "http://" + r.host(id, port)
	for _, tc := range []struct {
		target string
		pairs  []string
	}{
		{r.hostURL(id, port) + "/ws", []string{"Cookie", "sandpit_preview=" + token, "Origin", own}},
		{r.hostURL(id, port) + "/ws?sandpit_token=" + token, nil},
		{r.pathURL(id, port) + "/ws", []string{"Sandpit-Preview-Token", token}},
		{r.pathURL(id, port) + "/ws", []string{"Cookie", "sandpit_preview=" + token, "Origin", "http://" + r.paths}},
	} {
		conn, err := dialWS(t, c, tc.target, tc.pairs...)
		if err != nil {
			t.Errorf("%s: %v", tc.target, err)
			continue
		}
		if conn.Subprotocol() != "mine" {
			t.Errorf("protocol %q", conn.Subprotocol())
		}
		large := bytes.Repeat([]byte("x"), 4<<20)
		for _, text := range [][]byte{[]byte("hello"), large} {
			if err := conn.Write(t.Context(), websocket.MessageBinary, text); err != nil {
				t.Fatal(err)
			}
			if _, got, err := conn.Read(t.Context()); err != nil || !bytes.Equal(got, text) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		}
		if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	for _, pairs := range [][]string{nil, {"Cookie", "sandpit_preview=" + token, "Origin", "http://evil.localhost"}} {
		if _, err := dialWS(t, c, r.hostURL(id, port), pairs...); err == nil {
			t.Errorf("%q: it was let in", pairs)
		}
	}
	r.idle()
}

// idle waits until no request uses a sandbox.
func (r *rig) idle() {
	r.Helper()
	eventually(r.TB, "all sandboxes are released", func() bool { return r.manager.Stats().ActiveOperations == 0 })
}

// TestTakenAway ends open streams when the sandbox is paused or deleted, also of those
// that neither read nor write.
func TestTakenAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/ws":
			wsEcho(w, req)
		case "/flood":
			for req.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		default:
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
		}
	})
	id := r.box()
	r.public(id, port)
	c := r.client(false)
	conn, err := dialWS(t, c, r.hostURL(id, port)+"/ws")
	if err != nil {
		t.Fatal(err)
	}
	silent, err := c.Do(request(t, http.MethodGet, r.hostURL(id, port), nil))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Body.Close()
	// One that reads nothing, and one that does not send what it has promised.
	stuck := r.dial(t)
	_, _ = io.WriteString(stuck, "GET /flood HTTP/1.1\r\nHost: "+r.host(id, port)+"\r\n\r\n")
	slow := r.dial(t)
	_, _ = io.WriteString(slow, "POST / HTTP/1.1\r\nHost: "+r.host(id, port)+"\r\nContent-Length: 100\r\n\r\nx")
	eventually(t, "all of them use the sandbox", func() bool { return r.manager.Stats().ActiveOperations == 4 })
	if err := r.manager.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r.idle()
	if _, _, err := conn.Read(t.Context()); err == nil {
		t.Error("the WebSocket stays open")
	}
	if _, err := readAll(silent.Body); err == nil {
		t.Error("the answer ends as if it were whole")
	}
}

func (r *rig) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.main)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestUse has a preview count as use of its sandbox, as long as it lasts.
func TestUse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, wsEcho)
	id := r.box()
	r.public(id, port)
	conn, err := dialWS(t, r.client(false), r.hostURL(id, port))
	if err != nil {
		t.Fatal(err)
	}
	if n := r.manager.Stats().ActiveOperations; n != 1 {
		t.Errorf("%d uses, want 1", n)
	}
	_ = conn.CloseNow()
	r.idle()
}

// TestGRPC has gRPC find HTTP/2 inside, with its trailers.
func TestGRPC(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, req.Proto)
		_, _ = io.Copy(w, req.Body)
		w.Header().Set("Grpc-Status", "7")
	})
	id := r.box()
	r.public(id, port)
	c := r.client(true)
	for kind, proto := range map[string]string{"application/grpc+proto": "HTTP/2.0", "application/json": "HTTP/1.1"} {
		res, err := c.Do(request(t, http.MethodPost, r.hostURL(id, port), strings.NewReader("-body"), "Content-Type", kind, "Te", "trailers"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := readAll(res.Body)
		_ = res.Body.Close()
		if err != nil || text != proto+"-body" || res.Trailer.Get("Grpc-Status") != "7" {
			t.Errorf("%s: %q, %v, trailer %v", kind, text, err, res.Trailer)
		}
	}
}

// TestDrain checks that streams end when the server does, and that only their clients get the reason.
func TestDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, wsEcho)
	id := r.box()
	r.public(id, port)
	address, stop := listen(t, r.gateway.Handler(http.NotFoundHandler()))
	host := strings.Replace(r.host(id, port), ":"+portOf(r.main), ":"+portOf(address), 1)
	conn, err := dialWS(t, r.client(false), "http://"+host)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, _, err := conn.Read(t.Context())
		read <- err
	}()
	stop()
	select {
	case err := <-read:
		if err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	case <-time.After(long):
		t.Error("the WebSocket stays open")
	}
	if s, err := r.manager.Get(id); err != nil || s.State != sandpit.StateRunning {
		t.Errorf("%v, %v", s.State, err)
	}
}
