package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/rawfile"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// linkQueue bounds the packets that wait for the link. The link never drops a packet that
	// the stack has accepted.
	linkQueue = 1024
	// A packet has up to maxPacket bytes. One of ownPacket bytes or more keeps the
	// memory that it was read into; a smaller one is copied, because it would hold far more
	// memory than it is counted for.
	maxPacket = 64 << 10
	ownPacket = maxPacket / 2
)

// SocketPair creates a link: a pair of sockets that carries one packet in each message. They
// are datagram sockets, because other kinds end for one side when the other is closed, and
// treat an empty packet as the end.
func SocketPair() (gateway, box *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a link: %w", err)
	}
	for _, fd := range fds {
		// As large as the machine allows: packets that do not fit are lost, and TCP slows
		// down.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, linkBuffer)
	}
	return os.NewFile(uintptr(fds[0]), "gateway"), os.NewFile(uintptr(fds[1]), "box"), nil
}

const linkBuffer = 4 << 20

// link moves packets between the socket and the stack.
type link struct {
	file    *os.File
	meter   *meter
	conn    syscall.RawConn
	ep      *channel.Endpoint
	from    [2]netip.Addr // the addresses of the sandbox
	handled func(packet []byte) bool

	closed atomic.Bool

	mu      sync.Mutex // guards writing
	waiting int        // packets that writePackets has not sent yet
	parts   []unix.Iovec
}

// newLink returns a link that owns file. taken reports whether it handled a packet, which
// then does not reach the stack; it must not block and not keep the memory.
func newLink(file *os.File, m *meter, handled func(packet []byte) bool) (*link, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("open the link: %w", err)
	}
	ep := channel.New(linkQueue, MTU, "")
	// Memory does not corrupt packets, so checksums are not needed.
	ep.LinkEPCapabilities = stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
	a := LinkAddresses()
	return &link{file: file, meter: m, conn: conn, ep: ep, from: [2]netip.Addr{a.Box4.Addr(), a.Box6.Addr()}, handled: handled}, nil
}

// windowSize returns how many unacknowledged bytes of one connection the sandbox may send, at
// most wideBuffer: when the link's buffer is full, the sandbox's kernel loses packets.
func (l *link) windowSize() int {
	var size int
	_ = l.conn.Control(func(fd uintptr) { size, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF) })
	return min(max(size/8, receiveWindow), wideBuffer)
}

// closeLink closes the link and ends readPackets and writePackets.
func (l *link) closeLink() {
	l.closed.Store(true)
	_ = l.file.Close() // closing a socket loses no data
}

// readPackets delivers packets until the link is closed.
func (l *link) readPackets() error {
	view := buffer.NewViewSize(maxPacket)
	defer func() { view.Release() }()
	for {
		n, err := l.receivePacket(view.AsSlice())
		if err != nil && l.closed.Load() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the link: %w", err)
		}
		packet := view.AsSlice()[:n]
		if n < ownPacket {
			l.deliverPacket(packet)
		} else if proto, ok := l.isFromSandbox(packet); ok {
			view.CapLength(n)
			l.injectPacket(proto, buffer.MakeWithView(view))
			view = buffer.NewViewSize(maxPacket)
		}
	}
}

func (l *link) receivePacket(packet []byte) (n int, err error) {
	var errno error
	err = l.conn.Read(func(fd uintptr) bool {
		for {
			n, errno = unix.Read(int(fd), packet)
			if !errors.Is(errno, unix.EINTR) {
				return !errors.Is(errno, unix.EAGAIN)
			}
		}
	})
	return n, errors.Join(err, errno)
}

// deliverPacket passes one packet to the stack if its source is the sandbox. The caller keeps
// the packet's memory.
func (l *link) deliverPacket(packet []byte) {
	if proto, ok := l.isFromSandbox(packet); ok {
		l.injectPacket(proto, buffer.MakeWithData(packet))
	}
}

// isFromSandbox reports whether a packet has the sandbox's source address, and returns its
// protocol.
func (l *link) isFromSandbox(packet []byte) (proto tcpip.NetworkProtocolNumber, ok bool) {
	if len(packet) == 0 {
		return 0, false
	}
	var from netip.Addr
	switch header.IPVersion(packet) {
	case header.IPv4Version:
		if len(packet) < header.IPv4MinimumSize {
			return 0, false
		}
		proto, from = ipv4.ProtocolNumber, netip.AddrFrom4([4]byte(packet[12:16]))
	case header.IPv6Version:
		if len(packet) < header.IPv6MinimumSize {
			return 0, false
		}
		proto, from = ipv6.ProtocolNumber, netip.AddrFrom16([16]byte(packet[8:24]))
	default:
		return 0, false
	}
	if from != l.from[0] && from != l.from[1] {
		return 0, false
	}
	l.meter.sent.Add(int64(len(packet)))
	return proto, !l.handled(packet)
}

// injectPacket passes a packet to the stack and owns it.
func (l *link) injectPacket(proto tcpip.NetworkProtocolNumber, packet buffer.Buffer) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: packet})
	pkt.RXChecksumValidated = true
	l.ep.InjectInbound(proto, pkt)
	pkt.DecRef()
}

// linkEndpoint receives packets of the stack. It sends them to the socket at once, without a
// copy, while the socket has space, and queues them in the channel otherwise.
type linkEndpoint struct {
	*channel.Endpoint

	link *link
}

// WritePackets implements stack.LinkEndpoint.
func (e linkEndpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	l := e.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, pkt := range pkts.AsSlice() {
		if l.waiting == 0 && l.trySend(pkt) {
			continue
		}
		var one stack.PacketBufferList
		one.PushBack(pkt)
		if queued, err := e.Endpoint.WritePackets(one); queued == 0 {
			return n, err
		}
		l.waiting++
	}
	return pkts.Len(), nil
}

// trySend sends a packet if that does not block. Other errors occur again in writePackets,
// which reports them.
func (l *link) trySend(pkt *stack.PacketBuffer) bool {
	l.parts = appendParts(l.parts[:0], pkt)
	errno := unix.EBADF // closed
	_ = l.conn.Control(func(fd uintptr) { errno = rawfile.NonBlockingWriteIovec(int(fd), l.parts) })
	clear(l.parts) // release the packet's memory
	if errno != 0 {
		return false
	}
	l.meter.received.Add(int64(pkt.Size()))
	return true
}

func appendParts(parts []unix.Iovec, pkt *stack.PacketBuffer) []unix.Iovec {
	for _, part := range pkt.AsSlices() {
		parts = rawfile.AppendIovecFromBytes(parts, part, rawfile.MaxIovs)
	}
	return parts
}

// writePackets sends waiting packets until ctx ends or the link is closed. It blocks when the
// sandbox is slow: then the stack's queue fills up, and its TCP waits too.
func (l *link) writePackets(ctx context.Context) error {
	packet := make([]byte, 0, maxPacket)
	for {
		pkt := l.ep.ReadContext(ctx)
		if pkt == nil {
			return nil
		}
		packet = packet[:0]
		for _, part := range pkt.AsSlices() {
			packet = append(packet, part...)
		}
		pkt.DecRef()
		err := l.sendPacket(packet)
		if err != nil && l.closed.Load() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("write to the link: %w", err)
		}
		l.mu.Lock()
		l.waiting--
		l.mu.Unlock()
	}
}

// sendPacket sends one packet. It may be called concurrently.
func (l *link) sendPacket(packet []byte) error {
	var errno error
	l.meter.received.Add(int64(len(packet)))
	err := l.conn.Write(func(fd uintptr) bool {
		for {
			_, errno = unix.Write(int(fd), packet)
			if !errors.Is(errno, unix.EINTR) {
				return !errors.Is(errno, unix.EAGAIN)
			}
		}
	})
	return errors.Join(err, errno)
}
