package preview

import (
	"net/http"
	"strings"
)

// view is how the viewer of a request sees a port. It rewrites what a program says in headers of
// itself, and adds what keeps its pages apart from others.
type view struct {
	request *http.Request
	target  target
	places  Places
	frames  []string // see Options.Frames
}

func (g *Gateway) newView(r *http.Request, t target) view {
	return view{request: r, target: t, places: g.o.Places(), frames: g.o.Frames}
}

// isEncrypted reports whether the viewer's connection is encrypted, here or by a trusted
// proxy.
func (v view) isEncrypted() bool {
	return v.request.TLS != nil || v.target.mode == byHost && v.places.Scheme == "https" || v.target.mode == byPath && strings.HasPrefix(v.places.Paths, "https:")
}

// scheme returns the scheme of the viewer's URL.
func (v view) scheme() string {
	if v.isEncrypted() {
		return "https"
	}
	return "http"
}

// setTokenCookie gives a browser the token as a cookie, for this port only.
func (v view) setTokenCookie(w http.ResponseWriter, p pass) {
	c := &http.Cookie{ //nolint:gosec // it is as secure as the connection is
		Name: plainCookie, Value: p.fresh, Path: v.target.prefix + "/", Expires: p.until,
		HttpOnly: true, Secure: v.isEncrypted(), SameSite: http.SameSiteLaxMode,
	}
	if c.Secure && v.target.mode == byHost {
		c.Name = secureCookie
	}
	http.SetCookie(w, c)
}

// setForwarded sets headers that tell a program its external address, but not its viewer.
func (v view) setForwarded(h http.Header) {
	h.Set("X-Forwarded-Proto", v.scheme())
	h.Set("X-Forwarded-Host", v.request.Host)
	if v.target.prefix != "" {
		h.Set("X-Forwarded-Prefix", v.target.prefix)
	}
	if len(h["User-Agent"]) == 0 {
		h["User-Agent"] = nil // else Go names itself
	}
}
