package guest

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestDial connects to a port through a guest that listens.
func TestDial(t *testing.T) {
	t.Parallel()
	g := New()
	t.Cleanup(g.Close)
	g.settings.token = "the key"
	server := httptest.NewServer(g.listenHandler())
	t.Cleanup(server.Close)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		if conn, err := ln.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	res := dialThrough(t, server.URL, "the key", port) //nolint:bodyclose // conn is closed below
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatalf("%s, %v", res.Status, res.Header)
	}
	conn := res.Body.(io.ReadWriteCloser)
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("the port answers %q, %v", got, err)
	}
	_ = conn.Close()
	for name, tc := range map[string]struct {
		key, port string
		status    int
	}{
		"without the key": {"", port, http.StatusUnauthorized},
		"another key":     {"a key", port, http.StatusUnauthorized},
		"not a port":      {"the key", "http", http.StatusBadRequest},
		"port 0":          {"the key", "0", http.StatusBadRequest},
		"no port":         {"the key", "65536", http.StatusBadRequest},
		"a closed port":   {"the key", "1", http.StatusServiceUnavailable},
	} {
		res := dialThrough(t, server.URL, tc.key, tc.port)
		if res.StatusCode != tc.status {
			t.Errorf("%s: %s, want %d", name, res.Status, tc.status)
		}
		_ = res.Body.Close()
	}
}

func dialThrough(t *testing.T, url, key, port string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, url+DialPath+"?port="+port, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{
		TokenHeader: {key}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, // of RFC 6455
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestLaunchKey checks that a key stays the same, and that only its owner can read it.
func TestLaunchKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "sandpit")
	unlock, err := lockLaunch(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	first, err := ensureKey(dir)
	if err != nil || len(first) < 26 {
		t.Fatalf("key of %d bytes, %v", len(first), err)
	}
	if again, err := ensureKey(dir); err != nil || again != first {
		t.Errorf("the key has changed, %v", err)
	}
	info, err := os.Stat(filepath.Join(dir, "key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if third, err := ensureKey(dir); err != nil || len(third) < 26 {
		t.Errorf("an empty file: key of %d bytes, %v", len(third), err)
	}
}

func TestAnswersKey(t *testing.T) {
	t.Parallel()
	g := New()
	t.Cleanup(g.Close)
	g.settings.token = "the key"
	server := httptest.NewServer(g.listenHandler())
	t.Cleanup(server.Close)
	port, err := strconv.Atoi(server.URL[strings.LastIndexByte(server.URL, ':')+1:])
	if err != nil {
		t.Fatal(err)
	}
	if !answersKey(port, "the key") || answersKey(port, "another") || answersKey(1, "the key") {
		t.Error("a guest is not told from another one")
	}
}

func TestLaunchArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"0"}, {"65536"}, {"x"}, {"1", "2"}} {
		if _, err := parseLaunch(args); err == nil {
			t.Errorf("arguments %q are accepted", args)
		}
	}
}
