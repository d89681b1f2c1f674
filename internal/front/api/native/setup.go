package native

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// cloneTime is how long a clone may take; the making as a whole has its own limit.
const cloneTime = time.Hour

// setup is what a new sandbox needs before it counts as running, nil if there is
// nothing.
func setup(c wire.Create, spec sandpit.Spec) func(context.Context, sandpit.Instance) error {
	secrets := manager.NetworkSecrets(c.NetworkSecrets)
	if c.Repository == nil {
		return secrets
	}
	return func(ctx context.Context, i sandpit.Instance) error {
		if secrets != nil { // what is cloned may need them
			if err := secrets(ctx, i); err != nil {
				return err
			}
		}
		return clone(ctx, i.Guest(), *c.Repository, spec)
	}
}

func clone(ctx context.Context, g sandpit.Guest, r wire.Repository, spec sandpit.Spec) error {
	w, err := workspace.New(g, workspace.Options{User: spec.User, Dir: spec.WorkDir, Timeout: cloneTime})
	if err != nil {
		return err
	}
	_, err = w.Clone(ctx, workspace.Repository{
		URL: r.URL, Ref: r.Ref, Dir: r.Dir, Depth: r.Depth, Username: r.Username, Password: r.Password,
	})
	return err
}
