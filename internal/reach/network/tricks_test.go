package network_test

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

// wireName writes labels as a packet has them, whatever is in them.
func wireName(labels ...string) []byte {
	var name []byte
	for _, l := range labels {
		name = append(append(name, byte(len(l))), l...)
	}
	return append(name, 0)
}

// wireQuestion asks for the address of a name.
func wireQuestion(name []byte) []byte {
	packet := []byte{0x12, 0x67, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	return append(append(packet, name...), 0, 1, 0, 1)
}

// TestOddNames asks for names in forms that two programs could read in two ways. A name
// that is not allowed never gets further, and the log stays fit to print.
func TestOddNames(t *testing.T) {
	t.Parallel()
	names := newNameServer(t)
	for _, name := range []string{"good.example.org", "_sip._tcp.good.example.org", "xn--bcher-kva.good.example.org"} {
		names.set(name, address(name, "93.184.215.14", 60))
	}
	b := newBox(t, newInternet(), network.Config{
		Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{Allow: []string{"good.example.org", "*.good.example.org"}, Deny: []string{"bad.good.example.org"}},
	})
	for _, tc := range []struct {
		labels []string
		want   dnsmessage.RCode
	}{
		{[]string{"good", "example", "org"}, dnsmessage.RCodeSuccess},
		{[]string{"gOOd", "EXAMPLE", "oRg"}, dnsmessage.RCodeSuccess},
		{[]string{"_sip", "_tcp", "good", "example", "org"}, dnsmessage.RCodeSuccess},
		{[]string{"xn--bcher-kva", "good", "example", "org"}, dnsmessage.RCodeSuccess},
		{[]string{"BAD", "good", "example", "org"}, dnsmessage.RCodeNameError},
		{[]string{"good", "example", "org", "evil"}, dnsmessage.RCodeNameError},
		{[]string{"good", "example", "org\x00"}, dnsmessage.RCodeNameError},
		{[]string{"good", "example", "org\x00", "evil", "example"}, dnsmessage.RCodeNameError},
		{[]string{"g\u043eod", "example", "org"}, dnsmessage.RCodeNameError}, // a letter that looks alike
		{[]string{"good", "ex\u00e4mple", "org"}, dnsmessage.RCodeNameError},
		{[]string{"good\x1b[2J", "example", "org"}, dnsmessage.RCodeNameError},
		{[]string{}, dnsmessage.RCodeNameError}, // the root
	} {
		var m dnsmessage.Message
		if err := m.Unpack(b.askPacket("udp", wireQuestion(wireName(tc.labels...)))); err != nil {
			t.Fatalf("%q: %v", tc.labels, err)
		}
		if m.RCode != tc.want || (tc.want == dnsmessage.RCodeSuccess) != (len(m.Answers) == 1) {
			t.Errorf("%q: %s with %d answers, want %s", tc.labels, m.RCode, len(m.Answers), tc.want)
		}
	}
	for _, d := range b.Decisions(0, 1000) {
		if strings.ContainsFunc(d.Name+d.Reason, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("the log has %q, %q", d.Name, d.Reason)
		}
	}
	names.mu.Lock()
	defer names.mu.Unlock()
	for asked := range names.asked {
		if name, _, _ := strings.Cut(asked, " "); name != "good.example.org." && !strings.HasSuffix(name, ".good.example.org.") {
			t.Errorf("%q was asked for outside", asked)
		}
	}
}

// TestBrokenQuestions sends what is no question. None is answered with anything, and
// what comes after is.
func TestBrokenQuestions(t *testing.T) {
	t.Parallel()
	names := newNameServer(t)
	names.set("good.example.org", address("good.example.org", "93.184.215.14", 60))
	b := newBox(t, newInternet(), network.Config{Resolvers: resolvers(names)})
	good := wireQuestion(wireName("good", "example", "org"))
	conn := b.dialPackets("10.0.2.2:53")
	for _, packet := range [][]byte{
		{},
		{0},
		good[:11], good[:20],
		wireQuestion([]byte{0xc0, 12}),       // a name that points to itself
		wireQuestion([]byte{0xc0, 14, 0xc0}), // and beyond
		wireQuestion(wireName("a.b", "org")), // a dot within a label
		wireQuestion(append([]byte{64}, strings.Repeat("x", 64)...)),
		wireQuestion(wireName(slices.Repeat([]string{strings.Repeat("x", 60)}, 5)...)), // too long
		slices.Concat([]byte{0, 1, 0x81, 0x80}, good[4:]),                              // an answer
		slices.Concat(good[:4], []byte{0, 2}, good[6:]),                                // two questions, one there
		slices.Concat(good[:4], []byte{0, 0}, good[6:]),
		slices.Repeat([]byte{0xff}, 4000),
	} {
		if _, err := conn.Write(packet); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Write(good); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 1<<16)
	n, err := conn.Read(answer)
	var m dnsmessage.Message
	if err != nil || m.Unpack(answer[:n]) != nil || m.ID != 0x1267 || len(m.Answers) != 1 {
		t.Errorf("the first answer is %+v, %v, want that of the whole question", m, err)
	}
}

// TestManyAddresses has a name server answer with more than anybody needs.
func TestManyAddresses(t *testing.T) {
	t.Parallel()
	names := newNameServer(t)
	var many []dnsmessage.Resource
	for i := range 3000 {
		many = append(many, address("many.example.org", fmt.Sprintf("93.%d.%d.1", 180+i/250, i%250), 60))
	}
	many[1] = address("many.example.org", "10.0.0.1", 60)
	names.set("many.example.org", many...)
	n := newInternet()
	n.serve(t, echo, "93.180.0.1:7", "10.0.0.1:7")
	b := newBox(t, n, network.Config{Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{Allow: []string{"many.example.org"}}})
	got := b.ask("tcp", "many.example.org", dnsmessage.TypeA)
	if len(got.Answers) == 0 || len(got.Answers) > 512 {
		t.Errorf("%d addresses came through", len(got.Answers))
	}
	if !b.reaches("93.180.0.1:7") || b.reaches("10.0.0.1:7") {
		t.Error("want the first address reached, and the private one not")
	}
}

// TestLifeAfterPolicy has an answer with a long life not outlive the rule that it was
// given by.
func TestLifeAfterPolicy(t *testing.T) {
	t.Parallel()
	const addr = "93.184.215.14:7"
	n, names := newInternet(), newNameServer(t)
	n.serve(t, echo, addr)
	names.set("good.example.org", address("good.example.org", "93.184.215.14", 30*86400))
	b := newBox(t, n, network.Config{Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{Allow: []string{"good.example.org"}}})
	b.resolve("good.example.org")
	conn, err := b.dial(addr)
	if err != nil || !answers(t, conn) {
		t.Fatalf("not reached: %v", err)
	}
	for _, p := range []sandpit.NetworkPolicy{
		{Online: true, Allow: []string{"other.example.org"}}, {Online: true, Deny: []string{"good.example.org"}}, {Online: true, Deny: []string{"*.example.org"}},
	} {
		if err := b.SetPolicy(p); err != nil {
			t.Fatal(err)
		}
		if answers(t, conn) {
			t.Errorf("%+v: the old connection continues", p)
		}
		if b.reaches(addr) {
			t.Errorf("%+v: reached by the old answer", p)
		}
	}
}

// echKeys makes what a client needs to hide its name behind public.
func echKeys(tb testing.TB, public string) []byte {
	tb.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	prefixed := func(b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) }
	config := []byte{1, 0, 0x20} // its number, and X25519
	config = append(config, prefixed(key.PublicKey().Bytes())...)
	config = append(config, prefixed([]byte{0, 1, 0, 1})...) // HKDF-SHA256 and AES-128-GCM
	config = append(append(config, 64, byte(len(public))), public...)
	config = append(config, 0, 0) // no extensions
	config = append([]byte{0xfe, 0x0d}, prefixed(config)...)
	return prefixed(config)
}

// TestEncryptedHello has a client encrypt the name that it wants. What counts is the
// one in the open; a server that has no key for the other knows no other, either.
func TestEncryptedHello(t *testing.T) {
	t.Parallel()
	const addr = "93.184.215.14:443"
	for cover, want := range map[string]bool{"good.example.org": true, "evil.example.org": false} {
		n, names := newInternet(), newNameServer(t)
		serveTLS(t, n, addr)
		names.set("good.example.org", address("good.example.org", "93.184.215.14", 60))
		b := newBox(t, n, network.Config{Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{Allow: []string{"good.example.org"}}})
		b.resolve("good.example.org")
		conn, err := b.dial(addr)
		if err != nil {
			t.Fatal(err)
		}
		client := tls.Client(conn, &tls.Config{
			ServerName: "good.example.org", EncryptedClientHelloConfigList: echKeys(t, cover), MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
			EncryptedClientHelloRejectionVerify: func(tls.ConnectionState) error { return nil },
		})
		err = client.HandshakeContext(t.Context())
		reached := err != nil && strings.Contains(err.Error(), "rejected ECH")
		if reached != want {
			t.Errorf("in the open %s: %v, want it let through: %v; %+v", cover, err, want, b.last())
		}
	}
}

// TestSlowHello has clients that send the host name late, or after very many bytes.
func TestSlowHello(t *testing.T) {
	t.Parallel()
	const addr = "93.184.215.14:80"
	n, names := newInternet(), newNameServer(t)
	n.serve(t, echo, addr)
	names.set("good.example.org", address("good.example.org", "93.184.215.14", 60))
	b := newBox(t, n, network.Config{Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{Allow: []string{"good.example.org"}}})
	b.resolve("good.example.org")
	conn, err := b.dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	request := "GET / HTTP/1.1\r\nHost: good.example.org\r\n\r\n"
	for _, c := range []byte(request) { // byte by byte
		if _, err := conn.Write([]byte{c}); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, len(request))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != request {
		t.Errorf("byte by byte: %q, %v", got, err)
	}
	if conn, err = b.dial(addr); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a client that says nothing: %v, want it ended", err)
	}
}
