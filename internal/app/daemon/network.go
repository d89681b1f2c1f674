package daemon

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
	"github.com/sandpit-dev/sandpit/internal/reach/network/route"
)

// fillNetwork gives a policy what the configuration says, where its request says
// nothing.
func fillNetwork(cfg config.Config, p *sandpit.NetworkPolicy) {
	if cfg.Sandbox.NetworkEnabled {
		p.Online = true
	}
	cfg.Network.Fill(p)
}

// boundNetwork returns the function that keeps policies within the configured ceiling, and
// inside addresses to callers that may open them.
func boundNetwork(cfg config.Config) (func(p sandpit.NetworkPolicy, administrator bool) (sandpit.NetworkPolicy, error), error) {
	ceiling, err := cfg.Network.Ceiling()
	if err != nil {
		return nil, err
	}
	return func(p sandpit.NetworkPolicy, administrator bool) (sandpit.NetworkPolicy, error) {
		return ceiling.Bound(p, policy.Requester{Administrator: administrator, IsLocal: route.IsLocal})
	}, nil
}
