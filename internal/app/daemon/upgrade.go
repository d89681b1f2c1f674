package daemon

import (
	"context"
	"errors"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
)

// UpgradeState makes the saved state in the directories that cfg names independent of the versions
// of engines (see registration.Provider.UpgradeState). A server may run meanwhile.
func UpgradeState(ctx context.Context, cfg config.Config) (list []registration.Upgraded, err error) {
	images, err := openServerDirs(cfg, nil)
	if err != nil {
		return nil, err
	}
	around := newSurroundings(cfg)
	around.Images = images
	for _, p := range registrations() {
		if p.UpgradeState != nil {
			upgraded, failed := p.UpgradeState(ctx, around)
			list, err = append(list, upgraded...), errors.Join(err, failed)
		}
	}
	return list, err
}
