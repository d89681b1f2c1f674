package tlscert_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/tlscert"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// authority is an ACME server: Pebble, that of Let's Encrypt.
type authority struct {
	Directory string `json:"directory"`
	CA        string `json:"ca"`   // of the directory
	Root      string `json:"root"` // of what it gives
	stop      func()
}

// startAuthority starts one that looks for names at a port of this machine.
func startAuthority(t *testing.T, port int) *authority {
	t.Helper()
	program := filepath.Join(t.TempDir(), "acme")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "..", "..", "tools", "acme")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	if out, err := build.CombinedOutput(); err != nil {
		testengine.Skip(t, "Pebble cannot be built: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-tls-port", strconv.Itoa(port))
	stdin, err := cmd.StdinPipe() // it ends when this does
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a := &authority{}
	ended := false
	a.stop = func() {
		if !ended {
			ended = true
			_ = stdin.Close()
			_ = cmd.Wait() // the kill is its end
		}
	}
	t.Cleanup(a.stop)
	if err := json.NewDecoder(io.LimitReader(stdout, 1<<20)).Decode(a); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestAutomatic gets a certificate of a real ACME server, keeps it, and asks for no others.
func TestAutomatic(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal(l.Addr())
	}
	a := startAuthority(t, addr.Port)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	write(t, ca, []byte(a.CA))
	var log pages
	o := tlscert.AutomaticOptions{
		Dir: filepath.Join(t.TempDir(), "acme"), Names: []string{"box.sandpit.test", "other.sandpit.test"}, Email: "admin@sandpit.test",
		Directory: a.Directory, CAFile: ca, Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	c, err := tlscert.Automatic(o)
	if err != nil {
		t.Fatal(err)
	}
	at := serveAt(t, l, c)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(a.Root)) {
		t.Fatal(a.Root)
	}
	client := func(name string) *tls.Config {
		return &tls.Config{RootCAs: roots, ServerName: name, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	}
	s, err := dial(t, at, client("box.sandpit.test"))
	if err != nil || s.NegotiatedProtocol != "h2" {
		t.Fatalf("%v, %q\n%s", err, s.NegotiatedProtocol, log.String())
	}
	for _, name := range []string{"evil.sandpit.test", "127.0.0.1"} {
		if _, err := dial(t, at, client(name)); err == nil {
			t.Errorf("there is a certificate for %s", name)
		}
	}
	// It is kept, for itself alone.
	a.stop()
	again, err := tlscert.Automatic(o)
	if err != nil {
		t.Fatal(err)
	}
	kept := serve(t, again)
	if _, err := dial(t, kept, client("box.sandpit.test")); err != nil {
		t.Errorf("from the cache: %v", err)
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil || len(entries) < 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
	// Without an authority there are no new ones, which is reported.
	if _, err := dial(t, kept, client("other.sandpit.test")); err == nil {
		t.Error("there is a certificate without an authority")
	}
	if !strings.Contains(log.String(), "other.sandpit.test") || strings.Contains(log.String(), "evil") {
		t.Errorf("the log: %s", log.String())
	}
}

// TestBadAutomatic is refused at the start.
func TestBadAutomatic(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	write(t, empty, nil)
	for name, o := range map[string]tlscert.AutomaticOptions{
		"no names":   {},
		"a wildcard": {Names: []string{"a.example", "*.a.example"}},
		"no file":    {Names: []string{"a.example"}, CAFile: "/nowhere"},
		"no PEM":     {Names: []string{"a.example"}, CAFile: empty},
	} {
		if _, err := tlscert.Automatic(o); !errors.Is(err, sandpit.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
