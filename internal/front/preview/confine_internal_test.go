package preview

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestConfine looks at the policies of pages at every kind of address.
func TestConfine(t *testing.T) {
	t.Parallel()
	by := target{id: fuzzID, port: 8000, mode: byPath, prefix: "/p/x/8000"}
	for name, tc := range map[string]struct {
		host   string
		secure bool
		want   string
	}{
		"http":     {"previews.lan:8091", false, "connect-src http://previews.lan:8091/p/x/8000/ ws://previews.lan:8091/p/x/8000/ https: wss: data: blob:; "},
		"https":    {"previews.lan", true, "connect-src https://previews.lan/p/x/8000/ wss://previews.lan/p/x/8000/ data: blob:; "},
		"IPv6":     {"[::1]:8091", false, "connect-src 'self' data: blob:; "},
		"injected": {"a;script-src *", false, "connect-src 'self' data: blob:; "},
		"lists":    {"a,b", true, "connect-src 'self' data: blob:; "},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
		r.Host = tc.host
		if tc.secure {
			r.TLS = &tls.ConnectionState{}
		}
		h := http.Header{"Content-Security-Policy": {"default-src *"}, "Cross-Origin-Opener-Policy": {"unsafe-none"}}
		view{request: r, target: by}.confinePage(h)
		got := h.Values("Content-Security-Policy")
		if len(got) != 2 || got[0] != "default-src *" || !strings.HasPrefix(got[1], tc.want) || strings.Contains(got[1], "script") ||
			h.Get("Cross-Origin-Opener-Policy") != "noopener-allow-popups" {
			t.Errorf("%s: %q", name, h)
		}
		h = http.Header{}
		view{request: r, target: target{id: fuzzID, port: 8000, mode: byHost}}.confinePage(h)
		if len(h) > 0 {
			t.Errorf("%s by host name: %q", name, h)
		}
		r.Header.Set("Service-Worker", "script")
		if err := refuseWorker(r, by); sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("a service worker by path: %v", err)
		}
		if err := refuseWorker(r, target{mode: byHost}); err != nil {
			t.Errorf("a service worker by host name: %v", err)
		}
	}
}
