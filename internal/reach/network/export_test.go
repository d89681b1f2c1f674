package network

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// NewAnswerer returns a function that answers DNS questions for a gateway without resolvers.
func NewAnswerer(tb testing.TB) func([]byte) []byte {
	tb.Helper()
	g := newQuiet(tb)
	return func(packet []byte) []byte { return g.dns.answerPacket(g.ctx, packet, 0) }
}

// NewDeliverer returns what takes packets from the link.
func NewDeliverer(tb testing.TB) func([]byte) {
	tb.Helper()
	return newQuiet(tb).link.deliverPacket
}

// NewSender returns what sends packets to a sandbox whose end of the link is returned,
// and how many of them wait until pump has sent them.
func NewSender(tb testing.TB) (send func([]byte) bool, waiting func() int, pump func(context.Context) error, end *os.File) {
	tb.Helper()
	ours, theirs, err := SocketPair()
	if err != nil {
		tb.Fatal(err)
	}
	g, err := New(Config{Link: ours, Machine: nowhere{}, Policy: sandpit.NetworkPolicy{Online: true}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { g.Close(); _ = theirs.Close() })
	ep := linkEndpoint{g.link.ep, g.link}
	send = func(packet []byte) bool {
		var list stack.PacketBufferList
		defer list.Reset()
		list.PushBack(stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)}))
		n, _ := ep.WritePackets(list)
		return n == 1
	}
	waiting = func() int {
		g.link.mu.Lock()
		defer g.link.mu.Unlock()
		return g.link.waiting
	}
	return send, waiting, g.link.writePackets, theirs
}

// nowhere is a machine without a network.
type nowhere struct{}

func (nowhere) Dial(context.Context, string, netip.AddrPort) (net.Conn, error) {
	return nil, syscall.ENETUNREACH
}

func (n nowhere) DialResolver(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	return n.Dial(ctx, network, addr)
}

func (nowhere) IsLocal(netip.Addr) bool { return false }

func newQuiet(tb testing.TB) *Gateway {
	tb.Helper()
	ours, theirs, err := SocketPair()
	if err != nil {
		tb.Fatal(err)
	}
	g, err := New(Config{Link: ours, Machine: nowhere{}, Policy: sandpit.NetworkPolicy{Online: true, Deny: []string{"0.0.0.0/0", "::/0"}}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { g.Close(); _ = theirs.Close() })
	return g
}

// AnswerAddresses returns the addresses in an answer of a resolver.
func AnswerAddresses(packet []byte, id uint16, q dnsmessage.Question) []netip.Addr {
	_, records, ok := parseAnswer(packet, id, q)
	if !ok {
		return nil
	}
	records.followAliases("a.example")
	var list []netip.Addr
	for _, r := range records.answers {
		if a, ok := addressOf(r); ok {
			list = append(list, a)
		}
	}
	return list
}

// Names gives tests the memory of answers.
type Names struct{ n *names }

func NewNames() Names                                            { return Names{newNames()} }
func (n Names) Learn(name string, a netip.Addr, d time.Duration) { n.n.learnName(name, a, d) }
func (n Names) Of(a netip.Addr) []string                         { return n.n.namesOf(a) }

// Count returns how many are remembered, as counted and as there are.
func (n Names) Count() (counted, there int) {
	for _, e := range n.n.known {
		there += len(e)
	}
	return n.n.count, there
}

// MaxAnswers and MaxDecisions are the bounds of what is remembered.
const (
	MaxAnswers   = maxAnswers
	MaxDecisions = maxDecisions
)

// Journal gives tests the memory of decisions.
type Journal struct{ *decisionLog }

func NewJournal() Journal                              { return Journal{newDecisionLog(time.Now())} }
func (j Journal) Add(d sandpit.NetworkDecision)        { j.addDecision(d) }
func (j Journal) Recall(old []sandpit.NetworkDecision) { j.restoreDecisions(old) }
func (j Journal) After(seq int64, limit int) []sandpit.NetworkDecision {
	return j.decisionsAfter(seq, limit)
}

// Streams gives tests what carries streams.
type Streams struct{ s streams }

func (s *Streams) Copy(to io.Writer, from io.Reader) error {
	return s.s.copyStream(to, from, func() {})
}
func (s *Streams) Used() int { return int(s.s.used.Load()) }

// Wide is how many connections have wide buffers, Large how many large buffers are in use.
func (g *Gateway) Wide() int  { return len(g.wideSlots) }
func (g *Gateway) Large() int { return int(g.streams.used.Load()) }

// Sizes and bounds of what streams are carried in, and how many packets wait for a link.
const (
	LinkQueue   = linkQueue
	LargeBuffer = largeBuffer
	LargeCount  = largeCount
	WideCount   = wideCount
)

// NameIn returns the name in what a client sends first, and how much was read.
func NameIn(ctx context.Context, from io.Reader, port uint16) (string, []byte) {
	client, server := net.Pipe()
	go func() {
		_, _ = io.Copy(client, from)
		_ = client.Close()
	}()
	name, first := readName(ctx, server, port, policy.CheckName)
	_ = server.Close()
	read, _ := io.ReadAll(first)
	return name, read
}

// Leaf is a certificate for a name.
func (a *Authority) Leaf(name string) (*tls.Certificate, error) { return a.leafFor(name) }
