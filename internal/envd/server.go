package envd

import (
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// keyHeaders are what a guest takes for a key, or for proof of one.
var keyHeaders = []string{tokenHeader, "X-Api-Key", "Cookie"}

// HTTP implements sandpit.GuestServer.
func (c *Client) HTTP() http.RoundTripper { return server{c.auth} }

// server passes requests on to the guest.
type server struct{ guest *authorized }

// RoundTrip implements http.RoundTripper.
func (s server) RoundTrip(r *http.Request) (*http.Response, error) {
	clean := path.Clean("/" + r.URL.Path)
	if isInit(clean) {
		if r.Body != nil {
			_ = r.Body.Close() // as every round tripper does
		}
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "%s: the guest's key is not the caller's to set", clean)
	}
	r = r.Clone(r.Context())
	r.URL = &url.URL{Scheme: "http", Host: strings.TrimPrefix(base, "http://"), Path: clean, RawQuery: r.URL.RawQuery}
	r.Host = ""
	for _, name := range keyHeaders {
		r.Header.Del(name)
	}
	res, err := s.guest.RoundTrip(r)
	if err != nil {
		return nil, transportError(r.Context(), err)
	}
	return res, nil
}

// isInit reports whether a guest, however loosely it reads a path, could take it for
// the call that sets its key.
func isInit(clean string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(clean, "/"), "/")
	return strings.EqualFold(strings.TrimSpace(first), "init")
}
