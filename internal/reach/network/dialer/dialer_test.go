package dialer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
	"github.com/sandpit-dev/sandpit/internal/reach/network/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// world is a kernel in which some addresses are the machine's.
type world map[netip.Addr]route.Kind

func (w world) Lookup(d route.Destination) (route.Kind, error) { return w[d.Addr], nil }

// pair returns both ends of a connection between a gateway and a dialer.
func pair(tb testing.TB) (gateway, dialer *net.UnixConn) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		tb.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		conn, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			tb.Fatal(err)
		}
		ends[i] = conn.(*net.UnixConn) //nolint:forcetypeassert // it is one
	}
	tb.Cleanup(func() { _ = ends[0].Close(); _ = ends[1].Close() })
	return ends[0], ends[1]
}

// serve runs a Server until the end of the test and returns the gateway's end.
func serve(tb testing.TB, k kernel, g Grant) (*net.UnixConn, *Server) {
	tb.Helper()
	gateway, dialer := pair(tb)
	s := NewServer(dialer, k, g)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(ctx) })
	tb.Cleanup(func() { cancel(); running.Wait() })
	return gateway, s
}

func realKernel(tb testing.TB) *route.Kernel {
	tb.Helper()
	k, err := route.Open()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = k.Close() })
	return k
}

// serveEcho returns the address of a server that sends back what comes.
func serveEcho(tb testing.TB) netip.AddrPort {
	tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() { defer conn.Close(); _, _ = io.Copy(conn, conn) })
		}
	})
	tb.Cleanup(func() { _ = ln.Close(); tasks.Wait() })
	return netip.MustParseAddrPort(ln.Addr().String())
}

// servePackets is serveEcho for datagrams.
func servePackets(tb testing.TB) netip.AddrPort {
	tb.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(tb.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var task sync.WaitGroup
	task.Go(func() {
		packet := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(packet[:n], from)
		}
	})
	tb.Cleanup(func() { _ = conn.Close(); task.Wait() })
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

// wantEcho sends a word and wants it back.
func wantEcho(tb testing.TB, conn net.Conn) {
	tb.Helper()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		tb.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		tb.Errorf("got %q, %v", got, err)
	}
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// TestDial opens connections to what was granted.
func TestDial(t *testing.T) {
	t.Parallel()
	stream, packets := serveEcho(t), servePackets(t)
	conn, s := serve(t, realKernel(t), Grant{Inside: []Range{{Prefix: host(stream.Addr()), Port: stream.Port()}}, Resolvers: []netip.AddrPort{packets}})
	c := NewClient(conn)
	tcp, err := c.Dial(t.Context(), "tcp", stream)
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	if _, ok := tcp.(*net.TCPConn); !ok || tcp.RemoteAddr().String() != stream.String() {
		t.Errorf("a %T to %v", tcp, tcp.RemoteAddr())
	}
	wantEcho(t, tcp)
	udp, err := c.DialResolver(t.Context(), "udp", packets)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	wantEcho(t, udp)
	if _, err := c.Dial(t.Context(), "udp", packets); !errors.Is(err, sandpit.PermissionDenied) {
		t.Errorf("a resolver as a peer: %v", err)
	}
	if _, err := c.DialResolver(t.Context(), "tcp", stream); !errors.Is(err, sandpit.PermissionDenied) {
		t.Errorf("a peer as a resolver: %v", err)
	}
	s.SetGrant(Grant{})
	if _, err := c.Dial(t.Context(), "tcp", stream); !errors.Is(err, sandpit.PermissionDenied) {
		t.Errorf("after the grant: %v", err)
	}
	wantEcho(t, tcp) // what is open stays so
}

// TestDialFails reports why a connection fails, and takes no longer than its caller.
func TestDialFails(t *testing.T) {
	t.Parallel()
	closed := serveEcho(t)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := netip.MustParseAddrPort(ln.Addr().String())
	_ = ln.Close()
	conn, _ := serve(t, realKernel(t), Grant{Inside: []Range{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}})
	c := NewClient(conn)
	if _, err := c.Dial(t.Context(), "tcp", free); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a closed port: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Dial(ctx, "tcp", closed); !errors.Is(err, context.Canceled) {
		t.Errorf("given up before: %v", err)
	}
	if _, err := c.Dial(t.Context(), "sctp", closed); err == nil {
		t.Error("another protocol is dialed")
	}
}

// TestWall asks for what no gateway gets. No decision of a gateway is between these
// requests and the dialer.
func TestWall(t *testing.T) {
	t.Parallel()
	own, ownInside := netip.MustParseAddr("198.41.99.5"), netip.MustParseAddr("2606:2800:99::5")
	kernel := world{own: route.Local, ownInside: route.Local, netip.MustParseAddr("198.41.97.1"): route.Nowhere}
	resolver := netip.MustParseAddrPort("127.0.0.53:53")
	grant := Grant{Inside: []Range{{netip.MustParsePrefix("10.1.0.0/16"), 443}, {netip.MustParsePrefix("fd00:1::/32"), 0}}, Resolvers: []netip.AddrPort{resolver}}
	for target, want := range map[string]status{
		"8.8.8.8:53": statusPassed, "[2606:4700::1111]:443": statusPassed, "10.1.2.3:443": statusPassed, "[fd00:1::5]:1": statusPassed,
		"127.0.0.1:80": statusRefused, "127.255.255.254:80": statusRefused, "[::1]:80": statusRefused, "169.254.169.254:80": statusRefused,
		"168.63.129.16:80": statusRefused, "10.1.2.3:80": statusRefused, "10.2.0.1:443": statusRefused, "192.168.0.1:80": statusRefused,
		"100.64.0.1:80": statusRefused, "172.31.255.255:1": statusRefused, "192.0.0.192:80": statusRefused, "0.1.2.3:80": statusRefused,
		"240.0.0.1:80": statusRefused, "[fd00:2::5]:80": statusRefused, "[fe80::1]:80": statusRefused, "[64:ff9b::7f00:1]:80": statusRefused,
		"[64:ff9b::a9fe:a9fe]:80": statusRefused, "[64:ff9b:1::808:808]:80": statusRefused, "[2002:7f00:1::]:80": statusRefused,
		"[2001::1]:80": statusRefused, "[2001:db8::1]:80": statusRefused, "[::7f00:1]:80": statusRefused, "[4000::1]:80": statusRefused,
		"[fec0::1]:80": statusRefused, "127.0.0.53:53": statusRefused,
		own.String() + ":80": statusOwn, "[2606:2800:99::5]:80": statusOwn, "[64:ff9b::c629:6305]:80": statusOwn, "198.41.97.1:80": statusFailed,
		"0.0.0.0:80": statusInvalid, "[::]:80": statusInvalid, "224.0.0.1:80": statusInvalid, "[ff02::1]:80": statusInvalid,
		"255.255.255.255:80": statusInvalid, "8.8.8.8:0": statusInvalid, "127.0.0.1:0": statusInvalid,
	} {
		to := netip.MustParseAddrPort(target)
		for _, p := range []protocol{protocolTCP, protocolUDP} {
			got, granted := grant.checkRequest(kernel, request{op: opDial, protocol: p, to: to})
			if got != want || granted && want != statusPassed {
				t.Errorf("%s by protocol %d: status %d, want %d", target, p, got, want)
			}
		}
		if to.Port() == 0 {
			continue
		}
		if got, _ := grant.checkRequest(kernel, request{op: opDial, protocol: protocolPing, to: to}); got != statusInvalid {
			t.Errorf("a ping of a port at %s: status %d", target, got)
		}
		if got, _ := grant.checkRequest(kernel, request{op: opResolve, protocol: protocolUDP, to: to}); (got == statusPassed) != (to == resolver) {
			t.Errorf("%s as a resolver: status %d", target, got)
		}
	}
	ping := request{op: opDial, protocol: protocolPing, to: netip.AddrPortFrom(own, 0)}
	if got, _ := grant.checkRequest(kernel, ping); got != statusOwn {
		t.Errorf("a ping of the machine: status %d", got)
	}
}

// TestHostileRequests sends packets that no gateway of ours would send. Each has an
// answer, and none a descriptor; then the dialer works as before.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	target := serveEcho(t)
	gateway, _ := serve(t, realKernel(t), Grant{Inside: []Range{{Prefix: host(target.Addr()), Port: target.Port()}}})
	good := request{number: 7, op: opDial, protocol: protocolTCP, to: target}.encodeRequest()
	change := func(at int, b ...byte) []byte { m := bytes.Clone(good); copy(m[at:], b); return m }
	for name, m := range map[string][]byte{
		"short": good[:requestSize-1], "long": append(bytes.Clone(good), 0), "huge": make([]byte, 4000), "one byte": {1},
		"another operation": change(4, 9), "no operation": change(4, 0), "a raw socket": change(5, 255), "no protocol": change(5, 0),
		"a unix socket": change(6, 1), "netlink": change(6, 16), "packets": change(6, 17), "reserved": change(7, 1), "reserved, too": change(10, 1),
		"rest behind the address": change(27, 1), "another loopback port": change(8, 0, 22), "IPv4 in IPv6": change(6, append([]byte{6, 0, 0, 80, 0, 0},
			netip.MustParseAddr("::ffff:127.0.0.1").AsSlice()...)...),
		"IPv6 loopback": change(6, append([]byte{6, 0, 0, 80, 0, 0}, netip.MustParseAddr("::1").AsSlice()...)...),
	} {
		if _, err := gateway.Write(m); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		packet, rights := make([]byte, 100), make([]byte, 100)
		if err := gateway.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		n, rn, _, _, err := gateway.ReadMsgUnix(packet, rights)
		got, ok := decodeReply(packet[:n])
		if err != nil || !ok || rn != 0 || got.status != statusInvalid && got.status != statusRefused {
			t.Errorf("%s: %+v, %d bytes of rights, %v", name, got, rn, err)
		}
	}
	conn, err := NewClient(gateway).Dial(t.Context(), "tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantEcho(t, conn)
}

// TestFlood has a gateway ask for descriptors and take none: few are under way, and a
// neighbour is served meanwhile.
func TestFlood(t *testing.T) {
	t.Parallel()
	target := serveEcho(t)
	grant := Grant{Inside: []Range{{Prefix: host(target.Addr()), Port: target.Port()}}}
	k := realKernel(t)
	gateway, s := serve(t, k, grant)
	if err := s.conn.SetWriteBuffer(1); err != nil { // as the process that makes the sockets does
		t.Fatal(err)
	}
	if err := gateway.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for r := (request{op: opDial, protocol: protocolTCP, to: target}); ; sent++ {
		r.number++
		if _, err := gateway.Write(r.encodeRequest()); err != nil {
			break // the dialer reads no more
		}
	}
	other, _ := serve(t, k, grant)
	begin := time.Now()
	conn, err := NewClient(other).Dial(t.Context(), "tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantEcho(t, conn)
	if took := time.Since(begin); took > answerLimit/2 {
		t.Errorf("the neighbour waited for %v", took)
	}
	_ = s.conn.Close()
	underWay := 0
	for rights := make([]byte, 100); ; underWay++ {
		_, rn, _, _, err := gateway.ReadMsgUnix(make([]byte, 100), rights)
		if errors.Is(err, unix.ECONNRESET) { // requests that the dialer has not read; what it has sent comes next
			_, rn, _, _, err = gateway.ReadMsgUnix(make([]byte, 100), rights)
		}
		f, _ := descriptorIn(rights[:rn])
		if err != nil || f == nil {
			break
		}
		_ = f.Close()
	}
	if underWay == 0 || underWay > 8 {
		t.Errorf("%d descriptors were under way after %d requests, want few", underWay, sent)
	}
}

// TestLostReply has a dialer die with a request that it has read. The next one, by the
// same socket, has it again.
func TestLostReply(t *testing.T) {
	t.Parallel()
	target := serveEcho(t)
	gateway, dialer := pair(t)
	c := NewClient(gateway)
	next, stop := make(chan struct{}), make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() {
		defer close(next)
		_, _ = dialer.Read(make([]byte, requestSize)) // and nothing else
	})
	ctx, cancel := context.WithCancel(t.Context())
	tasks.Go(func() {
		<-next
		go func() { <-stop; cancel() }()
		_ = NewServer(dialer, realKernel(t), Grant{Inside: []Range{{Prefix: host(target.Addr())}}}).Serve(ctx)
	})
	conn, err := c.Dial(t.Context(), "tcp", target)
	close(stop)
	tasks.Wait()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantEcho(t, conn)
}

// TestSilentDialer bounds how long a gateway waits.
func TestSilentDialer(t *testing.T) {
	t.Parallel()
	gateway, _ := pair(t)
	c := NewClient(gateway)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := c.Dial(ctx, "tcp", netip.MustParseAddrPort("8.8.8.8:53")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a connection: %v", err)
	}
	if !c.IsLocal(netip.MustParseAddr("8.8.8.8")) {
		t.Error("an unknown address is not the machine's own")
	}
	if took := time.Since(begin); took > routeLimit+5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestIsLocal asks a dialer for routes, once a second for each address.
func TestIsLocal(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddr("198.41.99.5")
	gateway, _ := serve(t, world{own: route.Local, netip.MustParseAddr("198.41.97.1"): route.Nowhere}, Grant{})
	c := NewClient(gateway)
	for range 2 {
		for addr, want := range map[string]bool{
			"198.41.99.5": true, "::ffff:198.41.99.5": true, "64:ff9b::c629:6305": true, "8.8.8.8": false, "198.41.97.1": false,
		} {
			if got := c.IsLocal(netip.MustParseAddr(addr)); got != want {
				t.Errorf("%s: %v", addr, got)
			}
		}
	}
	if len(c.routes) != 4 {
		t.Errorf("%d addresses are remembered", len(c.routes))
	}
}

// FuzzCheck compares the two walls: what is not public by the one is not by the other.
func FuzzCheck(f *testing.F) {
	for _, a := range []string{
		"8.8.8.8", "10.0.0.1", "192.0.2.1", "192.0.1.1", "198.18.0.1", "203.0.113.9", "168.63.129.16", "::1", "2001:1ff::1", "2001:200::1", "3fff:fff::1", "3fff:1000::1",
		"64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:0:1::", "fe80::1", "4000::1", "1fff::", "223.255.255.255", "100.127.255.255", "100.128.0.0",
	} {
		f.Add(netip.MustParseAddr(a).AsSlice())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		addr, ok := netip.AddrFromSlice(raw)
		if !ok || addr.Is4In6() {
			return
		}
		if got, want := isUnicast(addr) && isPublic(addr), policy.Public(addr); got != want {
			t.Errorf("%s: public %v here, %v in policy", addr, got, want)
		}
	})
}

// FuzzDecodeRequest looks for a request with two forms, or one that is more than it seems.
func FuzzDecodeRequest(f *testing.F) {
	f.Add(request{number: 1, op: opDial, protocol: protocolTCP, to: netip.MustParseAddrPort("8.8.8.8:53")}.encodeRequest())
	f.Add(request{number: 2, op: opResolve, protocol: protocolUDP, to: netip.MustParseAddrPort("[::1]:53")}.encodeRequest())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, m []byte) {
		r, ok := decodeRequest(m)
		if ok && !bytes.Equal(r.encodeRequest(), m) {
			t.Errorf("%x is also %x", m, r.encodeRequest())
		}
		if ok && r.to.Addr().Is4In6() {
			t.Errorf("%s", r.to)
		}
	})
}

// TestEveryRange compares the walls at the edges of all ranges of IPv4 of 16 bits, and of
// all of IPv6 of 16 bits with a second group that matters.
func TestEveryRange(t *testing.T) {
	t.Parallel()
	compare := func(addr netip.Addr) {
		if got, want := isUnicast(addr) && isPublic(addr), policy.Public(addr); got != want {
			t.Errorf("%s: public %v here, %v in policy", addr, got, want)
		}
	}
	for high := range 1 << 16 {
		for _, low := range []uint16{0, 1, 0x0100, 0x0200, 0x0201, 0x6300, 0x6401, 0x7100, 0x71ff, 0x8110, 0xffff} {
			var a [4]byte
			binary.BigEndian.PutUint16(a[0:], uint16(high))
			binary.BigEndian.PutUint16(a[2:], low)
			compare(netip.AddrFrom4(a))
		}
		for _, low := range []uint16{0, 1, 0x0db8, 0x01ff, 0x0200, 0x0fff, 0x1000, 0xff9b, 0xffff} {
			var a [16]byte
			binary.BigEndian.PutUint16(a[0:], uint16(high))
			binary.BigEndian.PutUint16(a[2:], low)
			compare(netip.AddrFrom16(a))
		}
	}
}

func BenchmarkDial(b *testing.B) {
	target := serveEcho(b)
	b.Run("directly", func(b *testing.B) {
		for b.Loop() {
			conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", target.String())
			if err != nil {
				b.Fatal(err)
			}
			_ = conn.Close()
		}
	})
	b.Run("by the dialer", func(b *testing.B) {
		gateway, _ := serve(b, realKernel(b), Grant{Inside: []Range{{Prefix: host(target.Addr())}}})
		c := NewClient(gateway)
		for b.Loop() {
			conn, err := c.Dial(b.Context(), "tcp", target)
			if err != nil {
				b.Fatal(err)
			}
			_ = conn.Close()
		}
	})
	b.Run("route", func(b *testing.B) {
		gateway, _ := serve(b, realKernel(b), Grant{})
		c := NewClient(gateway)
		for b.Loop() {
			c.IsLocal(target.Addr())
			clear(c.routes)
		}
	})
}
