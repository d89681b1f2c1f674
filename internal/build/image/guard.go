package image

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
	"github.com/sandpit-dev/sandpit/internal/reach/network/route"
)

// Guard prevents clients of a server from using image pulls to reach addresses that only the
// server can reach: its own, its network's, and the metadata service of a cloud. Only public
// addresses and explicitly allowed ones are contacted; names, redirects and token servers are
// checked too. A nil Guard allows everything. All methods may be called concurrently.
type Guard struct {
	hosts  []string // HOST or HOST:PORT
	ranges []netip.Prefix
}

// NewGuard returns a Guard that also allows the registries in inside, each given as HOST,
// HOST:PORT or a range of addresses, optionally followed by a path.
func NewGuard(inside []string) *Guard {
	g := &Guard{}
	for _, text := range inside {
		if p, err := netip.ParsePrefix(text); err == nil {
			g.ranges = append(g.ranges, p.Masked())
			continue
		}
		host, _, _ := strings.Cut(text, "/")
		g.hosts = append(g.hosts, strings.ToLower(host))
	}
	return g
}

// RegistryOf returns the registry of an image, or "" if the image is not from a registry.
func RegistryOf(ref sandpit.Image) string {
	if ref == "" || ref == sandpit.HostImage || IsPath(string(ref)) {
		return ""
	}
	r, err := parseReference(string(ref))
	if err != nil {
		return ""
	}
	return r.registry
}

// Check checks a registry that another program will contact: PermissionDenied if one of its
// addresses is not public. The name may resolve differently there, or later.
func (g *Guard) Check(ctx context.Context, registry string) error {
	host, port, err := net.SplitHostPort(registry)
	if err != nil {
		host, port = registry, ""
	}
	host = strings.Trim(host, "[]")
	if g == nil || registry == hub || g.isNamed(host, port) {
		return nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "registry %s cannot be found: %s", quoteName(registry), networkText(err))
	}
	for _, a := range addrs {
		if !g.isAllowed(a) {
			return errInside(registry)
		}
	}
	return nil
}

func errInside(registry string) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.PermissionDenied, "%s is not at a public address; the server contacts only public registries for its users", quoteName(registry)),
		"an administrator can pull the image, or allow the registry in image.registries")
}

// isNamed reports whether a host is explicitly allowed.
func (g *Guard) isNamed(host, port string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return slices.Contains(g.hosts, host) || port != "" && slices.Contains(g.hosts, host+":"+port) ||
		port == "443" && slices.Contains(g.hosts, host)
}

// isAllowed reports whether an address may be contacted.
func (g *Guard) isAllowed(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if g.isInRange(addr) {
		return true
	}
	return policy.Public(addr) && !route.IsLocal(addr)
}

func (g *Guard) isInRange(addr netip.Addr) bool {
	return slices.ContainsFunc(g.ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// guardedDialer opens connections for a client with an optional Guard.
type guardedDialer struct {
	*Guard

	timeout time.Duration
	proxies sync.Map // HOST:PORT of the environment's proxies, which are always allowed
}

// proxyFor returns the proxy for a request as http.ProxyFromEnvironment does.
func (l *guardedDialer) proxyFor(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if err != nil || u == nil || l.Guard == nil {
		return u, err
	}
	host := strings.Trim(r.URL.Hostname(), "[]")
	if addr, err := netip.ParseAddr(host); err == nil && !l.isNamed(host, r.URL.Port()) && !l.isAllowed(addr) {
		return nil, errInside(r.URL.Host)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	l.proxies.Store(net.JoinHostPort(u.Hostname(), port), true)
	return u, nil
}

// dialGuarded is a DialContext for http.Transport. It checks the address that a name resolved
// to at the time of the connection, so that a second lookup cannot give another one.
func (l *guardedDialer) dialGuarded(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: l.timeout}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	_, proxy := l.proxies.Load(address)
	if l.Guard != nil && !proxy && !l.isNamed(host, port) {
		d.Control = func(_, at string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(at)
			if err != nil || !l.isAllowed(to.Addr()) {
				return errInside(address)
			}
			return nil
		}
	}
	conn, err := d.DialContext(ctx, network, address)
	if err == nil && d.Control != nil && route.IsOwnConnection(conn) && !l.isPeerNamed(conn) {
		_ = conn.Close() // nothing was sent
		return nil, errInside(address)
	}
	return conn, err
}

// isPeerNamed reports whether the peer of a connection is explicitly allowed.
func (g *Guard) isPeerNamed(conn net.Conn) bool {
	to, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	return err == nil && g.isInRange(to.Addr().Unmap().WithZone(""))
}
