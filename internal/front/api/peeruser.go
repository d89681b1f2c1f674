package api

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// The kernel's answer to "whose socket is this" (linux/inet_diag.h), and its question.
const (
	diagHeader  = unix.SizeofNlMsghdr
	diagRequest = 56
	// diagUser and diagInode are where the user and the file are in the answer, behind its header.
	diagUser, diagInode = 64, 68
	// sockDiagByFamily is the kind of both.
	sockDiagByFamily = 20
)

// ownPeer reports whether a connection of this machine is one of the server's own user or of root. Others who can
// reach its address are not this user, and must show a key.
func (p peer) ownPeer() (bool, error) {
	uid, err := socketUser(netip.AddrPortFrom(p.address, p.ports[0]), netip.AddrPortFrom(p.local, p.ports[1]))
	if err != nil {
		return false, err
	}
	return uid == 0 || uid == os.Geteuid(), nil
}

// socketUser asks the kernel who has the socket at one end of a TCP connection of this machine.
//
// NotFound: there is no such connection any more. Unavailable: the kernel does not tell.
func socketUser(from, to netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, sandpit.Errorf(sandpit.Unavailable, "ask whose connection it is: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing is kept in it
	query := newDiagQuery(from, to)
	if err := unix.Sendto(fd, query, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, sandpit.Errorf(sandpit.Unavailable, "ask whose connection it is: %w", err)
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, reply, 0)
	if err != nil {
		return 0, sandpit.Errorf(sandpit.Unavailable, "ask whose connection it is: %w", err)
	}
	// One that its program has closed has no file, and the user 0.
	if n < diagHeader+diagInode+4 || binary.NativeEndian.Uint16(reply[4:]) != sockDiagByFamily || binary.NativeEndian.Uint32(reply[diagHeader+diagInode:]) == 0 {
		return 0, sandpit.Errorf(sandpit.NotFound, "the kernel knows of no connection from %s to %s", from, to)
	}
	return int(binary.NativeEndian.Uint32(reply[diagHeader+diagUser:])), nil
}

// newDiagQuery is a message that asks for one socket: that of who has connected from one address to the other.
func newDiagQuery(from, to netip.AddrPort) []byte {
	q := make([]byte, diagHeader+diagRequest)
	binary.NativeEndian.PutUint32(q, diagHeader+diagRequest)
	binary.NativeEndian.PutUint16(q[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(q[6:], unix.NLM_F_REQUEST)
	body := q[diagHeader:]
	body[0], body[1] = unix.AF_INET, unix.IPPROTO_TCP
	if from.Addr().Is6() {
		body[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(body[4:], 0xffffffff) // in any state
	id := body[8:]
	binary.BigEndian.PutUint16(id, from.Port())
	binary.BigEndian.PutUint16(id[2:], to.Port())
	copy(id[4:20], from.Addr().AsSlice())
	copy(id[20:36], to.Addr().AsSlice())
	binary.NativeEndian.PutUint64(id[40:], ^uint64(0)) // no cookie
	return q
}
