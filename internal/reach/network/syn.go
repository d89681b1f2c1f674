package network

import (
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// The bounds for held SYNs.
const (
	maxHeld  = 64
	heldMost = 2 * time.Second
)

// holdSYN holds back the SYN of a connection while the stack still has an earlier connection
// between the same ports: the stack would reset it, because its forwarder accepts only new
// connections.
func (g *Gateway) holdSYN(packet []byte) bool {
	proto, id, ok := parseSYN(packet)
	if !ok || !g.knowsEndpoint(proto, id) {
		return false
	}
	select {
	case g.heldSYNs <- struct{}{}:
	default:
		return false
	}
	packet = slices.Clone(packet)
	started := false
	g.goDo(func() {
		defer func() { <-g.heldSYNs }()
		for wait := time.Millisecond; wait < heldMost && g.ctx.Err() == nil && g.knowsEndpoint(proto, id); wait *= 2 {
			time.Sleep(wait)
		}
		if g.ctx.Err() == nil {
			g.link.injectPacket(proto, buffer.MakeWithData(packet))
		}
	}, &started)
	if !started {
		<-g.heldSYNs
	}
	return started
}

// knowsEndpoint reports whether the stack has a connection, even an ended one.
func (g *Gateway) knowsEndpoint(proto tcpip.NetworkProtocolNumber, id stack.TransportEndpointID) bool {
	return g.stack.FindTransportEndpoint(proto, tcp.ProtocolNumber, id, nic) != nil
}

// parseSYN recognizes and parses the first packet of a TCP connection.
func parseSYN(packet []byte) (tcpip.NetworkProtocolNumber, stack.TransportEndpointID, bool) {
	var proto tcpip.NetworkProtocolNumber
	var id stack.TransportEndpointID
	var segment header.TCP
	switch header.IPVersion(packet) {
	case header.IPv4Version:
		h := header.IPv4(packet)
		if !h.IsValid(len(packet)) || h.TransportProtocol() != header.TCPProtocolNumber || h.FragmentOffset() != 0 || h.More() {
			return 0, id, false
		}
		proto, id.LocalAddress, id.RemoteAddress, segment = ipv4.ProtocolNumber, h.DestinationAddress(), h.SourceAddress(), h.Payload()
	case header.IPv6Version:
		h := header.IPv6(packet)
		if !h.IsValid(len(packet)) || h.NextHeader() != uint8(header.TCPProtocolNumber) {
			return 0, id, false
		}
		proto, id.LocalAddress, id.RemoteAddress, segment = ipv6.ProtocolNumber, h.DestinationAddress(), h.SourceAddress(), h.Payload()
	}
	if len(segment) < header.TCPMinimumSize || segment.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return 0, id, false
	}
	id.LocalPort, id.RemotePort = segment.DestinationPort(), segment.SourcePort()
	return proto, id, true
}
