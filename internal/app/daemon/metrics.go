package daemon

import (
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// metricsHandler serves metrics at pathMetrics without an API key. With a token requests
// need it, and may use any name of the server: pages of other sites do not know it. Without
// one they may use an address or one of names.
func metricsHandler(metrics http.Handler, token string, names []string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+pathMetrics, metrics)
	if token == "" {
		return api.HostHandler(names, mux)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare([]byte(shown), []byte(token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			api.WriteError(w, r, sandpit.Errorf(sandpit.Unauthenticated, "the token of telemetry.metrics_token is missing or wrong"))
			return
		}
		mux.ServeHTTP(w, r)
	})
}
