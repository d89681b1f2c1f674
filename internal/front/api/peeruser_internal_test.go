package api

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestUserOf asks about connections of this program: open ones, and one that is closed, whose user is unknown.
func TestUserOf(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Skipf("this machine has no %s: %v", at, err)
		}
		defer ln.Close()
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		from, to := netip.MustParseAddrPort(conn.LocalAddr().String()), netip.MustParseAddrPort(ln.Addr().String())
		if uid, err := socketUser(from, to); err != nil || uid != os.Geteuid() {
			t.Errorf("%s: user %d, %v", at, uid, err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if uid, err := socketUser(from, to); sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("%s: user %d of a connection that is closed, %v", at, uid, err)
		}
		other := netip.AddrPortFrom(from.Addr(), 1)
		if uid, err := socketUser(other, to); sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("%s: user %d of a connection that never was, %v", at, uid, err)
		}
	}
}
