package api

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// headerForwardedFor names the clients that a request has come from, the nearest last.
const headerForwardedFor = "X-Forwarded-For"

// Proxies are ranges of addresses of reverse proxies that are trusted to tell from whom a
// request comes.
type Proxies []netip.Prefix

// Contains reports whether an address is one of a proxy's.
func (p Proxies) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

// clientOf returns from whom a request comes that came from an address: that of the
// nearest client that is no proxy. A text that is no address ends the look-up, because
// whatever stands before it was written by somebody who is not trusted.
func (p Proxies) clientOf(a netip.Addr, h http.Header) netip.Addr {
	if !p.Contains(a) {
		return a
	}
	list := strings.Split(strings.Join(h.Values(headerForwardedFor), ","), ",")
	for _, text := range slices.Backward(list) {
		next, err := parseClient(strings.TrimSpace(text))
		if err != nil {
			return a
		}
		if a = next; !p.Contains(a) {
			return a
		}
	}
	return a
}

// parseClient reads an address, which some proxies write with a port.
func parseClient(text string) (netip.Addr, error) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr().Unmap(), nil
	}
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return a.Unmap().WithZone(""), err
}
