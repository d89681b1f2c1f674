package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
)

// openGateway opens the previews.
func (s *service) openGateway(ctx context.Context) (err error) {
	s.gateway, err = preview.Open(ctx, preview.Options{
		Manager: s.manager, Store: s.store, Tokens: s.tokens, Keys: s.keys, Domain: previewName(s.cfg.Preview.Domain), Places: s.previewPlaces,
		Frames: s.cfg.Preview.Frames,
		// The edge is made with the handler, after the gateway and before any request.
		Admit: func(w http.ResponseWriter, r *http.Request) (*http.Request, error) { return s.edge.Admit(w, r) },
		Enter: func(r *http.Request, owner string) (func(), error) { return s.edge.CountPreview(r, owner) },
		Rules: previewRules, Wake: func(ctx context.Context, id sandpit.ID) error { return s.e2b.Wake(ctx, id) },
		Observe: s.observeAnswer, Log: s.log,
	})
	return err
}

// previewName is the host name in the setting of the domain.
func previewName(domain string) string {
	if domain == config.None {
		return ""
	}
	if _, _, isURL := strings.Cut(domain, "://"); !isURL {
		return domain
	}
	u, err := url.Parse(domain)
	if err != nil {
		return "" // the configuration has looked at it
	}
	return u.Hostname()
}

// previewPlaces returns where previews are served.
func (s *service) previewPlaces() preview.Places {
	c := s.cfg.Preview
	p := preview.Places{Paths: c.URL}
	if s.paths != nil {
		p.Paths = cmp.Or(c.URL, s.urlScheme()+"://"+reachableAddress(s.paths.Addr()))
	}
	if c.Domain == config.None {
		return p
	}
	if scheme, host, isURL := strings.Cut(c.Domain, "://"); isURL {
		p.Scheme, p.Host = scheme, host
		return p
	}
	if at, ok := s.server.Addr().(*net.TCPAddr); ok {
		p.Scheme, p.Host = s.urlScheme(), net.JoinHostPort(c.Domain, strconv.Itoa(at.Port))
	}
	return p
}

// cookieHeader is how many bytes the head of a request may have where pages of previews can
// set cookies for all of them: browsers keep 180 of 4 KiB for a domain.
const cookieHeader = 1 << 20

// maxHeader returns how many bytes the head of a request may have; 0 is the usual.
func (s *service) maxHeader() int {
	if name := previewName(s.cfg.Preview.Domain); strings.Contains(name, ".") {
		return cookieHeader
	}
	return 0
}

func (s *service) urlScheme() string {
	if s.cfg.Server.TLSKind() == config.TLSOff {
		return "http"
	}
	return "https"
}

// localURL returns the address at which the server listens, from its machine, or "".
func (s *service) localURL() string {
	if s.server == nil || s.server.Addr() == nil {
		return ""
	}
	return s.urlScheme() + "://" + reachableAddress(s.server.Addr())
}

// reachableAddress is an address by which a listener is reached from this machine.
func reachableAddress(addr net.Addr) string {
	at, ok := addr.(*net.TCPAddr)
	if !ok {
		return addr.String()
	}
	host := at.IP.String()
	if at.IP.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, strconv.Itoa(at.Port))
}

// listenPaths opens the listener of previews by path, with the server's certificates, and
// returns its URL, or "" if it is not configured.
func (s *service) listenPaths(ctx context.Context, certificates *tls.Config) (string, error) {
	c := s.cfg.Server
	if s.cfg.Preview.Listen == config.None {
		return "", nil
	}
	server, err := api.Listen(ctx, api.ServerOptions{
		Handler: s.tracer.Handler(s.gateway.Paths()), Address: s.cfg.Preview.Listen, TLS: certificates, Drain: c.Drain, Log: s.log,
		MaxHeader: s.maxHeader(), MaxConnections: c.MaxConnections, MaxConnectionsPerAddress: c.MaxConnectionsPerAddress, MaxConnectionsPerOwner: c.MaxConnectionsPerOwner,
		Proxies: trustedProxies(c),
	})
	if err != nil {
		return "", err
	}
	s.paths = server
	return s.previewPlaces().Paths, nil
}

// servePaths answers at that listener until ctx ends.
func (s *service) servePaths(ctx context.Context) error {
	if s.paths == nil {
		return nil
	}
	return s.paths.Serve(ctx)
}

// closePaths closes that listener if it was not served.
func (s *service) closePaths() error {
	if s.paths == nil {
		return nil
	}
	return s.paths.Close()
}
