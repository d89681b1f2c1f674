package network_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

// serveTLS has a TLS server that echoes.
func serveTLS(tb testing.TB, n *internet, addrs ...string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	n.serve(tb, func(conn net.Conn) { echo(tls.Server(conn, config)) }, addrs...)
}

// greets reports whether a TLS server answers a client that calls it name.
func (b *box) greets(addr, name string) bool {
	b.tb.Helper()
	conn, err := b.dial(addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	return client.HandshakeContext(b.tb.Context()) == nil && answers(b.tb, client)
}

// TestServerName lets TLS through to a name that is allowed, and to no other, even
// at the same address.
func TestServerName(t *testing.T) {
	t.Parallel()
	const addr, other = "93.184.215.14:443", "93.184.215.15:443"
	n, names := newInternet(), newNameServer(t)
	serveTLS(t, n, addr, other)
	n.servePackets(t, addr)
	names.set("good.example.org", address("good.example.org", "93.184.215.14", 60))
	b := newBox(t, n, network.Config{Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{Allow: []string{"good.example.org"}}})
	if b.greets(addr, "good.example.org") {
		t.Error("a forged name let a connection through to an address that was never resolved")
	}
	b.resolve("good.example.org")
	for name, want := range map[string]bool{
		"good.example.org": true, "GOOD.example.org": true, "evil.example.org": false, "": false, "93.184.215.14": false,
	} {
		if got := b.greets(addr, name); got != want {
			t.Errorf("name %q: %v, want %v: %+v", name, got, want, b.last())
		}
	}
	if b.greets(other, "good.example.org") {
		t.Error("a forged name let a connection through to another address")
	}
	conn, err := b.dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	if answers(t, conn) {
		t.Error("what is not TLS came through")
	}
	if quic := b.dialPackets(addr); answersOnce(quic) {
		t.Error("datagrams with hidden names came through")
	}
}

// answersOnce reports whether a datagram is answered soon.
func answersOnce(conn net.Conn) bool {
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte("x"))
	_, err := conn.Read(make([]byte, 10))
	return err == nil
}

// TestHost does the same for plain HTTP.
func TestHost(t *testing.T) {
	t.Parallel()
	const addr = "93.184.215.14:80"
	n, names := newInternet(), newNameServer(t)
	n.serve(t, echo, addr)
	names.set("good.example.org", address("good.example.org", "93.184.215.14", 60))
	b := newBox(t, n, network.Config{Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{Allow: []string{"good.example.org"}}})
	b.resolve("good.example.org")
	for request, want := range map[string]bool{
		"GET / HTTP/1.1\r\nHost: good.example.org\r\n\r\n":                             true,
		"POST /x HTTP/1.1\r\nhOST:Good.Example.Org:80\r\nContent-Length: 3\r\n\r\nabc": true,
		"GET / HTTP/1.1\r\nHost: evil.example.org\r\n\r\n":                             false,
		"GET / HTTP/1.1\r\nHost: good.example.org\r\nHost: evil.example.org\r\n\r\n":   false,
		"GET http://good.example.org/ HTTP/1.1\r\nHost: evil.example.org\r\n\r\n":      false,
		"GET / HTTP/1.1\r\n\r\n":                                        false,
		"GET / HTTP/1.0\r\n\r\n":                                        false,
		"CONNECT good.example.org:80 HTTP/1.1\r\n\r\n":                  false,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                              false,
		"GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 100<<10) + "\r\n": false,
	} {
		conn, err := b.dial(addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, request)
		got := make([]byte, len(request))
		_, err = io.ReadFull(conn, got)
		if came := err == nil && string(got) == request; came != want {
			t.Errorf("%.60q: %v, want %v: %+v", request, came, want, b.last())
		}
		_ = conn.Close()
	}
}

// TestDeniedName keeps a name from being reached at addresses that are allowed, and
// lets servers that speak first do so.
func TestDeniedName(t *testing.T) {
	t.Parallel()
	const addr, talker = "93.184.215.14:443", "93.184.215.16:443"
	n := newInternet()
	serveTLS(t, n, addr)
	n.serve(t, func(conn net.Conn) { _, _ = io.WriteString(conn, "hello"); echo(conn) }, talker)
	b := newBox(t, n, network.Config{Policy: sandpit.NetworkPolicy{Deny: []string{"*.evil.example"}}})
	for name, want := range map[string]bool{"www.evil.example": false, "evil.example": true, "good.example": true, "": true} {
		if got := b.greets(addr, name); got != want {
			t.Errorf("name %q: %v, want %v", name, got, want)
		}
	}
	conn, err := b.dial(talker)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" || !answers(t, conn) {
		t.Errorf("a server that speaks first: %q, %v", got, err)
	}
}

// TestPolicyWhileNaming changes the rules before a client sends the host name: the new rules
// apply.
func TestPolicyWhileNaming(t *testing.T) {
	t.Parallel()
	const addr = "93.184.215.14:80"
	n, names := newInternet(), newNameServer(t)
	n.serve(t, echo, addr)
	names.set("good.example.org", address("good.example.org", "93.184.215.14", 60))
	names.set("also.example.org", address("also.example.org", "93.184.215.14", 60))
	b := newBox(t, n, network.Config{Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{Allow: []string{"good.example.org", "also.example.org"}}})
	b.resolve("good.example.org")
	b.resolve("also.example.org")
	for host, want := range map[string]bool{"good.example.org": true, "also.example.org": false} {
		if err := b.SetPolicy(sandpit.NetworkPolicy{Online: true, Allow: []string{"good.example.org", "also.example.org"}}); err != nil {
			t.Fatal(err)
		}
		conn, err := b.dial(addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
		if err := b.SetPolicy(sandpit.NetworkPolicy{Online: true, Allow: []string{"good.example.org"}}); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "Host: "+host+"\r\n\r\n")
		_, err = io.ReadFull(conn, make([]byte, 10))
		if (err == nil) != want {
			t.Errorf("%s: %v, want it let through: %v", host, err, want)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: good.example.org\r\n\r\n"))
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, port := range []uint16{80, 443} {
			name, read := network.NameIn(t.Context(), bytes.NewReader(data), port)
			if name != strings.ToLower(name) && isASCII(name) {
				t.Errorf("name %q is not in its normal form", name)
			}
			if !bytes.HasPrefix(data, read) {
				t.Error("what was read is not what came")
			}
		}
	})
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > 127 }) < 0
}
