package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// peer is where a request comes from, and which way.
type peer struct {
	address netip.Addr // of the other end of the connection; invalid for a unix socket
	client  netip.Addr // from whom it is: address, or what a trusted proxy says
	local   netip.Addr // that they asked at
	ports   [2]uint16  // of the two
	unix    bool
}

func peerOf(r *http.Request) peer {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if _, ok := local.(*net.UnixAddr); ok {
		return peer{unix: true}
	}
	var p peer
	if tcp, ok := local.(*net.TCPAddr); ok {
		p.local, p.ports[1] = tcp.AddrPort().Addr().Unmap(), tcp.AddrPort().Port()
	}
	if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		p.address, p.ports[0] = from.Addr().Unmap(), from.Port()
		p.client = p.address
	}
	return p
}

// clientOf is peerOf with the client that a trusted proxy names.
func (o *EdgeOptions) clientOf(r *http.Request) peer {
	p := peerOf(r)
	p.client = o.Proxies.clientOf(p.address, r.Header)
	return p
}

// isLoopback reports whether a request comes from a program of this machine that
// asks for itself. One that passes on what others ask says so.
func (p peer) isLoopback(h http.Header) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if len(h.Values(name)) > 0 {
			return false
		}
	}
	return p.address.IsLoopback() && p.local.IsLoopback()
}

// actorName is what the peer is called in the trail of events. No owner has such a name.
func (p peer) actorName() string {
	switch {
	case p.unix:
		return "unix socket"
	case p.client.IsValid():
		return "address " + addressName(p.client)
	default:
		return "address unknown"
	}
}

// checkHost refuses a request whose Host names another server. A page in a browser
// can give its own name this machine's address, and would then be taken for us.
func (o *EdgeOptions) checkHost(r *http.Request, p peer) error {
	if p.unix {
		return nil // no browser gets there
	}
	host := normalizeHost(r.Host)
	if ip, err := netip.ParseAddr(host); err == nil {
		// Somebody may reach us by an address that we do not know. No name leads to it.
		if p.local.IsLoopback() == ip.Unmap().IsLoopback() {
			return nil
		}
		return newHostError(host)
	}
	if host == "localhost" && p.local.IsLoopback() {
		return nil
	}
	for _, name := range o.Names {
		name = strings.ToLower(name)
		if suffix, ok := strings.CutPrefix(name, "*"); ok && strings.HasPrefix(suffix, ".") {
			if label, ok := strings.CutSuffix(host, suffix); ok && label != "" {
				return nil
			}
		}
		if host == name {
			return nil
		}
	}
	return newHostError(host)
}

// HostHandler returns next for requests whose Host is an address or one of names, so that
// pages of other sites do not reach it by names of their own. Others get 403.
func HostHandler(names []string, next http.Handler) http.Handler {
	o := EdgeOptions{Names: names}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := o.checkHost(r, peerOf(r)); err != nil {
			WriteError(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func newHostError(host string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "this server is not called %.100q", host),
		"if it is, add the name to the server's settings")
}

// normalizeHost returns a Host without its port, in lower case, and without the dot or
// brackets that it may have.
func normalizeHost(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
