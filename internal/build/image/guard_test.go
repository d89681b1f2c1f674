package image

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// guarded is what an owner sees of a server that may ask some registries inside.
func guarded(tb testing.TB, inside ...string) View {
	tb.Helper()
	return newClientStore(tb, Options{Sharing: &Sharing{Guard: NewGuard(inside)}}).For("alice")
}

func (h *hubServer) asked() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for key, count := range h.counts {
		if strings.HasPrefix(key, "GET ") || strings.HasPrefix(key, "before ") {
			n += count
		}
	}
	return n
}

// TestGuard asks for images of registries that only the server reaches.
func TestGuard(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "x", "v1", simple(t))
	port := h.host()[strings.LastIndexByte(h.host(), ':'):]
	for name, host := range map[string]string{
		"loopback": h.host(), "name": "localhost" + port, "other loopback": "127.8.9.10" + port, "unspecified": "0.0.0.0" + port, "IPv6": "[::1]" + port,
		"IPv4 in IPv6": "[::ffff:127.0.0.1]" + port, "metadata": "169.254.169.254", "private": "10.0.0.1:5000", "shared": "100.64.0.1", "unique local": "[fd00::1]:5000",
		"NAT64": "[64:ff9b::7f00:1]" + port,
	} {
		s := guarded(t, "10.1.0.0/16", "localhost:1")
		_, err := s.Resolve(t.Context(), sandpit.Image(host+"/x:v1"), nil)
		if sandpit.CodeOf(err) != sandpit.PermissionDenied && sandpit.CodeOf(err) != sandpit.Invalid || h.asked() > 0 {
			t.Errorf("%s: %v, asked %d times", name, err, h.asked())
		}
		if sandpit.CodeOf(err) == sandpit.PermissionDenied && !strings.Contains(sandpit.HintOf(err), "image.registries") {
			t.Errorf("%s: hint %q of %v", name, sandpit.HintOf(err), err)
		}
	}
	for _, inside := range []string{h.host(), "127.0.0.1", "127.0.0.0/8", h.host() + "/path"} {
		_ = resolved(t, guarded(t, inside), h.ref("x:v1"))
	}
	// The administrator is kept from nothing, and what is here is asked for nowhere.
	s := guarded(t).store
	_ = resolved(t, s, h.ref("x:v1"))
	_ = resolved(t, s.For("alice"), h.ref("x:v1"))
	if _, err := s.puller.latestDigest(t.Context(), "alice", mustReference(t, string(h.ref("x:v1")))); sandpit.CodeOf(err) != sandpit.PermissionDenied {
		t.Errorf("whether there is a newer one: %v", err)
	}
}

func mustReference(tb testing.TB, text string) reference {
	tb.Helper()
	r, err := parseReference(text)
	must(tb, err)
	return r
}

// TestGuardElsewhere has a registry that may be asked send the server to one that may not:
// for a manifest, for a blob, and for a token.
func TestGuardElsewhere(t *testing.T) {
	t.Parallel()
	for name, lead := range map[string]func(w http.ResponseWriter, r *http.Request, to string) bool{
		"manifest": func(w http.ResponseWriter, r *http.Request, to string) bool {
			http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		},
		"blob": func(w http.ResponseWriter, r *http.Request, to string) bool {
			if strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
				return true
			}
			return false
		},
		"token": func(w http.ResponseWriter, _ *http.Request, to string) bool {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token"`, to))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, victim := newHub(t), newHub(t)
			for _, one := range []*hubServer{h, victim} {
				one.push(t, "x", "v1", simple(t))
			}
			for _, to := range []string{victim.URL, strings.Replace(victim.URL, "127.0.0.1", "localhost", 1)} {
				h.set(func(w http.ResponseWriter, r *http.Request) bool { return lead(w, r, to) })
				_, err := guarded(t, h.host()).Resolve(t.Context(), h.ref("x:v1"), nil)
				if sandpit.CodeOf(err) != sandpit.PermissionDenied || victim.asked() > 0 {
					t.Errorf("to %s: %v, asked %d times", to, err, victim.asked())
				}
			}
		})
	}
}

// TestGuardChecks looks at what engines are asked to fetch.
func TestGuardChecks(t *testing.T) {
	t.Parallel()
	g := NewGuard([]string{"reg.lan:5000", "10.1.0.0/16", "[fd00::1]:5000"})
	for registry, ok := range map[string]bool{
		"docker.io": true, "reg.lan:5000": true, "REG.lan:5000": true, "10.1.2.3": true, "10.1.2.3:80": true, "[fd00::1]:5000": true, "1.1.1.1": true,
		"[2606:4700::1]:5000": true, "10.2.0.1": false, "[fd00::1]:5001": false, "[fd00::2]:5000": false, "localhost": false, "localhost:5000": false,
		"127.0.0.1": false, "169.254.169.254": false, "[::1]": false, "[::ffff:10.0.0.1]": false,
	} {
		err := g.Check(t.Context(), registry)
		if (err == nil) != ok || err != nil && sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("%s: %v", registry, err)
		}
	}
	if err := (*Guard)(nil).Check(t.Context(), "127.0.0.1"); err != nil {
		t.Errorf("without a guard: %v", err)
	}
	if g.isAllowed(netip.Addr{}) || g.isAllowed(netip.MustParseAddr("224.0.0.1")) {
		t.Error("a malformed address is allowed")
	}
	for ref, want := range map[string]string{
		"": "", "host": "", "./x": "", "/a.tar": "", "python:3": "docker.io", "localhost:5000/x:1": "localhost:5000", "ghcr.io/a/b@sha256:x": "",
	} {
		if got := RegistryOf(sandpit.Image(ref)); got != want {
			t.Errorf("%q is of %q, want %q", ref, got, want)
		}
	}
}
