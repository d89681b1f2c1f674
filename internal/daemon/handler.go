package daemon

import (
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
)

// pathMetrics is where the figures are; on the server's own address for
// administrators only.
const pathMetrics = "/metrics"

// handler answers all requests.
func (s *service) handler() http.Handler {
	s.mux = &api.Mux{}
	public := s.routes(s.mux)
	if s.metrics != nil {
		figures := s.metrics.Handler()
		s.mux.HandleFunc("GET "+pathMetrics, func(w http.ResponseWriter, r *http.Request) {
			p, err := api.PrincipalOf(r.Context())
			if err == nil && !p.Admin {
				err = sandpit.Errorf(sandpit.PermissionDenied, "see the metrics: this is for administrators")
			}
			if err != nil {
				api.WriteError(w, r, err)
				return
			}
			figures.ServeHTTP(w, r)
		})
	}
	c := s.cfg.Server
	s.edge = api.NewEdge(api.EdgeOptions{
		Keys: s.keys, Report: s.manager.Report, Keyless: c.Keyless, Names: s.names(), Public: public, Refuse: refuse,
		Rate: float64(c.Rate), Burst: c.Burst, Observe: s.observe, Log: s.log,
	})
	return s.tracer.Handler(s.gateway.Handler(s.edge.Handler(&s.mux.ServeMux)))
}

// observe hears of each request that was answered.
func (s *service) observe(r *http.Request, a api.Answer) {
	if s.metrics != nil {
		s.metrics.Request(r.Method, a.Route, a.Status, a.Took, a.Bytes)
	}
	s.tracer.Answered(r, a.Route, a.Status)
}
