package network_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

// TestResolve asks for names in every way, and reaches what they stand for.
func TestResolve(t *testing.T) {
	t.Parallel()
	n, names := newInternet(), newNameServer(t)
	n.serve(t, echo, public4, public6)
	names.set("one.example.org", address("one.example.org", "93.184.215.14", 60))
	names.set("one.example.org", address("one.example.org", "2606:2800:21f:cb07::1", 60))
	b := newBox(t, n, network.Config{Resolvers: resolvers(names)})
	if got := b.resolve("one.example.org"); !slices.Equal(got, []string{"93.184.215.14", "2606:2800:21f:cb07::1"}) {
		t.Errorf("addresses: %v", got)
	}
	if got := b.ask("tcp", "ONE.example.org", dnsmessage.TypeA); len(got.Answers) != 1 {
		t.Errorf("by TCP: %+v", got)
	}
	if got := b.ask("udp", "none.example.org", dnsmessage.TypeA); got.RCode != dnsmessage.RCodeNameError {
		t.Errorf("a name that does not exist: %s", got.RCode)
	}
	if got := b.ask("udp", "one.example.org", dnsmessage.Type(65)); got.RCode != dnsmessage.RCodeSuccess || len(got.Answers) != 0 {
		t.Errorf("a question that would hide names: %+v", got)
	}
	if !b.reaches(public4) || b.last().Name != "one.example.org" {
		t.Errorf("decision: %+v, want the name in it", b.last())
	}
}

// TestLongAnswer cuts an answer that is too long for a datagram, and gives it whole
// by TCP.
func TestLongAnswer(t *testing.T) {
	t.Parallel()
	names := newNameServer(t)
	var many []dnsmessage.Resource
	for i := range 200 {
		many = append(many, address("many.example.org", fmt.Sprintf("93.184.215.%d", i), 60))
	}
	names.set("many.example.org", many...)
	b := newBox(t, newInternet(), network.Config{Resolvers: resolvers(names)})
	if got := b.ask("udp", "many.example.org", dnsmessage.TypeA); !got.Truncated || len(got.Answers) != 0 {
		t.Errorf("by UDP: %d answers, truncated %v", len(got.Answers), got.Truncated)
	}
	if got := b.ask("tcp", "many.example.org", dnsmessage.TypeA); got.Truncated || len(got.Answers) != 200 {
		t.Errorf("by TCP: %d answers, truncated %v", len(got.Answers), got.Truncated)
	}
}

// TestNamesOnly has an allow-list of names. Nothing else is resolved or reached.
func TestNamesOnly(t *testing.T) {
	t.Parallel()
	n, names := newInternet(), newNameServer(t)
	n.serve(t, echo, "93.184.215.14:7", "93.184.215.15:7", "93.184.215.16:7")
	names.set("good.example.org", address("good.example.org", "93.184.215.14", 86400*30))
	names.set("other.example.com", address("other.example.com", "93.184.215.15", 60))
	b := newBox(t, n, network.Config{
		Resolvers: resolvers(names),
		Policy:    sandpit.NetworkPolicy{Allow: []string{"*.example.org"}, Deny: []string{"bad.example.org", "*.tracker.example"}},
	})
	if b.reaches("93.184.215.14:7") {
		t.Error("reached before its name was resolved")
	}
	got := b.ask("udp", "good.example.org", dnsmessage.TypeA)
	if len(got.Answers) != 1 || got.Answers[0].Header.TTL > 300 {
		t.Errorf("answer: %+v, want it for at most as long as it is remembered", got)
	}
	if !b.reaches("93.184.215.14:7") {
		t.Error("not reached after its name was resolved")
	}
	for _, name := range []string{"other.example.com", "example.org", "good.example.org.evil.example", "bad.example.org"} {
		if got := b.ask("udp", name, dnsmessage.TypeA); got.RCode != dnsmessage.RCodeNameError || names.timesAsked(name) != 0 {
			t.Errorf("%s: %s, and asked for %d times", name, got.RCode, names.timesAsked(name))
		}
	}
	if got := b.last(); got.Protocol != "dns" || got.Allowed || got.Name != "bad.example.org" || got.Reason != "deny bad.example.org" {
		t.Errorf("decision: %+v", got)
	}
	if b.reaches("93.184.215.15:7") {
		t.Error("reached without a rule")
	}
	// An answer that also tells addresses of others does not open those.
	names.set("two.example.org", address("two.example.org", "93.184.215.14", 60), address("other.example.com", "93.184.215.16", 60))
	b.resolve("two.example.org")
	if b.reaches("93.184.215.16:7") {
		t.Error("reached what an answer told besides")
	}
}

// TestAliases follows aliases: they open what a name that is allowed leads to, and
// lead nowhere that is denied.
func TestAliases(t *testing.T) {
	t.Parallel()
	n, names := newInternet(), newNameServer(t)
	n.serve(t, echo, "93.184.215.14:7", "93.184.215.15:7")
	names.set("good.example.org", alias("good.example.org", "a.cdn.example"), alias("a.cdn.example", "b.cdn.example"),
		address("b.cdn.example", "93.184.215.14", 60))
	names.set("sly.example.org", alias("sly.example.org", "x.tracker.example"), address("x.tracker.example", "93.184.215.15", 60))
	names.set("loop.example.org", alias("loop.example.org", "loop.example.org"), address("far.example", "93.184.215.15", 60))
	b := newBox(t, n, network.Config{
		Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{Allow: []string{"*.example.org"}, Deny: []string{"*.tracker.example"}},
	})
	b.resolve("good.example.org")
	if !b.reaches("93.184.215.14:7") {
		t.Error("not reached by its aliases")
	}
	if got := b.ask("udp", "sly.example.org", dnsmessage.TypeA); got.RCode != dnsmessage.RCodeNameError {
		t.Errorf("an alias of a name that is denied: %s", got.RCode)
	}
	b.resolve("loop.example.org")
	if b.reaches("93.184.215.15:7") {
		t.Error("reached by an alias that is denied, or by a circle")
	}
}

// TestRebinding has a name change from a public address to private ones.
func TestRebinding(t *testing.T) {
	t.Parallel()
	n, names := newInternet(), newNameServer(t)
	n.serve(t, echo, "93.184.215.14:7", "10.0.0.5:7", "169.254.169.254:7", "[fd00::5]:7")
	for _, p := range []sandpit.NetworkPolicy{{}, {Allow: []string{"evil.example.org"}}} {
		names.set("evil.example.org", address("evil.example.org", "93.184.215.14", 0))
		b := newBox(t, n, network.Config{Resolvers: resolvers(names), Policy: p})
		if got := b.resolve("evil.example.org"); !slices.Equal(got, []string{"93.184.215.14"}) || !b.reaches("93.184.215.14:7") {
			t.Errorf("at first: %v", got)
		}
		names.set("evil.example.org", address("evil.example.org", "10.0.0.5", 0), address("evil.example.org", "169.254.169.254", 0))
		names.set("evil.example.org", address("evil.example.org", "::ffff:10.0.0.5", 0), address("evil.example.org", "fd00::5", 0),
			address("evil.example.org", "64:ff9b::a00:5", 0))
		if got := b.resolve("evil.example.org"); len(got) != 0 {
			t.Errorf("private addresses came through: %v", got)
		}
		if got := b.last(); got.Allowed || got.Reason != "a private or special address in a DNS response" {
			t.Errorf("decision: %+v", got)
		}
		for _, addr := range []string{"10.0.0.5:7", "169.254.169.254:7", "[fd00::5]:7"} {
			if b.reaches(addr) {
				t.Errorf("%s can be reached", addr)
			}
		}
	}
}

// TestNoResolver says that something failed if no resolver answered.
func TestNoResolver(t *testing.T) {
	t.Parallel()
	b := newBox(t, newInternet(), network.Config{})
	if got := b.ask("udp", "one.example.org", dnsmessage.TypeA); got.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("got %s", got.RCode)
	}
}

// TestOtherPortsOfGateway reaches nothing on the gateway but DNS.
func TestOtherPortsOfGateway(t *testing.T) {
	t.Parallel()
	n := newInternet()
	n.serve(t, echo, "10.0.2.2:80", "[fd73:7069:7400::2]:80", "10.0.2.15:80")
	b := newBox(t, n, network.Config{Policy: sandpit.NetworkPolicy{Allow: []string{"10.0.2.0/24"}}})
	for _, addr := range []string{"10.0.2.2:80", "[fd73:7069:7400::2]:80"} {
		if b.reaches(addr) {
			t.Errorf("%s answers", addr)
		}
	}
}

func FuzzQuestion(f *testing.F) {
	packet, err := (&dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 1, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("a.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}).Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packet)
	f.Add([]byte{})
	answer := network.NewAnswerer(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		got := answer(data)
		if got == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(got); err != nil || !m.Response || len(got) > 4096 {
			t.Errorf("answer of %d bytes to %x: %v", len(got), data, err)
		}
	})
}

// FuzzAnswer takes what a resolver sends.
func FuzzAnswer(f *testing.F) {
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("a.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	packet, err := (&dnsmessage.Message{
		Header: dnsmessage.Header{ID: 7, Response: true}, Questions: []dnsmessage.Question{q},
		Answers: []dnsmessage.Resource{alias("a.example", "b.example"), address("b.example", "93.184.215.14", 9)},
	}).Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packet)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, a := range network.AnswerAddresses(data, 7, q) {
			if !a.IsValid() || a.Is4In6() {
				t.Errorf("address %v from %x", a, data)
			}
		}
	})
}

// TestMachineResolvers reads what machines have.
func TestMachineResolvers(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/resolv.conf"
	writeFile(t, path, "# comment\nsearch x\nnameserver 127.0.0.53\nnameserver nonsense\nnameserver\nnameserver fe80::1%eth0\nnameserver 1.1.1.1\nnameserver 9.9.9.9\n")
	got, err := network.MachineResolvers(path)
	want := []netip.AddrPort{
		netip.MustParseAddrPort("127.0.0.53:53"), netip.MustParseAddrPort("[fe80::1%eth0]:53"), netip.MustParseAddrPort("1.1.1.1:53"),
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
