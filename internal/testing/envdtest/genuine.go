package envdtest

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
)

// StartGenuine starts a proxy before a server of sandpit in the role of E2B's cloud, and returns its URL. It makes the
// guest in sandboxes the same as E2B's: the proxy refuses sandpit's additions to the protocol, and removes their headers.
// It ends with the test.
func StartGenuine(tb testing.TB, cloud string) string {
	tb.Helper()
	target, err := url.Parse(cloud)
	if err != nil {
		tb.Fatal(err)
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
		FlushInterval: -1,                                                      // streams
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // clients cancel calls
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isGuestCall(r) && isAddition(r.URL.Path) {
			http.Error(w, `{"code":404,"message":"not found"}`, http.StatusNotFound)
			return
		}
		// Without it, the server stops reading a request whose response has begun, and the proxy breaks the response.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			tb.Error(err)
		}
		proxy.ServeHTTP(w, r)
	}))
	tb.Cleanup(server.Close)
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
