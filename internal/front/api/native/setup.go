package native

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// cloneTimeout is the time limit of a clone. Creating the sandbox as a whole has its own limit.
const cloneTimeout = time.Hour

// newSetup returns what prepares a new sandbox before it counts as running, or nil.
func newSetup(c wire.CreateRequest) manager.Setup {
	secrets := manager.NetworkSecrets(c.NetworkSecrets)
	if c.Repository == nil {
		return secrets
	}
	return func(ctx context.Context, i sandpit.Instance, spec sandpit.Spec) error {
		if secrets != nil { // the clone may need them
			if err := secrets(ctx, i, spec); err != nil {
				return err
			}
		}
		return cloneRepository(ctx, i.Guest(), *c.Repository, spec)
	}
}

func cloneRepository(ctx context.Context, g sandpit.Guest, r wire.Repository, spec sandpit.Spec) error {
	w, err := workspace.New(g, workspace.Options{User: spec.User, Dir: spec.WorkDir, Timeout: cloneTimeout})
	if err != nil {
		return err
	}
	_, err = w.Clone(ctx, workspace.Repository{
		URL: r.URL, Ref: r.Ref, Dir: r.Dir, Depth: r.Depth, Username: r.Username, Password: r.Password,
	})
	return err
}
