package e2b_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
)

// resolver is where the test's names are asked for: resolv.conf knows of no ports.
const resolver = "127.83.101.2:53"

// privately runs a command where /etc/resolv.conf and the machine's authorities are others.
const privately = `mount --bind "$0" /etc/resolv.conf && mount --bind "$1" /etc/ssl/certs/ca-certificates.crt && shift && exec "$@"`

// TestNetworkOptions has the SDK say what sandboxes may reach, and what is set in their
// requests to a host by HTTPS, which is this machine.
func TestNetworkOptions(t *testing.T) {
	t.Parallel()
	testsdk.Need(t, "node", "npm")
	if os.Getuid() != 0 || exec.CommandContext(t.Context(), "unshare", "--mount", "true").Run() != nil {
		testengine.Skip(t, "a server with names and authorities of its own needs root, and unshare")
	}
	host := machineAddr(t)
	serveNames(t, host)
	secure, other := httptest.NewUnstartedServer(http.HandlerFunc(showHeaders)), httptest.NewUnstartedServer(http.HandlerFunc(showHeaders))
	secure.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	for _, s := range []*httptest.Server{secure, other} {
		_ = s.Listener.Close()
		s.Listener = listen(t, host)
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	}
	secure.StartTLS() // its certificate is for example.com, and its own authority
	other.Start()
	t.Cleanup(secure.Close)
	t.Cleanup(other.Close)

	dir := testsdk.Install(t, ".")
	resolv, roots := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "roots.pem")
	address, _, _ := net.SplitHostPort(resolver)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	// Gateways, which read them, have users of their own.
	for path, data := range map[string][]byte{resolv: []byte("nameserver " + address + "\n"), roots: authority} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	server := newServerBy(t, []string{"unshare", "--mount", "sh", "-c", privately, resolv, roots})
	environ := append(server.clientEnviron(), "SECURE="+secure.Listener.Addr().String(), "OTHER="+other.Listener.Addr().String())
	for _, r := range testsdk.Run(t, dir, environ, patience, "network.mjs") {
		t.Run(r.Name, r.Report)
	}
	out, err := exec.CommandContext(t.Context(), "grep", "-rlIa", "a-secret-of-the-client", server.Dir).Output()
	if len(out) > 0 || err == nil {
		t.Errorf("the secret is in %s", out)
	}
}

// showHeaders answers with what it was sent: what may be secret as a digest, so that the
// answer gives nothing away.
func showHeaders(w http.ResponseWriter, r *http.Request) {
	sum := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	_ = json.NewEncoder(w).Encode(map[string]string{ // the client may be gone
		"host": r.Host, "authorization": hex.EncodeToString(sum[:]), "plain": r.Header.Get("X-Plain"),
	})
}

func listen(tb testing.TB, host netip.Addr) net.Listener {
	tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		tb.Fatal(err)
	}
	return ln
}

// machineAddr returns an address of this machine that others can reach.
func machineAddr(tb testing.TB) netip.Addr {
	tb.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		tb.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr()
		}
	}
	testengine.Skip(tb, "the machine has no network interface with an IPv4 address")
	return netip.Addr{}
}

// serveNames has every name stand for an address.
func serveNames(tb testing.TB, addr netip.Addr) {
	tb.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(tb.Context(), "udp", resolver)
	if err != nil {
		testengine.Skip(tb, "no names can be served here: %v", err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return // closed
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60}
				m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}}}
			}
			if data, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(data, from) // the client retries
			}
		}
	})
	tb.Cleanup(func() { _ = conn.Close(); tasks.Wait() })
}
