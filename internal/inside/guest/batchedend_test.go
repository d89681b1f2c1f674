package guest

import (
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// writes are what was written to a connection, piece by piece.
type writes struct {
	net.Listener

	mu     sync.Mutex
	pieces []string
}

func (w *writes) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	return writesConn{conn, w}, err
}

type writesConn struct {
	net.Conn
	writes *writes
}

func (c writesConn) Write(b []byte) (int, error) {
	c.writes.mu.Lock()
	c.writes.pieces = append(c.writes.pieces, string(b))
	c.writes.mu.Unlock()
	return c.Conn.Write(b)
}

// TestCommandEndsInOnePiece wants the start of a command at once, and its end, the trailer
// and the end of the body in one write: each write wakes each hop.
func TestCommandEndsInOnePiece(t *testing.T) {
	t.Parallel()
	g := New()
	s := httptest.NewUnstartedServer(g.Handler())
	seen := &writes{Listener: s.Listener}
	s.Listener = seen
	s.Start()
	t.Cleanup(func() {
		s.Close()
		g.Close()
	})
	initTestServer(t, s)
	seen.mu.Lock()
	seen.pieces = nil
	seen.mu.Unlock()
	frames(t, s, "/process.Process/Start", `{"process":{"cmd":"true"}}`)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.pieces) != 2 || !strings.Contains(seen.pieces[0], `"start"`) ||
		!strings.Contains(seen.pieces[1], `"end"`) || !strings.HasSuffix(seen.pieces[1], "\r\n0\r\n\r\n") {
		t.Errorf("%d pieces: %q", len(seen.pieces), seen.pieces)
	}
}
