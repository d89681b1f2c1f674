package network

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/network/route"
)

// machine is the network of this machine.
type machine struct{}

func newMachine() machine { return machine{} }

// IsLocal implements Machine.
func (machine) IsLocal(addr netip.Addr) bool { return route.IsLocal(addr) }

// Dial implements Machine.
func (machine) Dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{
		KeepAlive: 30 * time.Second,
		// Nothing resolves names here, so this is what was decided about. It stays
		// so whatever becomes of the code above: this is the last line.
		Control: func(_, address string, _ syscall.RawConn) error {
			if got, err := netip.ParseAddrPort(address); err != nil || got != addr {
				return sandpit.Errorf(sandpit.Internal, "dial %s: not %s", address, addr)
			}
			return nil
		},
	}
	return d.DialContext(ctx, network, addr.String())
}
