package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// conduitThief takes the guest's conduit and does with it what the guest would
// never do.
func conduitThief(a *attempt) {
	pidfd, err := unix.PidfdOpen(1, 0)
	a.control("pidfd_open", func() (string, error) { return "", err })
	conduit := -1
	for fd := range 64 {
		taken, err := unix.PidfdGetfd(pidfd, fd, 0)
		if err != nil {
			continue
		}
		kind, err := unix.GetsockoptInt(taken, unix.SOL_SOCKET, unix.SO_TYPE)
		if err == nil && kind == unix.SOCK_SEQPACKET && conduit < 0 {
			conduit = taken
			continue
		}
		_ = unix.Close(taken)
	}
	a.control("take the conduit", func() (string, error) {
		if conduit < 0 {
			return "", unix.ENOTSOCK
		}
		return "", nil
	})
	fmt.Println("listening")
	a.try("send descriptors out", func() (string, error) {
		fds := []int{0, conduit, pidfd}
		for i, fd := range fds {
			err := unix.Sendmsg(conduit, []byte("xx"), unix.UnixRights(fd), nil, unix.MSG_DONTWAIT)
			if err == nil {
				return fmt.Sprintf("descriptor %d of %d was taken", i, len(fds)), nil
			}
		}
		return "", nil
	})
	a.try("send until it is full", func() (string, error) {
		b := make([]byte, 4096)
		for i := range 100_000 {
			if err := unix.Sendmsg(conduit, b, nil, nil, unix.MSG_DONTWAIT); err != nil {
				return fmt.Sprintf("%d messages, %v", i, err), nil
			}
		}
		return "no end", nil
	})
	a.try("take connections", func() (string, error) { return takeConnections(conduit), nil })
	a.last = func() { _ = unix.Shutdown(conduit, unix.SHUT_RDWR) }
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test has looked
}

// takeConnections accepts what comes over the conduit, and answers with
// rubbish.
func takeConnections(conduit int) string {
	taken, message, rights := 0, make([]byte, 16), make([]byte, unix.CmsgSpace(64))
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
		n, rn, _, _, err := unix.Recvmsg(conduit, message, rights, unix.MSG_DONTWAIT)
		if err != nil || n == 0 {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		messages, err := unix.ParseSocketControlMessage(rights[:rn])
		if err != nil || len(messages) == 0 {
			continue
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			taken++
			_, _ = unix.Write(fd, []byte("\x00HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n\xff\xff\xff\xff"))
			for _, passed := range []int{0, conduit, fd} {
				_ = unix.Sendmsg(fd, []byte("x"), unix.UnixRights(passed), nil, unix.MSG_DONTWAIT)
			}
		}
	}
	return fmt.Sprintf("%d taken", taken)
}
