package e2b_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
)

// newGenuine returns the URL of a proxy before a cloud that makes the guest in its sandboxes the same as E2B's: the proxy
// refuses sandpit's additions to the protocol, and removes their headers.
func newGenuine(t *testing.T, c *cloud) string {
	t.Helper()
	target, err := url.Parse(c.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if isGuestCall(r.In) {
				removeAdditions(r.Out.Header)
			}
		},
		ModifyResponse: func(res *http.Response) error {
			if isGuestCall(res.Request) {
				removeAdditions(res.Header)
			}
			return nil
		},
		FlushInterval: -1, // streams
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isGuestCall(r) && isAddition(r.URL.Path) {
			http.Error(w, `{"code":404,"message":"not found"}`, http.StatusNotFound)
			return
		}
		// Without it, the server stops reading a request whose response has begun, and the proxy breaks the response.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func isGuestCall(r *http.Request) bool { return r.Header.Get("E2b-Sandbox-Port") == "49983" }

func isAddition(path string) bool {
	return path == "/tree" || path == "/init" || strings.HasPrefix(path, "/sandpit.")
}

func removeAdditions(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, "Sandpit-") {
			h.Del(name)
		}
	}
}
