package network

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// echoTimeout is how long a reply to a ping may take.
const echoTimeout = 10 * time.Second

// pinger forwards pings through the kind of socket that is available without privileges, where
// the machine allows it (net.ipv4.ping_group_range). The stack must not answer pings, because
// it would answer for every address.
type pinger struct {
	g    *Gateway
	room chan struct{}
}

func newPinger(g *Gateway) *pinger { return &pinger{g: g, room: make(chan struct{}, maxEchoes)} }

// echo is one ping.
type echo struct {
	from, to netip.Addr
	message  []byte // ICMP header and data
}

// takePing handles pings to addresses other than the gateway's.
func (p *pinger) takePing(packet []byte) bool {
	e, ok := parseEcho(packet)
	if !ok || isGateway(e.to) {
		return false
	}
	if !mayPass(p.g.meter.send, len(packet)) {
		return true // as if it was lost
	}
	select {
	case p.room <- struct{}{}:
	default:
		return true // as if it was lost
	}
	started := false
	p.g.goDo(func() {
		defer func() { <-p.room }()
		p.forwardPing(e)
	}, &started)
	if !started {
		<-p.room
	}
	return true
}

// parseEcho recognizes and parses a complete echo request.
func parseEcho(packet []byte) (echo, bool) {
	switch header.IPVersion(packet) {
	case header.IPv4Version:
		h := header.IPv4(packet)
		if len(packet) < header.IPv4MinimumSize || !h.IsValid(len(packet)) || h.TransportProtocol() != header.ICMPv4ProtocolNumber ||
			h.FragmentOffset() != 0 || h.More() {
			return echo{}, false
		}
		message := h.Payload()
		if len(message) < header.ICMPv4MinimumSize || header.ICMPv4(message).Type() != header.ICMPv4Echo {
			return echo{}, false
		}
		return newEcho(h.SourceAddress(), h.DestinationAddress(), message), true
	case header.IPv6Version:
		h := header.IPv6(packet)
		if len(packet) < header.IPv6MinimumSize || !h.IsValid(len(packet)) || h.NextHeader() != uint8(header.ICMPv6ProtocolNumber) {
			return echo{}, false
		}
		message := h.Payload()
		if len(message) < header.ICMPv6EchoMinimumSize || header.ICMPv6(message).Type() != header.ICMPv6EchoRequest {
			return echo{}, false
		}
		return newEcho(h.SourceAddress(), h.DestinationAddress(), message), true
	}
	return echo{}, false
}

func newEcho(from, to tcpip.Address, message []byte) echo {
	return echo{toAddr(from), toAddr(to), append([]byte(nil), message...)}
}

// forwardPing forwards one ping and its reply.
func (p *pinger) forwardPing(e echo) {
	f, _ := p.g.decideFlow("icmp", netip.AddrPortFrom(e.to.Unmap(), 0))
	if f == nil {
		return
	}
	defer p.g.forgetFlow(f)
	answer, err := p.exchangePing(f, e)
	if err != nil {
		return // a failed ping gets no reply
	}
	if mayPass(p.g.meter.receive, len(answer)) {
		_ = p.g.link.sendPacket(e.replyPacket(answer)) // fails only when the link ends
	}
}

// exchangePing sends the ping and waits for its reply. The machine chooses another identifier
// for the ping and delivers only replies with that.
func (p *pinger) exchangePing(f *flow, e echo) ([]byte, error) {
	ctx, cancel := context.WithTimeout(p.g.ctx, echoTimeout)
	defer cancel()
	conn, err := p.g.dialOutside(ctx, f)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(echoTimeout)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(e.message); err != nil {
		return nil, err
	}
	answer := make([]byte, 1<<16)
	n, err := conn.Read(answer)
	if err != nil {
		return nil, err
	}
	if n < header.ICMPv4MinimumSize {
		return nil, errors.New("short reply")
	}
	return answer[:n], nil
}

// replyPacket returns the reply to e for the sandbox, with the identifier of the sandbox's
// request.
func (e echo) replyPacket(message []byte) []byte {
	copy(message[4:6], e.message[4:6])
	binary.BigEndian.PutUint16(message[2:4], 0)
	src, dst := tcpip.AddrFromSlice(e.to.AsSlice()), tcpip.AddrFromSlice(e.from.AsSlice())
	const hops = 64
	if e.to.Is4() {
		header.ICMPv4(message).SetChecksum(header.ICMPv4Checksum(message, 0))
		packet := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(message))
		h := header.IPv4(packet)
		h.Encode(&header.IPv4Fields{
			TotalLength: uint16(min(cap(packet), 1<<16-1)), TTL: hops, Protocol: uint8(header.ICMPv4ProtocolNumber),
			SrcAddr: src, DstAddr: dst,
		})
		h.SetChecksum(^h.CalculateChecksum())
		return append(packet, message...)
	}
	header.ICMPv6(message).SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: message, Src: src, Dst: dst}))
	packet := make([]byte, header.IPv6MinimumSize, header.IPv6MinimumSize+len(message))
	header.IPv6(packet).Encode(&header.IPv6Fields{
		PayloadLength: uint16(min(len(message), 1<<16-1)), TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: hops,
		SrcAddr: src, DstAddr: dst,
	})
	return append(packet, message...)
}
