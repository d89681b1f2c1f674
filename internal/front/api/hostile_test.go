package api_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// TestSlowHead sends the head of a request one byte at a time, and is cut off.
func TestSlowHead(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) { s.HeaderTimeout = time.Second })
	slow := g.dial(t)
	cut := make(chan error, 1)
	go func() {
		for _, b := range []byte("GET /who HTTP/1.1\r\nHost: localhost\r\nX-Long: " + strings.Repeat("x", 4000)) {
			if _, err := slow.Write([]byte{b}); err != nil {
				cut <- nil
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		cut <- errors.New("it was let to send for 80 s")
	}()
	if body := g.ask(t, "GET", "/who", nil).body; body != "ann" {
		t.Errorf("another client meanwhile: %q", body)
	}
	if err := <-cut; err != nil {
		t.Error(err)
	}
}

// TestSlowBody sends a body that no handler reads, and the connection ends.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	g := newGate(t, nil)
	for name, head := range map[string]string{
		"not read": "POST /who HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: " + g.key + "\r\nContent-Length: 1000\r\n\r\n",
		"refused":  "POST /who HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
		"chunked":  "POST /who HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := g.dial(t)
			if _, err := io.WriteString(c, head); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(c); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("it waits for the body for ever")
			}
		})
	}
}

// TestMalformed sends invalid HTTP, and half a request. The server continues to serve.
func TestMalformed(t *testing.T) {
	t.Parallel()
	g := newGate(t, nil)
	for name, tc := range map[string]struct{ text, status string }{
		"giant header":       {"GET /who HTTP/1.1\r\nHost: localhost\r\nX-Long: " + strings.Repeat("x", 128<<10) + "\r\n\r\n", "431"},
		"many headers":       {"GET /who HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X-A: b\r\n", 20_000) + "\r\n", "431"},
		"giant path":         {"GET /" + strings.Repeat("x", 128<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", "431"},
		"no host":            {"GET /who HTTP/1.1\r\n\r\n", "400"},
		"two hosts":          {"GET /who HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", "400"},
		"host in the path":   {"GET http://evil.example/who HTTP/1.1\r\nHost: localhost\r\n\r\n", "403"},
		"HTTP/1.0, no host":  {"GET /who HTTP/1.0\r\n\r\n", "403"},
		"two lengths":        {"POST /who HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", "400"},
		"length and chunked": {"POST /who HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "401"},
		"noise":              {"\x16\x03\x01\x00\xa5\x01\x00\x00\r\n\r\n", "400"},
		"another HTTP":       {"GET /who HTTP/9.9\r\nHost: localhost\r\n\r\n", "505"},
		"connect":            {"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", "403"},
		"star":               {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: " + g.key + "\r\n\r\n", "200"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := g.dial(t)
			// It may be answered, and cut, before all of it is sent.
			go func() { _, _ = io.WriteString(c, tc.text) }()
			line, err := bufio.NewReader(c).ReadString('\n')
			if !strings.Contains(line, " "+tc.status+" ") {
				t.Errorf("%q, %v, want %s", line, err, tc.status)
			}
		})
	}
	t.Run("half-closed", func(t *testing.T) {
		t.Parallel()
		c, ok := g.dial(t).(*net.TCPConn)
		if !ok {
			t.Fatal("no TCP")
		}
		_, _ = io.WriteString(c, "GET /who HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: "+g.key+"\r\n\r\n")
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(c)
		if err != nil || !strings.HasSuffix(string(all), "ann") {
			t.Errorf("%q, %v", all, err)
		}
	})
	t.Run("nothing at all", func(t *testing.T) {
		t.Parallel()
		for range 20 {
			g.dial(t).Close()
		}
	})
	if body := g.ask(t, "GET", "/who", nil).body; body != "ann" {
		t.Errorf("afterwards: %q", body)
	}
}

// TestIdleCrowd opens many connections that say nothing, and comes in all the same.
func TestIdleCrowd(t *testing.T) {
	t.Parallel()
	n := 500
	if text := os.Getenv("SANDPIT_TEST_IDLE_CONNECTIONS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) { s.MaxConnections = n / 2 })
	conns := make([]net.Conn, n)
	for i := range conns {
		conns[i] = g.dial(t)
	}
	begin := time.Now()
	if got := g.ask(t, "GET", "/who", nil); got.body != "ann" {
		t.Errorf("%d %q", got.status, got.body)
	}
	t.Logf("%d idle connections: answered after %v", n, time.Since(begin))
	// The first ones made way.
	if _, err := conns[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest connection: %v, want it cut", err)
	}
	// The last ones can be used.
	c := conns[n-1]
	_, _ = io.WriteString(c, "GET /who HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: "+g.key+"\r\nConnection: close\r\n\r\n")
	if all, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(all), "ann") {
		t.Errorf("the newest connection: %q, %v", all, err)
	}
}
