package guest

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// orderTo sends a connection for an order and returns our end.
func orderTo(t *testing.T, conduit *os.File) net.Conn {
	t.Helper()
	return sendConn(t, conduit, OrderMessage())
}

func sendConn(t *testing.T, conduit *os.File, message []byte) net.Conn {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(fds[0]), "ours")
	defer ours.Close()
	err = syscall.Sendmsg(int(conduit.Fd()), message, syscall.UnixRights(fds[1]), nil, 0)
	_ = syscall.Close(fds[1])
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// holdable is a guest behind a conduit, and the conduit's other end.
func holdable(t *testing.T) (*Guest, *os.File) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	outside := os.NewFile(uintptr(fds[0]), "outside")
	g := newGuest(t.TempDir())
	g.settings = settings{token: "key", env: map[string]string{"A": "b"}, user: "me", workDir: "/w"}
	c, err := openConduit(os.NewFile(uintptr(fds[1]), "inside"), g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = outside.Close()
		c.waitForRelays()
		g.Close()
	})
	return g, outside
}

// TestHoldClosesAndForgets holds a guest with open connections and lets it go again.
func TestHoldClosesAndForgets(t *testing.T) {
	t.Parallel()
	g, outside := holdable(t)
	waiting := sendConn(t, outside, []byte{byte(Port >> 8), byte(Port & 0xff)}) // no program accepts it
	defer waiting.Close()
	if _, err := io.ReadFull(waiting, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	before := g.currentSettings()

	order := orderTo(t, outside)
	kept, err := Quiesce(order)
	_ = order.Close()
	if err != nil {
		t.Fatal(err)
	}
	_ = waiting.SetDeadline(time.Now().Add(10 * time.Second))
	if n, err := waiting.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("a connection is still open: %d, %v", n, err)
	}
	if diff := cmp.Diff(settings{}, g.currentSettings(), cmp.AllowUnexported(settings{})); diff != "" {
		t.Errorf("not forgotten:\n%s", diff)
	}
	order = orderTo(t, outside)
	defer order.Close()
	if err := Continue(order, Continuation{Settings: kept}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, g.currentSettings(), cmp.AllowUnexported(settings{})); diff != "" {
		t.Errorf("what has changed:\n%s", diff)
	}
}

// TestHoldBrokenOff has the caller go away in the middle of it.
func TestHoldBrokenOff(t *testing.T) {
	t.Parallel()
	g, outside := holdable(t)
	before := g.currentSettings()
	for _, said := range []string{"", "h", "r", "r\xff\xff\xff\xff", "r\x00\x00\x00\x02{]", "x"} {
		order := orderTo(t, outside)
		if _, err := io.WriteString(order, said); err != nil {
			t.Fatal(err)
		}
		_ = order.(*net.UnixConn).CloseWrite()
		_ = order.SetDeadline(time.Now().Add(10 * time.Second))
		_, err := io.Copy(io.Discard, order) // until the guest has given up
		if err != nil {
			t.Errorf("%q: %v", said, err)
		}
		_ = order.Close()
	}
	if diff := cmp.Diff(before, g.currentSettings(), cmp.AllowUnexported(settings{})); diff != "" {
		t.Errorf("what has changed:\n%s", diff)
	}
}
