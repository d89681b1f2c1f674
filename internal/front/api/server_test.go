package api_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

func hello(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "hello by "+r.Proto) }

// TestProtocols speaks all of them.
func TestProtocols(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t)
	plain := serve(t, api.ServerOptions{Handler: http.HandlerFunc(hello)})
	secure := serve(t, api.ServerOptions{Handler: http.HandlerFunc(hello), TLS: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}})
	for name, tc := range map[string]struct {
		s        *serving
		scheme   string
		allow    func(*http.Protocols)
		want     string
		insecure bool
	}{
		"1.1":     {plain, "http", func(p *http.Protocols) { p.SetHTTP1(true) }, "hello by HTTP/1.1", true},
		"2":       {plain, "http", func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, "hello by HTTP/2.0", true},
		"1.1 TLS": {secure, "https", func(p *http.Protocols) { p.SetHTTP1(true) }, "hello by HTTP/1.1", false},
		"2 TLS":   {secure, "https", func(p *http.Protocols) { p.SetHTTP2(true) }, "hello by HTTP/2.0", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := new(http.Protocols)
			tc.allow(p)
			transport := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{RootCAs: pool}}
			defer transport.CloseIdleConnections()
			if got := get(t, &http.Client{Transport: transport}, tc.scheme+"://"+tc.s.Addr().String()); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func get(tb testing.TB, c *http.Client, url string) string {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return string(body)
}

// certificate makes one for this machine.
func certificate(tb testing.TB) (tls.Certificate, *x509.CertPool) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		tb.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(cert)
	if err != nil {
		tb.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: private}, pool
}

// TestSocket comes by a unix socket, which needs no key and is for its owner only.
func TestSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // short: so must the names of sockets be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	g := newGate(t, func(_ *api.EdgeOptions, s *api.ServerOptions) { s.Socket = path })
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode()&os.ModeSocket == 0 {
		t.Fatalf("%v, %v", info, err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	client := &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	if got := get(t, client, "http://any.name/who"); got != api.LocalOwner {
		t.Errorf("the owner of the socket is %q", got)
	}
	o := api.ServerOptions{Handler: http.HandlerFunc(hello), Address: api.NoAddress, Socket: path, Drain: time.Second}
	if _, err := api.Listen(t.Context(), o); !errors.Is(err, sandpit.Conflict) {
		t.Errorf("a second server: %v", err)
	}
	if got := get(t, client, "http://any.name/who"); got != api.LocalOwner {
		t.Errorf("after the second server: %q", got)
	}
	g.stop()
	eventually(t, "the socket is gone", func() bool { _, err := os.Lstat(path); return errors.Is(err, os.ErrNotExist) })
	// One that a dead server has left is replaced; another file is not.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	serve(t, o).stop()
	o.Socket = filepath.Join(dir, "file")
	if err := os.WriteFile(o.Socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Listen(t.Context(), o); !errors.Is(err, sandpit.Conflict) {
		t.Errorf("in place of a file: %v", err)
	}
	o.Socket = filepath.Join(dir, strings.Repeat("x", 200))
	if _, err := api.Listen(t.Context(), o); !errors.Is(err, sandpit.Invalid) || sandpit.HintOf(err) == "" {
		t.Errorf("a long name: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 2 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestTaken listens where another server does.
func TestTaken(t *testing.T) {
	t.Parallel()
	s := serve(t, api.ServerOptions{Handler: http.HandlerFunc(hello)})
	for address, code := range map[string]sandpit.Code{s.Addr().String(): sandpit.Conflict, "127.0.0.1": sandpit.Invalid, api.NoAddress: sandpit.Invalid, "": sandpit.Invalid} {
		if _, err := api.Listen(t.Context(), api.ServerOptions{Handler: http.HandlerFunc(hello), Address: address, Drain: time.Second}); !errors.Is(err, code) {
			t.Errorf("%s: %v, want %s", address, err, code)
		}
	}
}

// TestDrain ends a server under requests of every kind.
func TestDrain(t *testing.T) {
	t.Parallel()
	begun := make(chan string, 3)
	cause := make(chan error, 1)
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		begun <- "short"
		<-release
		_, _ = io.WriteString(w, "whole")
	})
	mux.HandleFunc("/polite", func(w http.ResponseWriter, r *http.Request) {
		begun <- "polite"
		<-api.Draining(r.Context())
		_, _ = io.WriteString(w, "goodbye")
		close(release) // so the short one ends after the drain has begun
	})
	mux.HandleFunc("/stubborn", func(w http.ResponseWriter, r *http.Request) {
		begun <- "stubborn"
		<-r.Context().Done()
		cause <- context.Cause(r.Context())
		_, _ = io.WriteString(w, "told")
	})
	s := serve(t, api.ServerOptions{Handler: mux, Drain: time.Second})
	answers := make(map[string]chan string)
	for _, path := range []string{"short", "polite", "stubborn"} {
		ch := make(chan string, 1)
		answers[path] = ch
		c := s.dial(t)
		go func() {
			_, _ = io.WriteString(c, "GET /"+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				ch <- err.Error()
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			ch <- string(body)
		}()
		if got := <-begun; got != path {
			t.Fatalf("%s has begun, want %s", got, path)
		}
	}
	s.stop()
	for path, want := range map[string]string{"short": "whole", "polite": "goodbye", "stubborn": "told"} {
		if got := <-answers[path]; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if err := <-cause; !errors.Is(err, api.ErrDraining) {
		t.Errorf("the stubborn one was told %v", err)
	}
	var d net.Dialer
	eventually(t, "the address has no listener", func() bool {
		c, err := d.DialContext(t.Context(), "tcp", s.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
}

// TestCutOff ends a server whose requests do not heed anything but their connection.
func TestCutOff(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	s, err := api.Listen(t.Context(), api.ServerOptions{
		Address: "127.0.0.1:0", Drain: time.Millisecond,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, rest, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			close(begun)
			_, _ = rest.ReadByte() // until the connection is cut
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	c := (&serving{Server: s}).dial(t)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-begun
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is there still")
	}
}
