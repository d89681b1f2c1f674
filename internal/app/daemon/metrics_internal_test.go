package daemon

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestMetricsHandler(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef"
	for _, test := range []struct {
		name, token, path, host, authorization string
		want                                   int
	}{
		{"an address", "", "/metrics", "127.0.0.1:9464", "", http.StatusOK},
		{"localhost", "", "/metrics", "localhost:9464", "", http.StatusOK},
		{"a name of the server", "", "/metrics", "sandpit.example", "", http.StatusOK},
		{"another name", "", "/metrics", "evil.example:9464", "", http.StatusForbidden},
		{"another name with a token that is not needed", "", "/metrics", "evil.example", "Bearer " + token, http.StatusForbidden},
		{"another path", "", "/v1/sandboxes", "127.0.0.1", "", http.StatusNotFound},
		{"no token", token, "/metrics", "127.0.0.1", "", http.StatusUnauthorized},
		{"a wrong token", token, "/metrics", "127.0.0.1", "Bearer 0123456789abcdee", http.StatusUnauthorized},
		{"another scheme", token, "/metrics", "127.0.0.1", "Basic " + token, http.StatusUnauthorized},
		{"the token by any name", token, "/metrics", "prometheus.example", "bearer " + token, http.StatusOK},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
			ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9464})
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, test.path, nil)
			r.Host, r.RemoteAddr = test.host, "127.0.0.1:40000"
			if test.authorization != "" {
				r.Header.Set("Authorization", test.authorization)
			}
			w := httptest.NewRecorder()
			metricsHandler(metrics, test.token, []string{"sandpit.example"}).ServeHTTP(w, r)
			if w.Code != test.want {
				t.Errorf("status %d, want %d: %s", w.Code, test.want, w.Body)
			}
		})
	}
}
