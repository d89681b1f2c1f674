package api

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// The kernel's response about a socket (linux/inet_diag.h), and the query.
const (
	diagHeader  = unix.SizeofNlMsghdr
	diagRequest = 56
	// diagUser and diagInode are the offsets of user and inode in the response after its header.
	diagUser, diagInode = 64, 68
	// sockDiagByFamily is the type of both.
	sockDiagByFamily = 20
)

// ownPeer reports whether a connection of this machine belongs to the server's own user or to
// root. Other users that can reach the address must use a key.
func (p peer) ownPeer() (bool, error) {
	uid, err := socketUser(netip.AddrPortFrom(p.address, p.ports[0]), netip.AddrPortFrom(p.local, p.ports[1]))
	if err != nil {
		return false, err
	}
	return uid == 0 || uid == os.Geteuid(), nil
}

// socketUser asks the kernel for the user of the socket at one end of a TCP connection of this
// machine.
//
// NotFound: there is no such connection. Unavailable: the kernel did not respond.
func socketUser(from, to netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, sandpit.Errorf(sandpit.Unavailable, "get the user of a connection: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing is written to it
	query := newDiagQuery(from, to)
	if err := unix.Sendto(fd, query, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, sandpit.Errorf(sandpit.Unavailable, "get the user of a connection: %w", err)
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, reply, 0)
	if err != nil {
		return 0, sandpit.Errorf(sandpit.Unavailable, "get the user of a connection: %w", err)
	}
	// A socket that its program has closed has no inode, and the user 0.
	if n < diagHeader+diagInode+4 || binary.NativeEndian.Uint16(reply[4:]) != sockDiagByFamily || binary.NativeEndian.Uint32(reply[diagHeader+diagInode:]) == 0 {
		return 0, sandpit.Errorf(sandpit.NotFound, "no connection from %s to %s", from, to)
	}
	return int(binary.NativeEndian.Uint32(reply[diagHeader+diagUser:])), nil
}

// newDiagQuery returns the query for the socket of a connection between two addresses.
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
