package api_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// newKey returns the key of another owner.
func (g *gate) newKey(t *testing.T, owner string) string {
	t.Helper()
	_, secret, err := g.keys.Create(t.Context(), api.NewKey{Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// dialFrom opens a connection from an address.
func (g *gate) dialFrom(t *testing.T, from string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(long)); err != nil {
		t.Fatal(err)
	}
	return c
}

// write sends a request on a connection and returns the status of its answer, 0 if the
// connection is closed.
func write(t *testing.T, c net.Conn, key, path string) int {
	t.Helper()
	_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: %s\r\n\r\n", path, key) // then there is no answer
	return readStatus(c)
}

func readStatus(c net.Conn) int {
	res, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil) //nolint:bodyclose // closing would read the rest
	if err != nil {
		return 0
	}
	return res.StatusCode
}

// isCut reports whether the other side has closed a connection.
func isCut(t *testing.T, c net.Conn) bool {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// countCut returns how many connections the other side has closed.
func countCut(t *testing.T, conns []net.Conn) (n int) {
	t.Helper()
	for _, c := range conns {
		if isCut(t, c) {
			n++
		}
	}
	return n
}

// TestStrangersMakeWay fills the server with connections that show no key, in every state
// that one can be in: they do not keep anybody out.
func TestStrangersMakeWay(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":               "",
		"half a head":           "GET /who HTTP/1.1\r\nHost: localhost\r\n",
		"a body that is late":   "POST /who HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
		"a wrong key, the same": "POST /who HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: x\r\nContent-Length: 1000\r\n\r\n",
		"an idle one":           "GET /public HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) { s.MaxConnections, s.Socket = 60, socket })
			work := g.dial(t)
			if status := write(t, work, g.key, "/wait"); status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			for range 200 {
				_, _ = io.WriteString(g.dial(t), text)
			}
			for i := range 15 {
				if status := write(t, g.dial(t), g.key, "/who"); status != http.StatusOK {
					t.Errorf("request %d: status %d", i, status)
				}
			}
			if isCut(t, work) {
				t.Error("a request that is being answered was cut off")
			}
			c, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if status := write(t, c, g.key, "/who"); status != http.StatusOK {
				t.Errorf("by the socket: status %d", status)
			}
		})
	}
}

// TestRefusedBody has a request refused whose body does not come: its connection is closed
// soon.
func TestRefusedBody(t *testing.T) {
	t.Parallel()
	g := newGate(t, nil)
	c := g.dial(t)
	begin := time.Now()
	_, _ = io.WriteString(c, "POST /who HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: x\r\nContent-Length: 1000\r\n\r\n")
	all, err := io.ReadAll(c)
	if took := time.Since(begin); err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 401") || took > 4*time.Second {
		t.Errorf("%q, %v after %v", all, err, took)
	}
}

// TestOwnerLeavesRoom has one owner use as many connections as it can: those of another
// are let in, and none of theirs is cut off.
func TestOwnerLeavesRoom(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) { s.MaxConnections, s.MaxConnectionsPerAddress = 40, 40 })
	bob := g.newKey(t, "bob")
	work := g.dial(t)
	if status := write(t, work, bob, "/wait"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	got := map[int]int{}
	var held []net.Conn
	for range 60 {
		c := g.dial(t)
		held = append(held, c)
		got[write(t, c, g.key, "/wait")]++
	}
	if got[http.StatusOK] != 20 || got[http.StatusTooManyRequests] != 40 {
		t.Errorf("answers to one owner: %v, want 20 of 200 and 40 of 429", got)
	}
	for i := range 10 {
		if status := write(t, g.dial(t), bob, "/wait"); status != http.StatusOK {
			t.Errorf("request %d of the other: status %d", i, status)
		}
	}
	if isCut(t, work) {
		t.Error("the other's connection was cut off")
	}
	close(g.release)
	if n := countCut(t, held[:20]); n != 0 {
		t.Errorf("%d connections were cut off that there was room for", n)
	}
}

// TestFullCrowdCutsTheLargest has owners fill the server: a newcomer is let in, in
// place of the owner with the most.
func TestFullCrowdCutsTheLargest(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) {
		s.MaxConnections, s.MaxConnectionsPerAddress, s.MaxConnectionsPerOwner = 40, 40, 25
	})
	eve, bob := g.newKey(t, "eve"), g.newKey(t, "bob")
	open := func(key string, n int) (list []net.Conn) {
		for range n {
			c := g.dial(t)
			if status := write(t, c, key, "/wait"); status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			list = append(list, c)
		}
		return list
	}
	anns, eves := open(g.key, 25), open(eve, 15)
	open(bob, 5)
	if n := countCut(t, anns); n != 5 {
		t.Errorf("%d connections of the owner with the most are cut off, want 5", n)
	}
	if n := countCut(t, eves); n != 0 {
		t.Errorf("%d connections of another are cut off", n)
	}
}

// TestIdleConnectionsMakeWay has an owner keep connections that it does not use.
func TestIdleConnectionsMakeWay(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) { s.MaxConnections, s.MaxConnectionsPerAddress = 40, 40 })
	var idle []net.Conn
	for range 60 {
		c := g.dial(t)
		if status := write(t, c, g.key, "/who"); status != http.StatusOK {
			t.Fatalf("status %d", status)
		}
		idle = append(idle, c)
	}
	if n := countCut(t, idle); n != 40 {
		t.Errorf("%d of 60 idle connections are closed, want 40", n)
	}
}

// TestAddressLeavesRoom has many connections come from one address, of many owners.
func TestAddressLeavesRoom(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) { s.MaxConnections, s.MaxConnectionsPerAddress = 40, 10 })
	eve := g.newKey(t, "eve")
	own := g.dialFrom(t, "127.0.0.3")
	if status := write(t, own, eve, "/wait"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	var held []net.Conn
	for i := range 30 {
		c := g.dialFrom(t, "127.0.0.2")
		if status := write(t, c, []string{g.key, eve}[i%2], "/wait"); status != http.StatusOK {
			t.Fatalf("connection %d: status %d", i, status)
		}
		held = append(held, c)
	}
	if n := countCut(t, held); n != 20 {
		t.Errorf("%d of 30 connections from one address are cut off, want 20", n)
	}
	if isCut(t, own) {
		t.Error("a connection from another address was cut off")
	}
}

// TestProxyHasManyConnections has a trusted proxy carry the requests of many.
func TestProxyHasManyConnections(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) {
		s.MaxConnections, s.MaxConnectionsPerAddress, s.MaxConnectionsPerOwner = 40, 5, 5
		s.Proxies = api.Proxies{netip.MustParsePrefix("127.0.0.2/32")}
	})
	var held []net.Conn
	for range 30 {
		c := g.dialFrom(t, "127.0.0.2")
		if status := write(t, c, g.key, "/wait"); status != http.StatusOK {
			t.Fatalf("status %d", status)
		}
		held = append(held, c)
	}
	if n := countCut(t, held); n != 0 {
		t.Errorf("%d connections of a proxy are cut off", n)
	}
}

// TestRequestsOfOneConnection has one owner make as many requests as it can by HTTP/2.
func TestRequestsOfOneConnection(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(e *api.EdgeOptions, _ *api.ServerOptions) { e.MaxRequests = 40 })
	bob := g.newKey(t, "bob")
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	ask := func(key string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String()+"/wait", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Api-Key", key)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		if res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		return res.StatusCode
	}
	got := map[int]int{}
	for range 15 {
		got[ask(g.key)]++
	}
	if got[http.StatusOK] != 10 || got[http.StatusTooManyRequests] != 5 {
		t.Errorf("answers: %v, want 10 of 200 and 5 of 429", got)
	}
	if status := ask(bob); status != http.StatusOK {
		t.Errorf("the other's request: status %d", status)
	}
	close(g.release)
	eventually(t, "there is room again", func() bool {
		got := g.ask(t, http.MethodGet, "/who", nil)
		return got.status == http.StatusOK
	})
}

// TestReaderThatStalls does not read an answer: it is cut off. One that is quiet is not.
func TestReaderThatStalls(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			// A client that reads may get no processor time for a while.
			g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) { s.StallTimeout = 3 * time.Second })
			protocols := new(http.Protocols)
			protocols.SetHTTP1(protocol == "HTTP/1.1")
			protocols.SetUnencryptedHTTP2(protocol == "HTTP/2")
			transport := &http.Transport{Protocols: protocols}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			ask := func(path string) io.ReadCloser {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String()+path, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-Api-Key", g.key)
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				return res.Body
			}
			quiet := ask("/wait")
			defer quiet.Close()
			unread := ask("/large")
			defer unread.Close()
			select {
			case err := <-g.written:
				if err == nil {
					t.Error("a response that the client does not read was written completely")
				}
			case <-time.After(long):
				t.Fatal("sending a response that the client does not read did not end")
			}
			close(g.release)
			if text, err := io.ReadAll(quiet); string(text) != "whole" {
				t.Errorf("the quiet answer: %q, %v", text, err)
			}
			read := ask("/large")
			defer read.Close()
			if n, err := io.Copy(io.Discard, read); n != 64<<20 || err != nil {
				t.Errorf("an answer that is read: %d bytes, %v", n, err)
			}
		})
	}
}

// TestLongHeads has an address begin many requests with long heads, which the server must
// hold before it knows the client. They are limited; ordinary requests, and long heads of
// another address, are answered.
func TestLongHeads(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) { s.MaxHeader = 1 << 20 })
	long := "X-Long: " + strings.Repeat("x", 40<<10) + "\r\n"
	var held []net.Conn
	for range 100 {
		c := g.dialFrom(t, "127.0.0.9")
		_, _ = io.WriteString(c, "GET /who HTTP/1.1\r\nHost: localhost\r\n"+long) // then the server has closed it
		held = append(held, c)
	}
	n := 0
	for end := time.Now().Add(time.Minute); n < 92 && time.Now().Before(end); { // the server may not have read all heads yet
		n = countCut(t, held)
	}
	if n != 92 {
		t.Errorf("%d of 100 connections with long heads are cut off, want 92", n)
	}
	for what, text := range map[string]string{"usual": "", "long": long} {
		for range 20 { // a head that has been read makes room for another one
			c := g.dial(t)
			_, _ = fmt.Fprintf(c, "GET /who HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: %s\r\n%s\r\n", g.key, text)
			if status := readStatus(c); status != http.StatusOK {
				t.Fatalf("%s head: status %d", what, status)
			}
		}
	}
	for _, c := range held {
		_ = c.Close()
	}
	for end := time.Now().Add(10 * time.Second); ; { // until the server has noticed
		c := g.dialFrom(t, "127.0.0.9")
		_, _ = fmt.Fprintf(c, "GET /who HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: %s\r\n%s\r\n", g.key, long)
		status := readStatus(c)
		if status == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a long head after the others are gone: status %d", status)
		}
	}
}
