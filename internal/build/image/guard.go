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

// Guard keeps those who have a server fetch images from having it speak with whom only the
// server reaches: with itself, its network, or what a cloud tells its machines. Only public
// addresses are asked, whatever names, redirects and token servers say, besides what was
// named on purpose. The nil Guard keeps nobody from anything. All methods may be called
// concurrently.
type Guard struct {
	hosts  []string // HOST or HOST:PORT
	ranges []netip.Prefix
}

// NewGuard returns a Guard that lets everybody have the registries in inside asked, each
// named as HOST, HOST:PORT or a range of addresses, with a path below it or not.
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

// RegistryOf returns the registry that an image is of, and "" if it is of none.
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

// Check refuses a registry that somebody else is to ask: PermissionDenied if one of its
// addresses is not public. Nobody can say what names mean to others, or later.
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
		sandpit.Errorf(sandpit.PermissionDenied, "%s is not at a public address, and the server asks no others for its users", quoteName(registry)),
		"an administrator may have it fetched, or name it in image.registries")
}

// isNamed reports whether a host was named.
func (g *Guard) isNamed(host, port string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return slices.Contains(g.hosts, host) || port != "" && slices.Contains(g.hosts, host+":"+port) ||
		port == "443" && slices.Contains(g.hosts, host)
}

// isAllowed reports whether an address may be spoken to.
func (g *Guard) isAllowed(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if g.inRange(addr) {
		return true
	}
	return policy.Public(addr) && !route.IsLocal(addr)
}

func (g *Guard) inRange(addr netip.Addr) bool {
	return slices.ContainsFunc(g.ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// guardedDialer is how a client that has a Guard connects.
type guardedDialer struct {
	*Guard

	timeout time.Duration
	proxies sync.Map // HOST:PORT of those that the environment names, which decide themselves
}

// proxyFor is http.ProxyFromEnvironment.
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

// dialGuarded is for an http.Transport. What a name means is looked at when it is used: a second
// answer cannot be another one.
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
	if err == nil && d.Control != nil && route.IsOwnConnection(conn) && !l.isInRange(conn) {
		_ = conn.Close() // nothing was sent
		return nil, errInside(address)
	}
	return conn, err
}

// isInRange reports whether the peer of a connection was named on purpose.
func (g *Guard) isInRange(conn net.Conn) bool {
	to, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	return err == nil && g.inRange(to.Addr().Unmap().WithZone(""))
}
