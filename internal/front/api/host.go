package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// peer is the source of a request.
type peer struct {
	address netip.Addr // of the other end of the connection; invalid for a unix socket
	client  netip.Addr // the client: address, or what a trusted proxy reports
	local   netip.Addr // of this end
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

// clientOf is peerOf with the client that a trusted proxy reports.
func (o *EdgeOptions) clientOf(r *http.Request) peer {
	p := peerOf(r)
	p.client = o.Proxies.clientOf(p.address, r.Header)
	return p
}

// isLoopback reports whether a request comes directly from a program of this machine. A proxy
// that forwards requests of others identifies itself by headers.
func (p peer) isLoopback(h http.Header) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if len(h.Values(name)) > 0 {
			return false
		}
	}
	return p.address.IsLoopback() && p.local.IsLoopback()
}

// actorName returns the name of the peer in the audit trail. No owner has such a name.
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

// checkHost refuses a request whose Host names another server. A web page can resolve its own
// name to this machine's address, and its requests would then pass as same-origin.
func (o *EdgeOptions) checkHost(r *http.Request, p peer) error {
	if p.unix {
		return nil // browsers cannot use it
	}
	host := normalizeHost(r.Host)
	if ip, err := netip.ParseAddr(host); err == nil {
		// The server cannot know all of its addresses. Names cannot be confused with them.
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
// pages of other sites cannot reach it by names of their own. Other requests get 403.
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
	return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "this server does not have the name %.100q", host),
		"if it should, add the name to server.names in the configuration")
}

// normalizeHost returns a Host in lower case, without port, brackets and trailing dot.
func normalizeHost(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
