package network_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

const (
	public4 = "93.184.215.14:7"
	public6 = "[2606:2800:21f:cb07::1]:7"
)

// TestEcho reaches servers on the internet in every way there is.
func TestEcho(t *testing.T) {
	t.Parallel()
	n := newInternet()
	n.serve(t, echo, public4, public6)
	b := newBox(t, n, network.Config{})
	for _, addr := range []string{public4, public6} {
		if !b.reaches(addr) {
			t.Errorf("%s does not answer by TCP", addr)
		}
		if got := b.last(); !got.Allowed || got.Address != addr || got.Protocol != "tcp" || got.Reason == "" {
			t.Errorf("decision: %+v", got)
		}
	}
	n.servePackets(t, public4, public6)
	for _, addr := range []string{public4, public6} {
		conn := b.dialPackets(addr)
		for range 3 {
			if !answers(t, conn) {
				t.Errorf("%s does not answer by UDP", addr)
			}
		}
	}
	if b.reaches("93.184.215.15:7") {
		t.Error("a server that is not there answers")
	}
}

// TestTransfer sends 32 MB each way at once and compares, ends included.
func TestTransfer(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	there, back := make([]byte, size), make([]byte, size)
	_, _ = rand.Read(there)
	_, _ = rand.Read(back)
	n := newInternet()
	received := make(chan []byte, 1)
	n.serve(t, func(conn net.Conn) {
		var all sync.WaitGroup
		all.Go(func() { _, _ = conn.Write(back); closeWrite(conn) })
		got, _ := io.ReadAll(conn)
		received <- got
		all.Wait()
	}, public4)
	b := newBox(t, n, network.Config{})
	conn, err := b.dial(public4)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = conn.Write(there); closeWrite(conn) }()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, back) {
		t.Errorf("from outside: %d bytes, %v, want the %d that were sent", len(got), err, size)
	}
	if got := <-received; !bytes.Equal(got, there) {
		t.Errorf("from inside: %d bytes, want the %d that were sent", len(got), size)
	}
}

func closeWrite(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

// TestWall has the machine refuse what the rules allow: the sandbox is refused, and the log
// says why.
func TestWall(t *testing.T) {
	t.Parallel()
	n := newInternet()
	n.serve(t, echo, public4)
	n.servePackets(t, public4)
	n.walled[netipAddr("93.184.215.14")] = true
	b := newBox(t, n, network.Config{})
	if b.reaches(public4) {
		t.Error("it is reached")
	}
	_, _ = b.dialPackets(public4).Write([]byte("hello")) // as if it was lost
	for _, proto := range []string{"tcp", "udp"} {
		refused := func(d sandpit.NetworkDecision) bool {
			return d.Protocol == proto && d.Address == public4 && !d.Allowed && strings.Contains(d.Reason, "the dialer refuses")
		}
		for end := time.Now().Add(patience); !slices.ContainsFunc(b.Decisions(0, 100), refused); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the log of %s: %+v", proto, b.Decisions(0, 100))
			}
		}
	}
}

// TestPrivate shows that nothing private can be reached without a rule, in whatever
// way it is written, and that wide rules and names do not open it.
func TestPrivate(t *testing.T) {
	t.Parallel()
	private := []string{
		"169.254.169.254:80", "127.0.0.2:80", "10.1.2.3:80", "172.16.0.1:80", "192.168.1.1:80", "100.64.0.1:80", "0.0.0.1:80",
		"168.63.129.16:80", "198.18.0.1:80", "255.255.255.255:80",
		"[fd00:ec2::254]:80", "[fe80::1]:80", "[64:ff9b::a9fe:a9fe]:80", "[64:ff9b::7f00:1]:80", "[2002:7f00:1::1]:80",
		"[::ffff:169.254.169.254]:80", "[::ffff:127.0.0.1]:80", "[::7f00:1]:80", "[2001::1]:80", "[4000::1]:80",
		"203.0.114.77:80", // stands for an address of the machine
	}
	n := newInternet()
	n.serve(t, echo, private...)
	n.serve(t, echo, "169.254.169.254:80", "127.0.0.1:80")
	n.local[netipAddr("203.0.114.77")] = true
	for name, p := range map[string]sandpit.NetworkPolicy{
		"no rules":   {},
		"wide rules": {Allow: []string{"0.0.0.0/0", "::/0", "*.example.org", "169.0.0.0/8", "10.0.0.0/7"}, Inside: []string{"0.0.0.0/0", "::/0"}},
		"not granted": {
			Allow:  []string{"0.0.0.0/0", "::/0", "10.0.0.0/8", "169.254.169.254", "127.0.0.1", "203.0.114.77", "172.16.0.0/12", "192.168.0.0/16", "fd00::/8"},
			Inside: []string{"10.99.0.0/16", "169.254.169.254:81"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, n, network.Config{Policy: p})
			var all sync.WaitGroup
			for _, addr := range private {
				all.Go(func() {
					// Some are refused, and some no network stack lets out or in.
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					to, proto := full(addr)
					if conn, err := gonet.DialContextTCP(ctx, b.stack, to, proto); err == nil {
						_ = conn.Close()
						t.Errorf("%s can be reached", addr)
					}
				})
			}
			all.Wait()
		})
	}
	rules := []string{"10.1.0.0/16", "203.0.114.77:80", "[fd00:ec2::254]:80"}
	b := newBox(t, n, network.Config{Policy: sandpit.NetworkPolicy{Allow: rules, Inside: rules}})
	for _, addr := range []string{"10.1.2.3:80", "203.0.114.77:80", "[fd00:ec2::254]:80"} {
		if !b.reaches(addr) {
			t.Errorf("%s cannot be reached, although a rule names it", addr)
		}
	}
	if b.reaches("172.16.0.1:80") {
		t.Error("a private address can be reached that no rule names")
	}
}

// TestRules has one rule of each kind let through what it names, and nothing else.
func TestRules(t *testing.T) {
	t.Parallel()
	servers := []string{
		"93.184.215.14:7", "93.184.215.14:8", "93.184.215.15:7", "93.184.216.1:7",
		"[2606:2800::1]:7", "[2606:2800::1]:8", "[2606:2801::1]:7",
	}
	n := newInternet()
	n.serve(t, echo, servers...)
	n.servePackets(t, servers...)
	for rule, want := range map[string][]string{
		"93.184.215.14":       {"93.184.215.14:7", "93.184.215.14:8"},
		"93.184.215.14:7":     {"93.184.215.14:7"},
		"93.184.215.0/24":     {"93.184.215.14:7", "93.184.215.14:8", "93.184.215.15:7"},
		"93.184.215.0/24:7":   {"93.184.215.14:7", "93.184.215.15:7"},
		"2606:2800::1":        {"[2606:2800::1]:7", "[2606:2800::1]:8"},
		"[2606:2800::1]:8":    {"[2606:2800::1]:8"},
		"2606:2800::/31":      {"[2606:2800::1]:7", "[2606:2800::1]:8", "[2606:2801::1]:7"},
		"[2606:2800::/32]:7":  {"[2606:2800::1]:7"},
		"host.example.org":    {"93.184.215.14:7", "93.184.215.14:8", "[2606:2800::1]:7", "[2606:2800::1]:8"},
		"host.example.org:8":  {"93.184.215.14:8", "[2606:2800::1]:8"},
		"*.example.org":       {"93.184.215.14:7", "93.184.215.14:8", "[2606:2800::1]:7", "[2606:2800::1]:8"},
		"HOST.Example.ORG.:7": {"93.184.215.14:7", "[2606:2800::1]:7"},
		"example.org":         nil,
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			names := newNameServer(t)
			names.set("host.example.org", address("host.example.org", "93.184.215.14", 60))
			names.set("host.example.org", address("host.example.org", "2606:2800::1", 60))
			for _, kind := range []string{"allow", "deny"} {
				p := sandpit.NetworkPolicy{Allow: []string{rule}}
				if kind == "deny" {
					p = sandpit.NetworkPolicy{Allow: []string{"0.0.0.0/0", "::/0"}, Deny: []string{rule}}
				}
				b := newBox(t, n, network.Config{Resolvers: resolvers(names)})
				b.resolve("host.example.org") // while everything is allowed
				p.Online = true
				if err := b.SetPolicy(p); err != nil {
					t.Fatal(err)
				}
				for _, addr := range servers {
					if got := b.reaches(addr); got != (slices.Contains(want, addr) == (kind == "allow")) {
						t.Errorf("%s %s: %s by TCP: %v", kind, rule, addr, got)
					}
				}
			}
		})
	}
}

// TestSetPolicy replaces rules while connections are open: those that the new ones
// forbid end, all others go on.
func TestSetPolicy(t *testing.T) {
	t.Parallel()
	n := newInternet()
	n.serve(t, echo, "93.184.215.14:7", "93.184.215.15:7")
	b := newBox(t, n, network.Config{})
	stays, err := b.dial("93.184.215.14:7")
	if err != nil {
		t.Fatal(err)
	}
	ends, err := b.dial("93.184.215.15:7")
	if err != nil {
		t.Fatal(err)
	}
	if !answers(t, stays) || !answers(t, ends) {
		t.Fatal("no answer at first")
	}
	if err := b.SetPolicy(sandpit.NetworkPolicy{Online: true, Allow: []string{"not a rule"}}); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("a bad rule: %v, want invalid", err)
	}
	if !answers(t, ends) {
		t.Error("a bad rule changed something")
	}
	p := sandpit.NetworkPolicy{Online: true, Deny: []string{"93.184.215.15"}}
	if err := b.SetPolicy(p); err != nil {
		t.Fatal(err)
	}
	if answers(t, ends) {
		t.Error("a connection continues after it was forbidden")
	}
	if b.reaches("93.184.215.15:7") {
		t.Error("a new connection is not forbidden")
	}
	if !answers(t, stays) {
		t.Error("a connection that is still allowed has ended")
	}
	if got := b.Policy(); len(got.Deny) != 1 {
		t.Errorf("policy: %+v", got)
	}
}

// TestSamePort opens connections from one port one after the other, with the other
// side closing first: while the gateway kept a port at rest it would swallow them.
func TestSamePort(t *testing.T) {
	t.Parallel()
	n := newInternet()
	n.serve(t, func(conn net.Conn) { _, _ = conn.Write([]byte("bye")) }, public4)
	b := newBox(t, n, network.Config{})
	to, proto := full(public4)
	a := network.LinkAddresses()
	from := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(a.Box4.Addr().AsSlice()), Port: 40000}
	for i := range 50 {
		// Less than the minute that ports rest usually.
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		conn, err := gonet.DialTCPWithBind(ctx, b.stack, from, to, proto)
		for err != nil && ctx.Err() == nil && strings.Contains(err.Error(), "in use") { // by the sandbox itself
			time.Sleep(time.Millisecond)
			conn, err = gonet.DialTCPWithBind(ctx, b.stack, from, to, proto)
		}
		if err != nil {
			cancel()
			t.Fatalf("connection %d: %v", i, err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		if got, err := io.ReadAll(conn); err != nil || string(got) != "bye" {
			t.Errorf("connection %d: %q, %v", i, got, err)
		}
		_ = conn.Close()
		cancel()
	}
}

// TestTooManyConnections fills the gateway. What is too much is refused, and there
// is room again when connections end.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	n := newInternet()
	n.serve(t, echo, public4)
	b := newBox(t, n, network.Config{Connections: 8})
	var open []net.Conn
	for range 8 {
		conn, err := b.dial(public4)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	if b.reaches(public4) {
		t.Error("one connection too many was opened")
	}
	if got := b.last(); got.Allowed || got.Reason != "the sandbox has too many connections" {
		t.Errorf("decision: %+v", got)
	}
	if !answers(t, open[0]) {
		t.Error("an open connection suffered")
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	for end := time.Now().Add(patience); !b.reaches(public4); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there is no room after connections ended")
		}
	}
}

// TestReset passes a reset on both ways.
func TestReset(t *testing.T) {
	t.Parallel()
	n := newInternet()
	ended := make(chan error, 1)
	n.serve(t, func(conn net.Conn) {
		_, _ = io.CopyN(conn, conn, 1)
		_, err := io.ReadAll(conn)
		ended <- err
	}, public4)
	n.serve(t, func(conn net.Conn) {
		if c, ok := conn.(*net.TCPConn); ok {
			_ = c.SetLinger(0)
		}
	}, public6)
	b := newBox(t, n, network.Config{})
	conn, err := b.dial(public6)
	if err == nil {
		if got, err := io.ReadAll(conn); err == nil {
			t.Errorf("a reset from outside came as an end after %d bytes", len(got))
		}
	}
	conn, err = b.dial(public4)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte("x"))
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := b.SetPolicy(sandpit.NetworkPolicy{Online: true, Deny: []string{"0.0.0.0/0"}}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a connection that was cut came to the server as if it were complete")
	}
}
