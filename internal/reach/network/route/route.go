// Package route asks the kernel of this machine where it would send a packet. The kernel
// delivers to the machine itself not only the addresses of interfaces, but also ranges with a
// route of type local (AnyIP), subnet and loopback broadcasts, and destinations of routing
// rules for a user, protocol or port. No list of interfaces has those.
package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Kind is where packets to a destination go.
type Kind int

// The kinds of destinations.
const (
	// Remote is another machine.
	Remote Kind = iota
	// Local is this machine, or all machines of a network.
	Local
	// Nowhere has no route.
	Nowhere
)

// Destination is the destination of a packet.
type Destination struct {
	Addr netip.Addr
	// Protocol is a number such as unix.IPPROTO_TCP, and Port its port. Zero: any.
	Protocol int
	Port     uint16
}

// Kernel queries routes through a netlink socket, in the network namespace in which it was
// opened and for the calling user. Its methods may be called concurrently.
type Kernel struct {
	mu  sync.Mutex
	fd  int
	seq uint32
}

// Open returns a Kernel. The caller must close it.
func Open() (*Kernel, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("ask the kernel for routes: %w", err)
	}
	return &Kernel{fd: fd}, nil
}

// Close closes the socket.
func (k *Kernel) Close() error { return unix.Close(k.fd) }

// IsLocal reports whether packets to an address are delivered to this machine, or to all
// machines of a network. It returns true if the kernel does not answer.
func (k *Kernel) IsLocal(addr netip.Addr) bool {
	kind, err := k.Lookup(Destination{Addr: addr})
	return err != nil || kind == Local
}

// IsLocal is Kernel.IsLocal for a single query.
func IsLocal(addr netip.Addr) bool {
	k, err := Open()
	if err != nil {
		return true
	}
	defer k.Close()
	return k.IsLocal(addr)
}

// IsOwnConnection reports whether both ends of a connection have the same address. Then the
// connection leads to this machine, whatever an earlier route lookup returned.
func IsOwnConnection(conn net.Conn) bool {
	from, fromErr := netip.ParseAddrPort(conn.LocalAddr().String())
	to, toErr := netip.ParseAddrPort(conn.RemoteAddr().String())
	return fromErr == nil && toErr == nil && from.Addr().Unmap() == to.Addr().Unmap()
}

// Lookup returns where packets to a destination go. The kernel answers at once.
func (k *Kernel) Lookup(d Destination) (Kind, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seq++
	request, err := encodeQuestion(d, k.seq)
	if err != nil {
		return Local, err
	}
	if err := unix.Sendto(k.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return Local, fmt.Errorf("ask the kernel for a route: %w", err)
	}
	var answer [4096]byte // only the beginning is parsed
	for {
		n, from, err := unix.Recvfrom(k.fd, answer[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Local, fmt.Errorf("ask the kernel for a route: %w", err)
		}
		kernel, ok := from.(*unix.SockaddrNetlink)
		if !ok || kernel.Pid != 0 {
			continue // another process has sent it
		}
		if kind, mine, err := decodeAnswer(answer[:n], k.seq); mine {
			return kind, err
		}
	}
}

// Sizes of parts of a message, in bytes.
const (
	attributeHeader = 4
	routeEnd        = unix.SizeofNlMsghdr + unix.SizeofRtMsg
	routeTypeAt     = unix.SizeofNlMsghdr + 7
	errnoEnd        = unix.SizeofNlMsghdr + 4
)

// encodeQuestion encodes the query for a destination.
func encodeQuestion(d Destination, seq uint32) ([]byte, error) {
	addr := d.Addr.Unmap()
	if !addr.IsValid() || addr.Zone() != "" {
		return nil, fmt.Errorf("ask the kernel for a route: %q is not an address", d.Addr)
	}
	family, bits := byte(unix.AF_INET6), byte(128)
	if addr.Is4() {
		family, bits = unix.AF_INET, 32
	}
	order := binary.NativeEndian
	m := make([]byte, routeEnd, routeEnd+64)
	m[unix.SizeofNlMsghdr] = family
	m[unix.SizeofNlMsghdr+1] = bits
	attribute := func(kind uint16, value ...byte) {
		m = order.AppendUint16(m, uint16(attributeHeader+len(value))) //nolint:gosec // at most 16 bytes
		m = order.AppendUint16(m, kind)
		m = append(m, value...)
		m = append(m, make([]byte, -len(m)&3)...)
	}
	attribute(unix.RTA_DST, addr.AsSlice()...)
	if d.Protocol != 0 {
		attribute(unix.RTA_IP_PROTO, byte(d.Protocol)) //nolint:gosec // protocols have 8 bits
	}
	if d.Port != 0 {
		attribute(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, d.Port)...)
	}
	order.PutUint32(m[0:], uint32(len(m))) //nolint:gosec // see above
	order.PutUint16(m[4:], unix.RTM_GETROUTE)
	order.PutUint16(m[6:], unix.NLM_F_REQUEST)
	order.PutUint32(m[8:], seq)
	return m, nil
}

// unreachable are the errors of the kernel for a destination without a route. It returns the
// last two on a machine without IPv6.
var unreachable = []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EAFNOSUPPORT, unix.EOPNOTSUPP}

// decodeAnswer decodes a response. mine is false for a response to another query.
func decodeAnswer(m []byte, seq uint32) (kind Kind, mine bool, err error) {
	order := binary.NativeEndian
	if len(m) < unix.SizeofNlMsghdr || order.Uint32(m[8:]) != seq {
		return Local, false, nil
	}
	switch order.Uint16(m[4:]) {
	case unix.RTM_NEWROUTE:
		if len(m) < routeEnd {
			break
		}
		switch m[routeTypeAt] {
		case unix.RTN_UNICAST:
			return Remote, true, nil
		case unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
			return Nowhere, true, nil
		default:
			return Local, true, nil
		}
	case unix.NLMSG_ERROR:
		if len(m) < errnoEnd {
			break
		}
		errno := unix.Errno(-int32(order.Uint32(m[unix.SizeofNlMsghdr:]))) //nolint:gosec // the encoding of the kernel
		if slices.Contains(unreachable, errno) {
			return Nowhere, true, nil
		}
		return Local, true, fmt.Errorf("ask the kernel for a route: %w", errno)
	}
	return Local, true, errors.New("ask the kernel for a route: unexpected response")
}
