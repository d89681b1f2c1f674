package testport_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testport"
)

// TestReserve has a port that is reserved refuse connections, be no other listener's, and be for one that asks for it.
func TestReserve(t *testing.T) {
	t.Parallel()
	address := testport.Reserve(t)
	if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial before a program listens: %v, %v", conn, err)
	}
	listen := func(address string) net.Listener {
		t.Helper()
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		return ln
	}
	for range 1000 {
		if got := listen("127.0.0.1:0").Addr().String(); got == address {
			t.Fatalf("another listener got %s", got)
		}
	}
	for range 2 {
		ln := listen(address)
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
