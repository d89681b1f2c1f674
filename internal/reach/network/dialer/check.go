package dialer

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/reach/network/route"
)

// Range is a range of addresses at a port.
type Range struct {
	Prefix netip.Prefix `json:"prefix"`
	// Port is 0 for any port, and for protocols without ports.
	Port uint16 `json:"port,omitempty"`
}

// Grant has the destinations of one sandbox's gateway besides public addresses.
type Grant struct {
	// Inside has non-public addresses, and addresses of the machine.
	Inside []Range `json:"inside,omitempty"`
	// Resolvers are the gateway's DNS resolvers, which it can use only as such.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
}

// kernel looks up routes, as route.Kernel does.
type kernel interface {
	Lookup(d route.Destination) (route.Kind, error)
}

// checkRequest decides about a request to dial. granted is true if the connection may lead to
// this machine.
func (g Grant) checkRequest(k kernel, r request) (s status, granted bool) {
	addr, port := r.to.Addr(), r.to.Port()
	if (port == 0) != (r.protocol == protocolPing) || !isUnicast(addr) {
		return statusInvalid, false
	}
	if r.op == opResolve {
		if r.protocol == protocolPing || !slices.Contains(g.Resolvers, r.to) {
			return statusRefused, false
		}
		return statusPassed, true
	}
	if slices.ContainsFunc(g.Inside, func(i Range) bool { return i.Prefix.Contains(addr) && (i.Port == 0 || i.Port == port) }) {
		return statusPassed, true
	}
	if !isPublic(addr) {
		return statusRefused, false
	}
	kind, err := lookupRoute(k, r.protocol.protocolNumber(addr), r.to)
	switch {
	case err != nil || kind == route.Local:
		return statusOwn, false
	case kind == route.Nowhere:
		return statusFailed, false
	}
	return statusPassed, false
}

// lookupRoute looks up the route to an address, and to the IPv4 address to which a network may
// translate it, which may lead back to this machine.
func lookupRoute(k kernel, number int, to netip.AddrPort) (route.Kind, error) {
	kind, err := k.Lookup(route.Destination{Addr: to.Addr(), Protocol: number, Port: to.Port()})
	inner, translated := translatedTo(to.Addr())
	if err != nil || kind == route.Local || !translated {
		return kind, err
	}
	innerKind, err := k.Lookup(route.Destination{Addr: inner, Protocol: number, Port: to.Port()})
	if err != nil || innerKind == route.Local {
		return route.Local, err
	}
	return kind, nil
}

// protocolNumber returns the protocol's number in packets to an address.
func (p protocol) protocolNumber(addr netip.Addr) int {
	switch {
	case p == protocolTCP:
		return unix.IPPROTO_TCP
	case p == protocolUDP:
		return unix.IPPROTO_UDP
	case addr.Is4():
		return unix.IPPROTO_ICMP
	default:
		return unix.IPPROTO_ICMPV6
	}
}

func isUnicast(addr netip.Addr) bool {
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsMulticast() && addr.Zone() == "" && !addr.Is4In6() &&
		addr != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// isPublic reports whether an address is on the public internet. It decides the same as
// policy.Public with separate code, so that a mistake in one is not in both. A fuzz test
// compares them.
func isPublic(addr netip.Addr) bool {
	if addr.Is4() {
		return isPublic4(addr.As4())
	}
	if inner, ok := translatedTo(addr); ok {
		return isPublic4(inner.As4())
	}
	return isPublic6(addr.As16())
}

// isPublic4 is isPublic for IPv4. It excludes the special ranges of RFC 6890 and its
// successors, and a metadata address of a cloud.
func isPublic4(a [4]byte) bool {
	switch a[0] {
	case 0, 10, 127: // this network, private, loopback
		return false
	case 100:
		return a[1]&0xc0 != 64 // shared by customers of a provider
	case 168:
		return a != [4]byte{168, 63, 129, 16} // Azure
	case 169:
		return a[1] != 254 // link-local, and the metadata of clouds
	case 172:
		return a[1]&0xf0 != 16 // private
	case 192:
		switch a[1] {
		case 0:
			return a[2] != 0 && a[2] != 2 // protocols, documentation
		case 88:
			return a[2] != 99 // 6to4
		}
		return a[1] != 168 // private
	case 198:
		return a[1]&0xfe != 18 && (a[1] != 51 || a[2] != 100) // benchmarks, documentation
	case 203:
		return a[1] != 0 || a[2] != 113 // documentation
	}
	return a[0] < 224 // multicast and reserved addresses
}

// isPublic6 is isPublic for IPv6. It excludes special ranges within the allocated addresses.
func isPublic6(a [16]byte) bool {
	if a[0]>>5 != 1 { // 2000::/3
		return false
	}
	switch {
	case a[0] == 0x20 && a[1] == 0x01 && a[2] < 2: // 2001::/23, protocols
		return false
	case a[0] == 0x20 && a[1] == 0x01 && a[2] == 0x0d && a[3] == 0xb8: // documentation
		return false
	case a[0] == 0x20 && a[1] == 0x02: // 6to4
		return false
	case a[0] == 0x3f && a[1] == 0xff && a[2] < 0x10: // 3fff::/20, documentation
		return false
	}
	return true
}

// translatedTo returns the IPv4 address that IPv6-only networks translate an address to.
func translatedTo(addr netip.Addr) (netip.Addr, bool) {
	if addr.Is4() {
		return addr, false
	}
	a := addr.As16()
	if [12]byte(a[:12]) != [12]byte{0x00, 0x64, 0xff, 0x9b} {
		return addr, false
	}
	return netip.AddrFrom4([4]byte(a[12:])), true
}
