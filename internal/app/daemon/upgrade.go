package daemon

import (
	"context"
	"errors"
	"log/slog"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// Upgraded is the result of upgrading a suspended sandbox.
type Upgraded = gvisor.Upgraded

// UpgradeState has what is saved in the directories that cfg names outlive the version of
// the engine (see gvisor.Provider.UpgradeState). A server may run meanwhile.
func UpgradeState(ctx context.Context, cfg config.Config) ([]Upgraded, error) {
	images, err := openServerDirs(cfg, nil)
	if err != nil {
		return nil, err
	}
	options, err := gvisorOptions(ctx, surroundings{cfg: cfg, images: images, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	options.Lasting = false // nothing of what is loaded here is to stay
	p, err := gvisor.New(options)
	if err != nil {
		return nil, err
	}
	list, err := p.UpgradeState(ctx)
	return list, errors.Join(err, p.Close())
}
