package config

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// socketTimeout is how long a server's socket may take to accept a connection.
const socketTimeout = 2 * time.Second

// ServerURL returns the address of the server that commands and the Go client use: the one
// that a flag, SANDPIT_URL or the configuration names, else the socket of this user's own
// server if it responds, else the address in the configuration of the server.
func (c Config) ServerURL() string {
	if c.URL != "" {
		return c.URL
	}
	if url, ok := c.LocalServer(); ok {
		return url
	}
	url, err := c.ListenURL()
	if err != nil {
		return "http://127.0.0.1:8090" // where servers usually listen
	}
	return url
}

// LocalServer returns the address of the socket of this user's own server, if one answers
// there. A server that was killed leaves its socket behind.
func (c Config) LocalServer() (url string, ok bool) {
	if c.Server.Socket == None || c.Server.Socket == "" {
		return "", false
	}
	info, err := os.Stat(c.Server.Socket)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return "", false
	}
	dialer := net.Dialer{Timeout: socketTimeout}
	conn, err := dialer.DialContext(context.Background(), "unix", c.Server.Socket)
	if err != nil {
		return "", false
	}
	_ = conn.Close() // nothing was sent
	return "unix://" + c.Server.Socket, true
}

// ListenURL returns the URL at which the server of this configuration is reached from its
// machine.
//
// Unsupported: it listens at no address, or at one that it chooses itself.
func (c Config) ListenURL() (string, error) {
	host, port, err := net.SplitHostPort(c.Server.Listen)
	if err != nil || port == "0" {
		return "", sandpit.Errorf(sandpit.Unsupported, "the configuration does not name the server's address (server.listen is %s)", c.Server.Listen)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	scheme := "http"
	if c.Server.TLSKind() != TLSOff {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

// TLSKind returns where the server's certificates come from: one of the values of
// server.tls.
func (s Server) TLSKind() string {
	usual := TLSOff
	if s.TLSCert != "" {
		usual = TLSFiles
	}
	return cmp.Or(s.TLS, usual)
}
