package gvisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// dialPort returns one end of a connection to a TCP port inside, on which the guest sends its
// answer first. It does not wait for the answer, but waits until the guest has accepted enough of
// the previous connections.
//
// gVisor's own port forwarding is not used: it loses data when the receiver is slower than the
// sender.
func (sb *engineSandbox) dialPort(ctx context.Context, port int) (*os.File, error) {
	if port < 1 || port > 65535 {
		return nil, sandpit.Errorf(sandpit.Invalid, "port %d: want 1 to 65535", port)
	}
	conduit, err := sb.openConduit(ctx)
	if err != nil {
		return nil, err
	}
	defer conduit.Close()
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	message := binary.BigEndian.AppendUint16(nil, uint16(port))
	if err := sb.sendToGuest(ctx, conduit, message, unix.UnixRights(int(theirs.Fd()))); err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("connect to port %d: %w", port, err)
	}
	return ours, nil
}

// A new connection waits while the guest has not accepted those before it. A guest that is slow
// because hundreds of programs run beside it accepts them in time; a hostile one only delays its
// own users.
const (
	conduitLimit = 10 * time.Second
	conduitPause = 2 * time.Millisecond
)

// sendToGuest sends a message with descriptors through the conduit, and waits while the conduit is
// full.
func (sb *engineSandbox) sendToGuest(ctx context.Context, conduit *os.File, message, rights []byte) error {
	limit := time.NewTimer(conduitLimit)
	defer limit.Stop()
	for {
		err := unix.Sendmsg(int(conduit.Fd()), message, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
			return sandpit.Errorf(sandpit.Gone, "the sandbox is ending")
		case !errors.Is(err, unix.EAGAIN):
			return sandpit.Errorf(sandpit.Unavailable, "send the connection to the guest: %w", err)
		}
		select {
		case <-time.After(conduitPause):
		case <-sb.ended:
			return sandpit.Errorf(sandpit.Gone, "the sandbox has ended: %s", sb.exit.Reason)
		case <-limit.C:
			return sandpit.Errorf(sandpit.Timeout, "the guest has accepted no connection for %v", conduitLimit)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// openConduit returns another descriptor of the conduit, which stays open when the sandbox is
// destroyed.
func (sb *engineSandbox) openConduit(ctx context.Context) (*os.File, error) {
	if err := sb.endedError(); err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	// It may have ended while this waited for mu.
	if err := sb.endedError(); err != nil {
		return nil, err
	}
	if sb.conduit == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "sandbox %s is not running", sb.id)
	}
	if sb.paused {
		return nil, sandpit.Errorf(sandpit.Conflict, "sandbox %s is paused", sb.id)
	}
	if sb.guestSettings != nil { // the guest was too slow to continue after a save
		if err := sb.continueGuestLocked(ctx, false); err != nil {
			return nil, err
		}
	}
	return duplicateFile(sb.conduit)
}
