package preview

import (
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// All previews by path share one origin, for which browsers let each page do to every other
// one what it likes. What follows takes away what can be taken away. Storage remains, and
// what a page may learn of addresses: only host names keep pages from each other.

// plainHost is a host as sources of a policy can name it: not an IPv6 address.
var plainHost = pattern.New(`^[A-Za-z0-9.-]+(:[0-9]{1,5})?$`)

// confinePage has a browser keep a page to its own path: it may neither ask for nor show, send
// to or start what is below another's, and has no hold of windows. The policy comes beside
// the sandbox's own, and both count.
func (v view) confinePage(h http.Header) {
	r, t := v.request, v.target
	if t.mode != byPath {
		return
	}
	own := "'self'"
	if secure := v.isEncrypted(); plainHost().MatchString(r.Host) {
		own = "http://" + r.Host + t.prefix + "/ ws://" + r.Host + t.prefix + "/ https: wss:"
		if secure { // else all hosts would be the own one, too
			own = "https://" + r.Host + t.prefix + "/ wss://" + r.Host + t.prefix + "/"
		}
	}
	own += " data: blob:"
	var policy strings.Builder
	for _, name := range []string{"connect-src", "frame-src", "object-src", "worker-src", "form-action"} {
		policy.WriteString(name + " " + own + "; ")
	}
	h.Add("Content-Security-Policy", strings.TrimSuffix(policy.String(), "; "))
	// A page has no access to a window that it opens, even with the same origin.
	h.Set("Cross-Origin-Opener-Policy", "noopener-allow-popups")
}

// refuseWorker refuses service workers: a service worker sees the addresses of all pages of
// the origin, whatever its scope.
func refuseWorker(r *http.Request, t target) error {
	if t.mode != byPath || len(r.Header.Values("Service-Worker")) == 0 {
		return nil
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "there are no service workers in previews by path, since they share an origin"),
		"open the preview by its host name")
}
