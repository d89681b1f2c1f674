package network

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// Config is the configuration of a Gateway.
type Config struct {
	// Link is the gateway's end of a SocketPair. The gateway owns it.
	Link *os.File
	// Policy is the initial policy.
	Policy sandpit.NetworkPolicy
	// Resolvers answer DNS questions. None: every question fails.
	Resolvers []netip.AddrPort
	// Machine is the network through which the gateway dials.
	Machine Machine
	// Connections bounds the concurrent connections, in addition to the policy. Default:
	// 4096.
	Connections int
	// Note, if set, is the first line of the log.
	Note string
	// Roots are the trusted certificate authorities for hosts with headers, as PEM. None: no
	// such host is trusted.
	Roots []byte
	// Secrets are the secrets for headers, by name. Default: none.
	Secrets map[string]string
	// Authority is the authority that the sandbox trusts. Default: none; see SetAuthority.
	Authority *Authority
}

// Machine is the network of the machine. It is a second check, and refuses non-public
// addresses that the sandbox was not granted, independent of the gateway's decision.
type Machine interface {
	// Dial opens a connection to exactly the address; network is "tcp", "udp" or "icmp",
	// which is for pings and has no port. PermissionDenied: connections to the address are
	// not permitted.
	Dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// DialResolver is Dial to one of Config.Resolvers.
	DialResolver(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// IsLocal reports whether the address is an address of the machine.
	IsLocal(addr netip.Addr) bool
}

// Gateway connects one sandbox to the machine's network. Its methods may be called
// concurrently.
type Gateway struct {
	link      *link
	stack     *stack.Stack
	machine   Machine
	dns       *resolver
	names     *names
	log       *decisionLog
	echoes    *pinger
	udpSem    chan struct{}
	heldSYNs  chan struct{} // one element for each waiting SYN
	maxOpen   int           // bound of the connections
	meter     *meter
	streams   streams
	wideSlots chan struct{} // one element for each connection with wide buffers

	inspector *inspector
	rootsPEM  []byte // nil after the first use
	rootsOnce sync.Once
	rootPool  *x509.CertPool

	ctx    context.Context //nolint:containedctx // ends with Run; created before Run is called
	cancel context.CancelFunc
	tasks  sync.WaitGroup // goroutines of connections

	mu     sync.Mutex
	rules  *policy.Rules
	source sandpit.NetworkPolicy
	flows  map[*flow]struct{}
	open   int // number of connections, those being opened included

	secrets   map[string]string
	authority *Authority
}

const nic tcpip.NICID = 1

// New returns a Gateway that does nothing until Run. Invalid: the policy cannot be parsed.
func New(cfg Config) (*Gateway, error) {
	rules, err := policy.Parse(cfg.Policy)
	if err != nil {
		return nil, err
	}
	if err := CheckSecrets(cfg.Secrets); err != nil {
		return nil, err
	}
	g := &Gateway{
		meter: newMeter(rules.Limits()), rootsPEM: cfg.Roots, secrets: cfg.Secrets, authority: cfg.Authority,
		machine: cfg.Machine, names: newNames(), log: newDecisionLog(time.Now()),
		udpSem: make(chan struct{}, maxDatagrams), heldSYNs: make(chan struct{}, maxHeld), wideSlots: make(chan struct{}, wideCount), maxOpen: cmp.Or(cfg.Connections, maxConnections),
		rules: rules, source: cfg.Policy, flows: make(map[*flow]struct{}),
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.dns = newResolver(g, cfg.Resolvers)
	g.echoes = newPinger(g)
	g.inspector = newInspector(g)
	take := func(packet []byte) bool { return g.echoes.takePing(packet) || g.holdSYN(packet) }
	if g.link, err = newLink(cfg.Link, g.meter, take); err != nil {
		g.cancel()
		return nil, err
	}
	if cfg.Note != "" {
		g.log.addDecision(sandpit.NetworkDecision{Protocol: protocolGateway, Reason: cfg.Note})
	}
	if err := g.newStack(); err != nil {
		g.cancel()
		return nil, err
	}
	return g, nil
}

// newStack creates the network stack, which accepts connections to every address.
func (g *Gateway) newStack() error {
	g.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	if err := tuneStack(g.stack); err != nil {
		return err
	}
	steps := []tcpip.Error{
		g.stack.CreateNIC(nic, linkEndpoint{g.link.ep, g.link}),
		g.stack.SetPromiscuousMode(nic, true),
		g.stack.SetSpoofing(nic, true),
	}
	a := LinkAddresses()
	for proto, p := range map[tcpip.NetworkProtocolNumber]netip.Prefix{
		ipv4.ProtocolNumber: a.Gateway4, ipv6.ProtocolNumber: a.Gateway6,
	} {
		steps = append(steps, g.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{
			Protocol: proto,
			AddressWithPrefix: tcpip.AddressWithPrefix{
				Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits(),
			},
		}, stack.AddressProperties{}))
	}
	for _, err := range steps {
		if err != nil {
			return fmt.Errorf("create the gateway's network stack: %s", err)
		}
	}
	g.stack.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	g.stack.SetTransportProtocolHandler(tcp.ProtocolNumber,
		tcp.NewForwarder(g.stack, receiveWindow, maxConnections, g.acceptTCP).HandlePacket)
	g.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(g.stack, g.acceptUDP).HandlePacket)
	return nil
}

// The buffers of one connection, in bytes. Unacknowledged bytes must fit into the link's
// buffer (see link.windowSize), so that few packets are lost. Up to wideCount busy connections
// have wide buffers.
const (
	receiveWindow = 256 << 10
	sendBuffer    = 256 << 10
	wideBuffer    = 1 << 20
	wideCount     = 64 // connections
)

func tuneStack(s *stack.Stack) error {
	sack := tcpip.TCPSACKEnabled(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: receiveWindow, Max: wideBuffer}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: sendBuffer, Max: wideBuffer}
	// The window scale is for wide buffers; sandboxConn sets the current size.
	scale := tcpip.TCPModerateReceiveBufferOption(true)
	// On this link no packet is late, so TIME_WAIT is not needed. During it, the stack would
	// drop the SYN of a new connection between the same ports.
	rest := tcpip.TCPTimeWaitTimeoutOption(0)
	linger := tcpip.TCPLingerTimeoutOption(10 * time.Second)
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &receive, &send, &scale, &rest, &linger} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("configure the gateway's network stack: %s", err)
		}
	}
	return nil
}

// Run forwards packets until ctx or the link ends. Then it closes all connections, and returns
// when all its goroutines have ended. It can be called once.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.cancel()
	stop := context.AfterFunc(ctx, g.cancel)
	defer stop()
	stopLink := context.AfterFunc(g.ctx, g.link.closeLink)
	defer stopLink()

	go g.inspector.serveAll()
	failed := make(chan error, 2)
	go func() { failed <- g.link.readPackets() }()
	go func() { failed <- g.link.writePackets(g.ctx) }()
	err := <-failed
	g.mu.Lock() // see goDo
	g.cancel()
	g.mu.Unlock()
	err = errors.Join(err, <-failed)
	g.closeFlows(func(*flow) bool { return true })
	g.tasks.Wait()
	<-g.inspector.ended
	g.stack.Destroy()
	return err
}

// Close releases a Gateway whose Run was never called.
func (g *Gateway) Close() {
	g.cancel()
	g.link.closeLink()
	g.stack.Destroy()
}

// goDo runs f in a goroutine and sets started; Run waits for the goroutine. It does nothing
// while Run ends.
func (g *Gateway) goDo(f func(), started *bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return
	}
	*started = true
	g.tasks.Go(f)
}

// SetPolicy replaces the policy. It closes the connections that the new policy forbids.
// Invalid: the policy cannot be parsed.
func (g *Gateway) SetPolicy(p sandpit.NetworkPolicy) error {
	rules, err := policy.Parse(p)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.rules, g.source = rules, p
	g.mu.Unlock()
	g.meter.setLimits(rules.Limits())
	g.closeFlows(func(f *flow) bool { return !f.stillAllowed(rules) })
	return nil
}

// Policy returns the current policy.
func (g *Gateway) Policy() sandpit.NetworkPolicy {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.source
}

func (g *Gateway) currentRules() *policy.Rules {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rules
}

// Stats returns the traffic since the creation of the gateway.
func (g *Gateway) Stats() sandpit.NetworkStats {
	s := sandpit.NetworkStats{Received: g.meter.received.Load(), Sent: g.meter.sent.Load()}
	s.Allowed, s.Denied = g.log.countDecisions()
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Connections = g.open
	return s
}

// Decisions returns up to limit logged decisions with higher numbers than after, oldest
// first.
func (g *Gateway) Decisions(after int64, limit int) []sandpit.NetworkDecision {
	return g.log.decisionsAfter(after, limit)
}

// Recall adds decisions of an earlier gateway of the sandbox to the log. Newer decisions have
// priority if there are too many.
func (g *Gateway) Recall(old []sandpit.NetworkDecision) { g.log.restoreDecisions(old) }

// toAddr returns the address in the form used outside of the stack.
func toAddr(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr
}

// isGateway reports whether the address is an address of the gateway.
func isGateway(a netip.Addr) bool {
	l := LinkAddresses()
	return a == l.Gateway4.Addr() || a == l.Gateway6.Addr()
}
