// Package testport reserves ports for tests.
package testport

import (
	"net"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Reserve returns an address of loopback where no program listens. The kernel gives its port to no other program that
// asks for any port, until the test ends. A program that asks for this port may listen there, also several times in
// succession.
//
// A port that a closed listener had is not reserved: tests of other packages may get it at once.
func Reserve(tb testing.TB) string {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatalf("reserve a port: %v", err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) }) // never fails
	// Two sockets may be bound to the same port if both have this option and neither listens. Go sets it for listeners.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		tb.Fatalf("reserve a port: %v", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatalf("reserve a port: %v", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		tb.Fatalf("reserve a port: %v", err)
	}
	v4, ok := address.(*unix.SockaddrInet4)
	if !ok {
		tb.Fatalf("reserve a port: address of type %T", address)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(v4.Port))
}
