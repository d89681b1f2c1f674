package network_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

func TestMain(m *testing.M) {
	// The sandbox's side of a link, when it reads many packets at a time, never stops
	// the goroutines that it made to read one at a time.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("gvisor.dev/gvisor/pkg/tcpip/link/fdbased.(*processor).start"))
}

// patience is how long anything may take on a busy machine.
const patience = 2 * time.Minute

// internet is what gateways in tests dial by: servers on this machine under public
// addresses.
type internet struct {
	mu     sync.Mutex
	routes map[string]string // by kind and address
	local  map[netip.Addr]bool
	walled map[netip.Addr]bool // what Dial refuses
}

func newInternet() *internet {
	return &internet{routes: make(map[string]string), local: make(map[netip.Addr]bool), walled: make(map[netip.Addr]bool)}
}

func (n *internet) Dial(ctx context.Context, kind string, addr netip.AddrPort) (net.Conn, error) {
	n.mu.Lock()
	real, ok := n.routes[kind+addr.String()]
	walled := n.walled[addr.Addr()]
	n.mu.Unlock()
	if walled {
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "not granted")
	}
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: kind, Err: syscall.ECONNREFUSED}
	}
	return (&net.Dialer{}).DialContext(ctx, kind, real)
}

// DialResolver reaches the tests' own name servers.
func (n *internet) DialResolver(ctx context.Context, kind string, addr netip.AddrPort) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, kind, addr.String())
}

func (n *internet) IsLocal(addr netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.local[addr]
}

func (n *internet) route(kind, addr, real string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.routes[kind+netip.MustParseAddrPort(addr).String()] = real
}

// serve has a TCP server on each of the addresses.
func (n *internet) serve(tb testing.TB, handle func(net.Conn), addrs ...string) {
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
			stop := context.AfterFunc(tb.Context(), func() { _ = conn.Close() })
			tasks.Go(func() { defer stop(); defer conn.Close(); handle(conn) })
		}
	})
	tb.Cleanup(func() { _ = ln.Close(); tasks.Wait() })
	for _, a := range addrs {
		n.route("tcp", a, ln.Addr().String())
	}
}

// echo sends back what comes, and its end.
func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// servePackets answers each datagram with itself.
func (n *internet) servePackets(tb testing.TB, addrs ...string) {
	tb.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(tb.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			k, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buf[:k], from)
		}
	})
	tb.Cleanup(func() { _ = conn.Close(); tasks.Wait() })
	for _, a := range addrs {
		n.route("udp", a, conn.LocalAddr().String())
	}
}

// box is a sandbox's side of a link.
type box struct {
	*network.Gateway
	tb    testing.TB
	net   *internet
	stack *stack.Stack
}

// newBox returns a sandbox whose gateway runs until the end of the test.
func newBox(tb testing.TB, n *internet, cfg network.Config) *box {
	tb.Helper()
	gatewayEnd, boxEnd, err := network.SocketPair()
	if err != nil {
		tb.Fatal(err)
	}
	cfg.Link, cfg.Machine, cfg.Policy.Online = gatewayEnd, n, true
	g, err := network.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	s := newBoxStack(tb, boxEnd)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	ran := make(chan error, 1)
	go func() { ran <- g.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			tb.Errorf("run: %v", err)
		}
		s.RemoveNIC(1)
		s.Destroy()
		_ = boxEnd.Close()
	})
	return &box{g, tb, n, s}
}

// newBoxStack makes the network stack that a sandbox has.
func newBoxStack(tb testing.TB, end *os.File) *stack.Stack {
	tb.Helper()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	ep, err := fdbased.New(&fdbased.Options{
		FDs: []int{int(end.Fd())}, MTU: network.MTU, RXChecksumOffload: true, TXChecksumOffload: true,
		PacketDispatchMode: fdbased.RecvMMsg,
	})
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.CreateNIC(1, ep); err != nil {
		tb.Fatal(err)
	}
	a := network.LinkAddresses()
	for proto, p := range map[tcpip.NetworkProtocolNumber]netip.Prefix{ipv4.ProtocolNumber: a.Box4, ipv6.ProtocolNumber: a.Box6} {
		if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: tcpip.AddressWithPrefix{
			Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits(),
		}}, stack.AddressProperties{}); err != nil {
			tb.Fatal(err)
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}, {Destination: header.IPv6EmptySubnet, NIC: 1}})
	return s
}

func full(addr string) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	a := netip.MustParseAddrPort(addr)
	proto := ipv4.ProtocolNumber
	if !a.Addr().Is4() {
		proto = ipv6.ProtocolNumber
	}
	return tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(a.Addr().AsSlice()), Port: a.Port()}, proto
}

// dial connects by TCP; the connection is closed at the end of the test.
func (b *box) dial(addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(b.tb.Context(), patience)
	defer cancel()
	to, proto := full(addr)
	conn, err := gonet.DialContextTCP(ctx, b.stack, to, proto)
	if err != nil {
		return nil, err
	}
	b.tb.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn, nil
}

func (b *box) dialPackets(addr string) net.Conn {
	b.tb.Helper()
	to, proto := full(addr)
	conn, err := gonet.DialUDP(b.stack, nil, &to, proto)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// reaches reports whether an echo server answers by TCP. What it does not reach
// must be refused, not silent.
func (b *box) reaches(addr string) bool {
	b.tb.Helper()
	conn, err := b.dial(addr)
	if err != nil {
		if !strings.Contains(err.Error(), "refused") {
			b.tb.Errorf("connect to %s: %v, want it refused", addr, err)
		}
		return false
	}
	defer conn.Close()
	return answers(b.tb, conn)
}

// answers reports whether the other side sends back what it gets.
func answers(tb testing.TB, conn net.Conn) bool {
	tb.Helper()
	text := rand.Text()
	if _, err := io.WriteString(conn, text); err != nil {
		return false
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			tb.Error("neither an answer nor an end")
		}
		return false
	}
	return string(got) == text
}

// last returns the newest decision.
func (b *box) last() sandpit.NetworkDecision {
	b.tb.Helper()
	list := b.Decisions(0, 10000)
	if len(list) == 0 {
		b.tb.Fatal("nothing was decided")
	}
	return list[len(list)-1]
}

// nameServer is a resolver for the gateway to ask.
type nameServer struct {
	addr netip.AddrPort

	mu      sync.Mutex
	records map[string][]dnsmessage.Resource // by "name type"
	asked   map[string]int
}

func newNameServer(tb testing.TB) *nameServer {
	tb.Helper()
	s := &nameServer{records: make(map[string][]dnsmessage.Resource), asked: make(map[string]int)}
	var packets net.PacketConn
	var ln net.Listener
	for range 50 { // until a port is free for both
		var err error
		if packets, err = (&net.ListenConfig{}).ListenPacket(tb.Context(), "udp", "127.0.0.1:0"); err != nil {
			tb.Fatal(err)
		}
		if ln, err = (&net.ListenConfig{}).Listen(tb.Context(), "tcp", packets.LocalAddr().String()); err == nil {
			break
		}
		_ = packets.Close()
	}
	if ln == nil {
		tb.Fatal("no port is free for both UDP and TCP")
	}
	s.addr = netip.MustParseAddrPort(packets.LocalAddr().String())
	var tasks sync.WaitGroup
	tasks.Go(func() { s.servePackets(packets) })
	tasks.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() { defer conn.Close(); s.serveStream(conn) })
		}
	})
	tb.Cleanup(func() { _ = packets.Close(); _ = ln.Close(); tasks.Wait() })
	return s
}

func (s *nameServer) servePackets(conn net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := s.answer(buf[:n], 1232); answer != nil {
			_, _ = conn.WriteTo(answer, from)
		}
	}
}

func (s *nameServer) serveStream(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(patience))
	question, err := readFrame(conn)
	if err != nil {
		return
	}
	_ = writeFrame(conn, s.answer(question, 1<<16-1))
}

func (s *nameServer) answer(packet []byte, size int) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(packet); err != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	key := fmt.Sprintf("%s %s", strings.ToLower(q.Name.String()), q.Type)
	s.mu.Lock()
	defer s.mu.Unlock() // packing writes into the records
	s.asked[key]++
	answers, ok := s.records[key]
	r := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true},
		Questions: m.Questions, Answers: answers,
	}
	if !ok {
		r.RCode = dnsmessage.RCodeNameError
	}
	data, err := r.Pack()
	if err == nil && len(data) > size {
		r.Answers, r.Truncated = nil, true
		data, err = r.Pack()
	}
	if err != nil {
		return nil
	}
	return data
}

// set replaces the answer to questions about a name and the type of its first
// record.
func (s *nameServer) set(name string, records ...dnsmessage.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := dnsmessage.TypeA
	for _, r := range records {
		if r.Header.Type != dnsmessage.TypeCNAME {
			kind = r.Header.Type
		}
	}
	s.records[fmt.Sprintf("%s %s", name+".", kind)] = records
}

func (s *nameServer) timesAsked(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[name+". "+dnsmessage.TypeA.String()]
}

// address makes an A or AAAA record.
func address(name, addr string, ttl uint32) dnsmessage.Resource {
	a := netip.MustParseAddr(addr)
	h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name + "."), Class: dnsmessage.ClassINET, TTL: ttl}
	if a.Is4() {
		h.Type = dnsmessage.TypeA
		return dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}}
	}
	h.Type = dnsmessage.TypeAAAA
	return dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}}
}

func alias(name, to string) dnsmessage.Resource {
	return dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeCNAME, Class: dnsmessage.ClassINET, TTL: 60},
		Body:   &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(to + ".")},
	}
}

func readFrame(conn io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	data := make([]byte, int(size[0])<<8|int(size[1]))
	_, err := io.ReadFull(conn, data)
	return data, err
}

func writeFrame(conn io.Writer, data []byte) error {
	_, err := conn.Write(append([]byte{byte(len(data) >> 8), byte(len(data))}, data...))
	return err
}

// ask asks the gateway; kind "udp" asks again by "tcp" if the answer was cut.
func (b *box) ask(kind, name string, typ dnsmessage.Type) dnsmessage.Message {
	b.tb.Helper()
	question := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}},
	}
	packet, err := question.Pack()
	if err != nil {
		b.tb.Fatal(err)
	}
	var answer dnsmessage.Message
	if err := answer.Unpack(b.askPacket(kind, packet)); err != nil {
		b.tb.Fatalf("ask for %s: %v", name, err)
	}
	if answer.ID != 4711 || !answer.Response || len(answer.Questions) != 1 {
		b.tb.Fatalf("ask for %s: not its answer: %+v", name, answer)
	}
	return answer
}

func (b *box) askPacket(kind string, packet []byte) []byte {
	b.tb.Helper()
	if kind == "tcp" {
		conn, err := b.dial("10.0.2.2:53")
		if err != nil {
			b.tb.Fatal(err)
		}
		defer conn.Close()
		if err := writeFrame(conn, packet); err != nil {
			b.tb.Fatal(err)
		}
		answer, err := readFrame(conn)
		if err != nil {
			b.tb.Fatal(err)
		}
		return answer
	}
	conn := b.dialPackets("10.0.2.2:53")
	defer conn.Close()
	if _, err := conn.Write(packet); err != nil {
		b.tb.Fatal(err)
	}
	answer := make([]byte, 1<<16)
	n, err := conn.Read(answer)
	if err != nil {
		b.tb.Fatal(err)
	}
	return answer[:n]
}

// resolve returns the addresses of a name.
func (b *box) resolve(name string) []string {
	b.tb.Helper()
	var list []string
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
		for _, a := range b.ask("udp", name, typ).Answers {
			switch body := a.Body.(type) {
			case *dnsmessage.AResource:
				list = append(list, netip.AddrFrom4(body.A).String())
			case *dnsmessage.AAAAResource:
				list = append(list, netip.AddrFrom16(body.AAAA).String())
			}
		}
	}
	return list
}

func resolvers(s *nameServer) []netip.AddrPort { return []netip.AddrPort{s.addr} }

func netipAddr(s string) netip.Addr { return netip.MustParseAddr(s) }
