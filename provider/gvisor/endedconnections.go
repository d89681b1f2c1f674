package gvisor

import (
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// forgetSignal tells a restored kernel to forget ended connections. gVisor passes only the 33
// lowest signals on to programs in the sandbox.
const forgetSignal = unix.Signal(60)

// awaitForgetSignal handles forgetSignal in a kernel process until it ends.
func awaitForgetSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, forgetSignal)
	go func() {
		for range signals {
			forgetEndedConnections()
		}
	}()
}

// forgetEndedConnections removes connections of TCP that both sides have closed, and that only
// wait for packets that are late. In gVisor that minute begins anew in each restored kernel: a
// sandbox that is suspended more often would keep all of them, each with 20 KiB of its saved
// state. A restored kernel gets no late packets, because its loopback interface has none and its
// connections to other machines were closed.
//
// gVisor also saves its list of the connections to resume after a save, and empties it only when
// the kernel that was saved continues. So saved states become smaller with the next snapshot.
func forgetEndedConnections() {
	for _, e := range tcpip.GetDanglingEndpoints() {
		if e, ok := e.(*tcp.Endpoint); ok && e.EndpointState() == tcp.StateTimeWait {
			e.Abort()
		}
	}
}

// sendForgetSignal sends forgetSignal to a kernel process that was just restored.
func sendForgetSignal(pid int) error {
	if err := unix.Kill(pid, forgetSignal); err != nil {
		return fmt.Errorf("signal the kernel: %w", err)
	}
	return nil
}
