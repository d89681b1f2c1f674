package daemon

import (
	"cmp"
	"net/http"
	"net/netip"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

// pathMetrics is where the figures are; on the server's own address for
// administrators only.
const pathMetrics = "/metrics"

// newHandler answers all requests.
func (s *service) newHandler() http.Handler {
	s.mux = &api.Mux{}
	public := s.addRoutes(s.mux)
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
		Keys: s.keys, Report: s.manager.Events().Record, Keyless: c.Keyless, Names: s.serverNames(), Public: public, PublicBelow: append(toolbox.PublicBelow(), daytona.PathObjects),
		Refuse: writeRefusal,
		Rate:   float64(c.Rate), Burst: c.Burst, Observe: s.observeAnswer, Log: s.log,
		MaxRequests: maxRequests(c), MaxRequestsPerOwner: c.MaxRequestsPerOwner, Proxies: trustedProxies(c), Memory: s.memory,
		Private: api.NewRedactor(s.cfg.StateDir, s.cfg.CacheDir, s.cfg.RuntimeDir, s.cfg.Docker.RuntimeDir, c.Socket),
	})
	return s.tracer.Handler(s.gateway.Handler(s.edge.Handler(&s.mux.ServeMux)))
}

// The default of server.max_requests: one for so many bytes of memory, within bounds.
const (
	requestMemory = 512 << 10
	leastRequests = 256
	mostRequests  = 10_000
)

// maxRequests returns how many requests may be answered at a time.
func maxRequests(c config.Server) int {
	if c.MaxRequests > 0 {
		return c.MaxRequests
	}
	return int(min(max(memory.Limit()/requestMemory, leastRequests), mostRequests))
}

// newMemory returns what requests and sessions may keep in memory.
func newMemory(c config.Server) *memory.Budget {
	return memory.NewBudget(memory.Options{Total: memoryTotal(c), PerOwner: c.MemoryPerOwner})
}

// memoryTotal returns how many bytes of memory all requests may take.
func memoryTotal(c config.Server) int64 {
	return cmp.Or(c.Memory, memory.DefaultTotal(memory.Limit()))
}

// shareStatuses returns how the resources are used that owners share, for figures.
func (s *service) shareStatuses() []fairshare.Status {
	list := append(s.manager.Shares(), s.memory.Shares()...)
	if s.edge != nil { // else nothing is served yet
		list = append(list, s.edge.Shares()...)
	}
	return list
}

// trustedProxies returns the reverse proxies that are trusted, which the configuration has
// checked.
func trustedProxies(c config.Server) (list api.Proxies) {
	for _, text := range c.TrustedProxies {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			list = append(list, prefix)
		}
	}
	return list
}

// observeAnswer records each answered request.
func (s *service) observeAnswer(r *http.Request, a api.Outcome) {
	if s.metrics != nil {
		s.metrics.Request(r.Method, a.Route, a.Status, a.Took, a.Bytes)
	}
	s.tracer.Answered(r, a.Route, a.Status)
}
