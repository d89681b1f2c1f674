package network

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// machine is the network of this machine.
type machine struct {
	mu    sync.Mutex
	local []netip.Addr
	until time.Time // local is believed
}

func newMachine() *machine { return &machine{} }

// localPeriod is how long the list of the machine's addresses is believed.
const localPeriod = time.Second

// IsLocal implements Machine. When the machine does not tell, every address is.
func (m *machine) IsLocal(addr netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); now.After(m.until) {
		list, err := localAddrs()
		if err != nil {
			return true
		}
		m.local, m.until = list, now.Add(localPeriod)
	}
	return slices.Contains(m.local, addr)
}

func localAddrs() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p.Addr().Unmap())
		}
	}
	return list, nil
}

// Dial implements Machine.
func (m *machine) Dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
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
