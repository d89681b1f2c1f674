package dialer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// The bounds of one gateway.
const (
	requestRate  = 10000 // a second
	requestBurst = 10000
	replyLimit   = 5 * time.Second // for the gateway to accept a reply
)

// Server answers the requests of one gateway.
type Server struct {
	conn   *net.UnixConn
	kernel kernel
	rate   *rate.Limiter
	grant  atomic.Pointer[Grant]
}

// NewServer returns a Server that answers requests on conn, a packet socket, and owns it. It
// asks k for routes.
func NewServer(conn *net.UnixConn, k kernel, g Grant) *Server {
	s := &Server{conn: conn, kernel: k, rate: rate.NewLimiter(requestRate, requestBurst)}
	s.SetGrant(g)
	return s
}

// SetGrant replaces the grant for all later requests.
func (s *Server) SetGrant(g Grant) { s.grant.Store(&g) }

// Serve answers requests, one after the other, until the connection or ctx ends. An invalid
// request gets a reply with statusInvalid.
func (s *Server) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	defer s.conn.Close()
	packet := make([]byte, requestSize+1)
	for {
		n, err := s.conn.Read(packet)
		if err != nil {
			return err
		}
		if n == 0 {
			continue // an empty packet; the end of the connection is an error
		}
		if err := s.rate.Wait(ctx); err != nil {
			return err
		}
		if err := s.handlePacket(packet[:n]); err != nil {
			return err
		}
	}
}

// handlePacket replies to a packet. It returns errors of the connection.
func (s *Server) handlePacket(packet []byte) error {
	r, ok := decodeRequest(packet)
	if !ok {
		return s.sendReply(reply{number: r.number, status: statusInvalid}, -1)
	}
	if r.op == opRoute {
		kind, err := lookupRoute(s.kernel, 0, netip.AddrPortFrom(r.to.Addr(), 0))
		if err != nil {
			return s.sendReply(reply{number: r.number, status: statusOwn}, -1)
		}
		return s.sendReply(reply{number: r.number, status: statusAnswer, kind: byte(kind)}, -1) //nolint:gosec // there are three kinds
	}
	to, granted := s.grant.Load().checkRequest(s.kernel, r)
	if to != statusPassed {
		return s.sendReply(reply{number: r.number, status: to, errno: unix.ENETUNREACH}, -1)
	}
	fd, to, err := startConnect(r, granted)
	if fd < 0 {
		errno := unix.EIO
		_ = errors.As(err, &errno)
		return s.sendReply(reply{number: r.number, status: to, errno: errno}, -1)
	}
	defer unix.Close(fd)
	return s.sendReply(reply{number: r.number, status: statusPassed}, fd)
}

// sendReply sends a reply. It drops the reply if the gateway does not receive it in time.
func (s *Server) sendReply(r reply, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(replyLimit)); err != nil {
		return err
	}
	_, _, err := s.conn.WriteMsgUnix(r.encodeReply(), rights, nil)
	switch {
	case errors.Is(err, unix.ETOOMANYREFS) && fd >= 0: // this user has too many descriptors in transit
		return s.sendReply(reply{number: r.number, status: statusFailed, errno: unix.EMFILE}, -1)
	case isTimeout(err):
		return nil
	}
	return err
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// startConnect returns a descriptor that is connecting, or -1. Unless own is set, it does not
// lead to this machine: the kernel has chosen the local address, which is checked.
func startConnect(r request, own bool) (fd int, s status, err error) {
	addr := r.to.Addr()
	domain := unix.AF_INET6
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: addr.As16(), Port: int(r.to.Port())}
	if addr.Is4() {
		domain, to = unix.AF_INET, &unix.SockaddrInet4{Addr: addr.As4(), Port: int(r.to.Port())}
	}
	kind := unix.SOCK_DGRAM
	if r.protocol == protocolTCP {
		kind = unix.SOCK_STREAM
	}
	fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, r.protocol.protocolNumber(addr))
	if err != nil {
		return -1, statusFailed, err
	}
	err = unix.Connect(fd, to)
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return -1, statusFailed, err
	}
	if here, err := nameOf(fd); !own && (err != nil || here == addr) {
		_ = unix.Close(fd)
		return -1, statusOwn, err
	}
	return fd, statusPassed, nil
}

// nameOf returns the address of this end of a socket.
func nameOf(fd int) (netip.Addr, error) {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(n.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(n.Addr).Unmap(), nil
	}
	return netip.Addr{}, unix.EAFNOSUPPORT
}
