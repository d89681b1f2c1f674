package api

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// headerForwardedFor has the addresses that forwarded a request, the nearest last.
const headerForwardedFor = "X-Forwarded-For"

// Proxies are address ranges of reverse proxies that are trusted to report the client of a
// request.
type Proxies []netip.Prefix

// Contains reports whether an address belongs to a proxy.
func (p Proxies) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

// clientOf returns the client of a request from an address: the nearest address in the headers
// that is not a proxy. An invalid address ends the search, because what precedes it comes from
// an untrusted client.
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

// parseClient parses an address, with or without a port.
func parseClient(text string) (netip.Addr, error) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr().Unmap(), nil
	}
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return a.Unmap().WithZone(""), err
}
