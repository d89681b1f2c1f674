package daemon

import (
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
	"github.com/sandpit-dev/sandpit/internal/front/api/e2b"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
)

// LocalOwner is the owner of what requests without a key make.
const LocalOwner = api.LocalOwner

// e2bOptions say what E2B's clients find here.
func (s *service) e2bOptions() e2b.Options {
	c := s.cfg.E2B
	return e2b.Options{
		Manager: s.manager, Store: s.store, Keys: s.keys, Tokens: s.gateway,
		Templates: c.Templates, Cached: s.cachedTemplate, Default: s.cfg.Sandbox.Image, Uploads: s.uploads,
		Log:      s.log,
		Internet: c.Internet, Public: c.Public, HostAccess: s.hostAccess(),
		Limits: sandpit.Resources{
			Memory: s.cfg.Sandbox.MemoryLimit, CPUs: s.cfg.Sandbox.CPULimit, Disk: s.cfg.Sandbox.DiskLimit, PIDs: s.cfg.Sandbox.PIDsLimit,
		},
		Memory: s.memory,
		Domain: func() string { return s.previewPlaces().Host }, MaxBody: s.cfg.Server.MaxBody,
	}
}

// previewRules are how the gateway treats a sandbox.
func previewRules(b sandpit.Sandbox) preview.Rules {
	p := e2b.Ports(b)
	return preview.Rules{
		E2B: p.Made, Private: p.Private, Wakes: p.Wakes, Host: p.Host, HTTPS: p.HTTPS,
		Public: daytona.Ports(b).Public,
	}
}

// writeRefusal writes the error of a refused request in the form its client expects.
func writeRefusal(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case e2b.Is(r.URL.Path):
		e2b.WriteError(w, r, err)
	case toolbox.Is(r.URL.Path):
		toolbox.WriteError(w, r, err)
	case daytona.Is(r.URL.Path):
		daytona.WriteError(w, r, err)
	default:
		api.WriteError(w, r, err)
	}
}

// serverNames returns the host names of the server. E2B's clients put "api" before their
// domain.
func (s *service) serverNames() []string {
	if s.cfg.Preview.Domain == config.None {
		return s.cfg.Server.Names
	}
	return append([]string{"api." + previewName(s.cfg.Preview.Domain)}, s.cfg.Server.Names...)
}
