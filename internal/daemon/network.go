package daemon

import (
	"net"
	"net/netip"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
)

// fillNetwork gives a policy what the configuration says, where its request says
// nothing.
func fillNetwork(cfg config.Config, p *sandpit.NetworkPolicy) {
	if cfg.Sandbox.NetworkEnabled {
		p.Online = true
	}
	cfg.Network.Fill(p)
}

// boundNetwork returns what keeps policies below the ceiling of the configuration.
func boundNetwork(cfg config.Config) (func(sandpit.NetworkPolicy) (sandpit.NetworkPolicy, error), error) {
	ceiling, err := cfg.Network.Ceiling()
	if err != nil {
		return nil, err
	}
	return func(p sandpit.NetworkPolicy) (sandpit.NetworkPolicy, error) { return ceiling.Bound(p, isOwnAddress) }, nil
}

// isOwnAddress reports whether an address is this machine's. When the machine does not
// tell, every address is.
func isOwnAddress(addr netip.Addr) bool {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == addr {
			return true
		}
	}
	return false
}
