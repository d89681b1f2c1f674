package sandpit

import (
	"cmp"
	"net"
	"net/netip"
	"strconv"
)

// DefaultHostIP is the default of Port.HostIP: only programs of the machine reach the port.
const DefaultHostIP = "127.0.0.1"

// maxPorts is how many published ports a sandbox may have.
const maxPorts = 64

// Port is a published port: a TCP port inside that is bound to an address of the machine.
type Port struct {
	// Port is the port inside.
	Port int `json:"port"`
	// HostIP is the address of the machine. Default: DefaultHostIP.
	HostIP string `json:"host_ip,omitempty"`
	// HostPort is the port of the machine. Default: a free one, which is chosen when the
	// sandbox is created and does not change.
	HostPort int `json:"host_port,omitempty"`
}

// Address returns the address on the machine, as HOST:PORT.
func (p Port) Address() string {
	return net.JoinHostPort(cmp.Or(p.HostIP, DefaultHostIP), strconv.Itoa(p.HostPort))
}

// Loopback reports whether only this machine reaches the port.
func (p Port) Loopback() bool {
	ip, err := netip.ParseAddr(cmp.Or(p.HostIP, DefaultHostIP))
	return err == nil && ip.IsLoopback()
}

// CheckPorts returns an Invalid error unless all ports can be published.
func CheckPorts(ports []Port) error {
	if len(ports) > maxPorts {
		return Errorf(Invalid, "%d published ports, want at most %d", len(ports), maxPorts)
	}
	seen := make(map[string]bool, len(ports))
	for _, p := range ports {
		switch {
		case p.Port < 1 || p.Port > 65535:
			return Errorf(Invalid, "publish port %d: want 1 to 65535", p.Port)
		case p.HostPort < 0 || p.HostPort > 65535:
			return Errorf(Invalid, "publish port %d at port %d of the machine: want 1 to 65535, or none for a free one", p.Port, p.HostPort)
		}
		if _, err := netip.ParseAddr(cmp.Or(p.HostIP, DefaultHostIP)); err != nil {
			return Errorf(Invalid, "publish port %d at %.100q: want an IP address of the machine", p.Port, p.HostIP)
		}
		if p.HostPort > 0 && seen[p.Address()] {
			return Errorf(Invalid, "two ports are to be published at %s", p.Address())
		}
		seen[p.Address()] = true
	}
	return nil
}
