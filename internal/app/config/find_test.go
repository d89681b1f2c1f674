package config_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestServerURL finds a server by what is named, then by the socket of one that answers,
// then by the address of the configuration.
func TestServerURL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	cfg := config.Default()
	cfg.Server.Socket, cfg.Server.Listen = socket, "127.0.0.1:8190"
	want := func(url, when string) {
		t.Helper()
		if got := cfg.ServerURL(); got != url {
			t.Errorf("%s: %s, want %s", when, got, url)
		}
	}
	want("http://127.0.0.1:8190", "without a server")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	want("unix://"+socket, "with a server")
	cfg.URL = "http://named:1"
	want("http://named:1", "with another one named")
	cfg.URL = ""
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(socket); err != nil {
		t.Fatal(err)
	}
	want("http://127.0.0.1:8190", "with the socket that a killed server left")
	cfg.Server.TLS, cfg.Server.Listen = config.TLSLocal, "0.0.0.0:443"
	want("https://localhost:443", "with TLS, at all addresses")
	cfg.Server.Listen = config.None
	want("http://127.0.0.1:8090", "without an address")
	cfg.Server.Socket = config.None
	want("http://127.0.0.1:8090", "without a socket")
}
