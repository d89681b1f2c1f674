package dialer

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Messages have a fixed size. A request has
//
//	0   number, which the reply repeats
//	4   operation
//	5   protocol
//	6   4 or 6
//	7   0
//	8   port
//	10  0, twice
//	12  address; of an IPv4 address the rest is 0
//
// and a reply its number, a status, a Kind of route, and the number of an error. Numbers
// are big-endian. A reply with the status passed has a descriptor.
const (
	requestSize = 28
	replySize   = 8
)

type operation byte

const (
	opDial    operation = 1 // return a descriptor that connects to a peer
	opResolve operation = 2 // return one that connects to a resolver
	opRoute   operation = 3 // return where packets to an address go
)

type protocol byte

const (
	protocolTCP  protocol = 1
	protocolUDP  protocol = 2
	protocolPing protocol = 3
)

type status byte

const (
	statusPassed  status = 1
	statusAnswer  status = 2
	statusFailed  status = 3 // with an error number
	statusRefused status = 4 // a non-public address that was not granted
	statusOwn     status = 5 // an address of the machine that was not granted
	statusInvalid status = 6 // not a request
)

// request is a request of a gateway.
type request struct {
	number   uint32
	op       operation
	protocol protocol
	to       netip.AddrPort
}

type reply struct {
	number uint32
	status status
	kind   byte
	errno  unix.Errno
}

func (r request) encodeRequest() []byte {
	m := make([]byte, requestSize)
	binary.BigEndian.PutUint32(m[0:], r.number)
	m[4], m[5], m[6] = byte(r.op), byte(r.protocol), 4
	if r.to.Addr().Is6() {
		m[6] = 6
	}
	binary.BigEndian.PutUint16(m[8:], r.to.Port())
	copy(m[12:], r.to.Addr().AsSlice())
	return m
}

// decodeRequest decodes a request. It returns false for an invalid message. It accepts only
// one form of each address.
func decodeRequest(m []byte) (request, bool) {
	if len(m) != requestSize {
		return request{}, false
	}
	r := request{number: binary.BigEndian.Uint32(m), op: operation(m[4]), protocol: protocol(m[5])}
	if m[7] != 0 || m[10] != 0 || m[11] != 0 {
		return r, false
	}
	port := binary.BigEndian.Uint16(m[8:])
	switch m[6] {
	case 4:
		if [12]byte(m[16:]) != [12]byte{} {
			return r, false
		}
		r.to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m[12:])), port)
	case 6:
		addr := netip.AddrFrom16([16]byte(m[12:]))
		if addr.Is4In6() {
			return r, false
		}
		r.to = netip.AddrPortFrom(addr, port)
	default:
		return r, false
	}
	return r, r.op >= opDial && r.op <= opRoute && r.protocol >= protocolTCP && r.protocol <= protocolPing
}

func (r reply) encodeReply() []byte {
	m := make([]byte, replySize)
	binary.BigEndian.PutUint32(m[0:], r.number)
	m[4], m[5] = byte(r.status), r.kind
	binary.BigEndian.PutUint16(m[6:], uint16(r.errno)) //nolint:gosec // numbers of errors are small
	return m
}

func decodeReply(m []byte) (reply, bool) {
	if len(m) != replySize {
		return reply{}, false
	}
	return reply{
		number: binary.BigEndian.Uint32(m), status: status(m[4]), kind: m[5], errno: unix.Errno(binary.BigEndian.Uint16(m[6:])),
	}, true
}
