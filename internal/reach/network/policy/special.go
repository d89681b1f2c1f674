package policy

import "net/netip"

// specialRanges returns the ranges outside of the public internet: those of RFC 6890 and its
// successors, and the metadata addresses of cloud providers.
func specialRanges() []netip.Prefix {
	texts := []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "240.0.0.0/4",
		"::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16",
		"fc00::/7", "fe80::/10", "fec0::/10",
	}
	list := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		list[i] = netip.MustParsePrefix(t)
	}
	return list
}

// global6 returns the allocated parts of the IPv6 space. All others are special.
func global6() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("2000::/3"), nat64Prefix()}
}

// nat64Prefix returns the prefix that IPv6-only networks use for IPv4 addresses.
func nat64Prefix() netip.Prefix { return netip.MustParsePrefix("64:ff9b::/96") }

// canonicalAddr returns the address to which a connection to a leads, and the IPv4 address to
// which a network may translate it, which is invalid without a translation.
func canonicalAddr(a netip.Addr) (addr, inner netip.Addr) {
	a = a.Unmap().WithZone("")
	if nat64Prefix().Contains(a) {
		b := a.As16()
		return a, netip.AddrFrom4([4]byte(b[12:]))
	}
	return a, netip.Addr{}
}

// isSpecial reports whether a, which is canonical, is outside of the public internet.
func (r *Rules) isSpecial(a netip.Addr) bool {
	for _, p := range r.special {
		if p.Contains(a) {
			return true
		}
	}
	if a.Is4() {
		return false
	}
	for _, p := range r.global6 {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// Public reports whether an address, in any form, is on the public internet. It does not know
// the addresses of this machine.
func Public(a netip.Addr) bool {
	r := &Rules{special: specialRanges(), global6: global6()}
	addr, inner := canonicalAddr(a)
	return addr.IsValid() && !addr.IsMulticast() && !r.isSpecial(addr) && (!inner.IsValid() || !r.isSpecial(inner) && !inner.IsMulticast())
}

// namesSpecial reports whether a rule for p has only special addresses, so that it opens
// them.
func (r *Rules) namesSpecial(p netip.Prefix) bool {
	if p.IsSingleIP() {
		return true
	}
	for _, s := range r.special {
		if s.Bits() <= p.Bits() && s.Contains(p.Addr()) {
			return true
		}
	}
	return false
}
