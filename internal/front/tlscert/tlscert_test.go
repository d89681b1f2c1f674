package tlscert_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/tlscert"
)

// long is how long a test waits for what must come.
const long = 2 * time.Minute

// pages takes concurrent writes.
type pages struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *pages) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *pages) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// made writes a certificate for a name, signed by itself, and its key.
func made(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	return certFile, keyFile
}

// write replaces a file.
func write(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

// serve answers handshakes at a loopback address.
func serve(t *testing.T, c *tls.Config) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveAt(t, l, c)
}

func serveAt(t *testing.T, l net.Listener, c *tls.Config) string {
	t.Helper()
	var group sync.WaitGroup
	group.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer raw.Close()
				conn := tls.Server(raw, c)
				_ = raw.SetDeadline(time.Now().Add(long))
				if conn.HandshakeContext(t.Context()) == nil {
					_, _ = conn.Write([]byte("in")) // the server reads it
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); group.Wait() })
	return l.Addr().String()
}

// dial shakes hands.
func dial(t *testing.T, at string, c *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: long}, Config: c}
	raw, err := d.DialContext(t.Context(), "tcp", at)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer raw.Close()
	conn, ok := raw.(*tls.Conn)
	if !ok {
		t.Fatal(raw)
	}
	_ = conn.SetDeadline(time.Now().Add(long))
	if _, err := conn.Read(make([]byte, 2)); err != nil {
		return tls.ConnectionState{}, err
	}
	return conn.ConnectionState(), nil
}

// TestFiles notices that files change, and keeps what it has when they make no sense.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := made(t, dir, "one.example")
	var log pages
	c, err := tlscert.Files(cert, key, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	at := serve(t, c)
	name := func() string {
		s, err := dial(t, at, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		return s.PeerCertificates[0].Subject.CommonName
	}
	if got := name(); got != "one.example" {
		t.Errorf("%q", got)
	}
	made(t, dir, "two.example")
	eventually(t, func() bool { return name() == "two.example" })
	write(t, cert, []byte("nothing"))
	eventually(t, func() bool { name(); return strings.Contains(log.String(), "the old one is kept") })
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if got := name(); got != "two.example" {
		t.Errorf("%q", got)
	}
	made(t, dir, "three.example")
	eventually(t, func() bool { return name() == "three.example" })
	if strings.Contains(log.String(), "PRIVATE") {
		t.Error("the log has a key")
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatal("timeout waiting for the server")
}

// TestVersions are TLS 1.2 and later, with HTTP/2.
func TestVersions(t *testing.T) {
	t.Parallel()
	cert, key := made(t, t.TempDir(), "one.example")
	c, err := tlscert.Files(cert, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := serve(t, c)
	for version, want := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		s, err := dial(t, at, &tls.Config{
			InsecureSkipVerify: true, MinVersion: version, MaxVersion: version, NextProtos: []string{"h2"},
		})
		if (err == nil) != want || want && s.NegotiatedProtocol != "h2" {
			t.Errorf("%s: %v, %q", tls.VersionName(version), err, s.NegotiatedProtocol)
		}
	}
}

// TestBadFiles are refused at the start.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	cert, key := made(t, t.TempDir(), "one.example")
	_, other := made(t, t.TempDir(), "two.example")
	for name, files := range map[string][2]string{
		"missing": {"/nowhere", key}, "swapped": {key, cert}, "of another": {cert, other}, "a directory": {t.TempDir(), key},
	} {
		if _, err := tlscert.Files(files[0], files[1], nil); !errors.Is(err, sandpit.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLocal is trusted by clients with its certificate, for the names it should be.
func TestLocal(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tls")
	o := tlscert.LocalOptions{Dir: dir, Names: []string{"box.example", "*.preview.example"}}
	c, err := tlscert.Local(o)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, tlscert.AuthorityFile))
	if err != nil || bytes.Contains(ca, []byte("PRIVATE")) {
		t.Fatalf("%v\n%s", err, ca)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatalf("%s", ca)
	}
	at := serve(t, c)
	for name, want := range map[string]bool{
		"": true, "127.0.0.1": true, "localhost": true, "LOCALHOST": true, "8080-abc.localhost": true, "box.example": true, "80-x.preview.example": true,
		"a.b.preview.example": true, "preview.example": false, "other.example": false, "box.example.evil": false, "evil localhost": false,
	} {
		client := &tls.Config{RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS12}
		if name == "" {
			client.ServerName = "127.0.0.1" // which is not sent
		}
		if _, err := dial(t, at, client); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
	// The next server has the same authority, and others have not.
	again, err := tlscert.Local(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, serve(t, again), &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}); err != nil {
		t.Error(err)
	}
	other, err := tlscert.Local(tlscert.LocalOptions{Dir: filepath.Join(t.TempDir(), "tls")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, serve(t, other), &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}); err == nil {
		t.Error("another authority is trusted")
	}
	for _, name := range []string{".", "authority.pem", tlscert.AuthorityFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// TestManyLocalNames are bounded in memory, and all are served.
func TestManyLocalNames(t *testing.T) {
	t.Parallel()
	c, err := tlscert.Local(tlscert.LocalOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		name := strings.Repeat("x", i%60+1) + "-" + string(rune('a'+i%26)) + ".localhost"
		cert, err := c.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
		if err != nil || cert.Leaf.VerifyHostname(name) != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestBadAuthority checks that a bad authority is reported and not replaced.
func TestBadAuthority(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := made(t, dir, "no.authority")
	leaf, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"empty": nil, "nonsense": []byte("x"), "no authority": append(leaf, secret...)} {
		write(t, filepath.Join(dir, "authority.pem"), text)
		_, err := tlscert.Local(tlscert.LocalOptions{Dir: dir})
		if !errors.Is(err, sandpit.Invalid) || !strings.Contains(sandpit.HintOf(err), "remove the file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
