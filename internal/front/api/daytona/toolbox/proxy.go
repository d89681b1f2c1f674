package toolbox

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// registerProxy adds the call that forwards requests to a port of the sandbox.
func (s *Server) registerProxy(mux api.Router) {
	for _, pattern := range []string{"/proxy/{port}", "/proxy/{port}/{path...}"} {
		s.handle(mux, pattern, machineHandlers{}.forwardToPort)
	}
}

// forwardToPort forwards a request to a program that listens at a port of the sandbox, as
// previews do, and returns its response. Protocol upgrades work, too.
func (machineHandlers) forwardToPort(ctx context.Context, c *call) error {
	port, err := c.pathPort()
	if err != nil {
		return err
	}
	_, written, _ := strings.Cut(c.r.URL.EscapedPath(), "/proxy/")
	_, written, _ = strings.Cut(written, "/")
	// Otherwise the server would begin to read the body itself while the program's response begins.
	c.w.enableFullDuplex(c.r)
	defer c.w.drainBody()
	var failure error
	proxy := httputil.ReverseProxy{
		Transport:     c.sandbox.HTTP(port),
		FlushInterval: -1, // a program may send events
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "http", Host: "localhost", Path: "/" + c.r.PathValue("path"), RawPath: "/" + written, RawQuery: p.In.URL.RawQuery}
			p.Out.Host = p.In.Host
			removeCredentials(p.Out)
		},
		ModifyResponse: func(res *http.Response) error {
			removeOriginHeaders(res.Header)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failure = err },
	}
	proxy.ServeHTTP(c.w, c.r.WithContext(ctx))
	if sandpit.CodeOf(failure) == sandpit.Unavailable {
		return withStatus(sandpit.Errorf(sandpit.Unavailable, "no program answers at port %d: %w", port, failure), http.StatusBadGateway, "BAD_GATEWAY")
	}
	return failure
}

// removeCredentials removes from a request what is for this server and not for the sandbox.
func removeCredentials(r *http.Request) {
	for name, values := range r.Header {
		values = slices.DeleteFunc(values, isSecret)
		if r.Header[name] = values; len(values) == 0 || strings.HasPrefix(name, "X-Daytona-") || strings.HasPrefix(name, "X-Forwarded") {
			delete(r.Header, name)
		}
	}
	for _, name := range []string{"Authorization", "X-Api-Key", "Cookie", "Proxy-Authorization", "Forwarded", "Via", "X-Real-Ip"} {
		r.Header.Del(name)
	}
	query := r.URL.Query()
	if query.Has(queryToken) {
		query.Del(queryToken)
		r.URL.RawQuery = query.Encode()
	}
}

// isSecret reports whether the value of a header is an API key or a token of this server.
func isSecret(value string) bool {
	if _, rest, found := strings.Cut(value, " "); found {
		value = strings.TrimSpace(rest) // of a scheme
	}
	return api.IsKey(value) || strings.HasPrefix(value, token.Prefix)
}

// removeOriginHeaders removes from a response what would change more than itself: it comes from
// the origin of the API, where no page and no cookie of a sandbox may be.
func removeOriginHeaders(h http.Header) {
	for _, name := range []string{
		"Set-Cookie", "Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "Service-Worker-Allowed", "Nel", "Report-To", "Reporting-Endpoints",
		"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "X-Accel-Redirect", "X-Accel-Buffering", "X-Sendfile", "Proxy-Authenticate",
		"WWW-Authenticate", "Refresh", "Speculation-Rules", "Set-Login",
	} {
		h.Del(name)
	}
	cache := h.Values("Cache-Control")
	setSafeHeaders(h)
	if len(cache) > 0 {
		h["Cache-Control"] = cache
	}
}

// setSafeHeaders keeps browsers from running or storing a response of a sandbox.
func setSafeHeaders(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
