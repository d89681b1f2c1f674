package owners_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// crowdedLab is a lab whose server may have few connections.
func crowdedLab(t *testing.T) *lab {
	t.Helper()
	return newLab(t, labOptions{server: "max_connections = 60"})
}

// open opens a connection to the server and says something.
func (l *lab) open(t *testing.T, text string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(l.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, _ = io.WriteString(conn, text) // it may be closed already
	return conn
}

// checkBoth has bob and the administrator's socket make requests.
func (l *lab) checkBoth(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i := range 15 {
		for _, p := range []party{l.bob, l.socket} {
			if r, err := p.do(ctx, http.MethodGet, "/v1/sandboxes", nil, nil); err != nil || r.status != http.StatusOK {
				t.Errorf("request %d of %s: %d, %v", i, p.name, r.status, err)
			}
		}
	}
}

// TestConnectionsWithoutKey keeps bodies of requests back that show no key, over and over.
func TestConnectionsWithoutKey(t *testing.T) {
	t.Parallel()
	l := crowdedLab(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		var held []net.Conn
		defer func() {
			for _, conn := range held {
				_ = conn.Close()
			}
		}()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for len(held) < 5000 {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(l.url, "http://"))
			if err != nil {
				continue
			}
			held = append(held, conn)
			_, _ = io.WriteString(conn, "POST /v1/sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n") // it may be closed already
		}
	}()
	time.Sleep(time.Second)
	l.checkBoth(t)
	close(stop)
	<-done
}

// TestConnectionsWithKey has an owner use all the connections that it can get, for streams
// and for bodies that do not come.
func TestConnectionsWithKey(t *testing.T) {
	t.Parallel()
	l := crowdedLab(t)
	streams := fmt.Sprintf("GET /v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: %s\r\n\r\n", l.alice.key)
	bodies := fmt.Sprintf("POST /v1/sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: %s\r\nContent-Length: 1000\r\n\r\n", l.alice.key)
	bobs := l.open(t, fmt.Sprintf("GET /v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: %s\r\n\r\n", l.bob.key))
	if _, err := bobs.Read(make([]byte, 1)); err != nil { // it has begun
		t.Fatal(err)
	}
	for i := range 100 {
		l.open(t, []string{streams, bodies}[i%2])
	}
	l.checkBoth(t)
	_ = bobs.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := io.Copy(io.Discard, bobs); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("bob's stream was cut off: %v", err)
	}
}

// TestWrongKeysOfOthers has wrong keys come from bob's address before bob's first request.
func TestWrongKeysOfOthers(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	stranger := party{name: "stranger", key: "e2b_" + strings.Repeat("0", 40), url: l.url, http: l.alice.http}
	refused := map[int]int{}
	for range 50 {
		refused[stranger.call(t, http.MethodGet, "/v1/sandboxes", nil).status]++
	}
	if refused[http.StatusUnauthorized] == 0 || refused[http.StatusTooManyRequests] == 0 || refused[http.StatusOK] != 0 {
		t.Errorf("wrong keys: %v, want 401 and later 429", refused)
	}
	if r := l.bob.call(t, http.MethodGet, "/v1/sandboxes", nil); r.status != http.StatusOK {
		t.Errorf("bob's right key: %d\n%s", r.status, r.body)
	}
}
