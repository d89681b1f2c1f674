package native

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// access checks the rights of clients, and records actions in the audit trail.
type access struct{ report func(manager.Report) }

// requireAdmin returns an error, which it reports, unless the client is an administrator.
//
// PermissionDenied. Unauthenticated.
func (a access) requireAdmin(ctx context.Context, action string) error {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return err
	}
	if p.Admin {
		return nil
	}
	err = sandpit.Errorf(sandpit.PermissionDenied, "%s: only administrators may do this", action)
	a.report(manager.Report{Actor: p.Owner, Action: action, Err: err, Restricted: true})
	return err
}

// reportAction records an action of the client in the audit trail.
func (a access) reportAction(ctx context.Context, action string, args map[string]string, err error) {
	p, _ := api.PrincipalOf(ctx) // the operation has checked it
	a.report(manager.Report{Actor: p.Owner, Action: action, Args: args, Err: err})
}

// actingOwner returns the owner that a request acts for: the client's own, or the given one
// if the client is an administrator. action names what a request for another owner does.
func (a access) actingOwner(ctx context.Context, owner, action string) (string, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil || owner == "" || owner == p.Owner {
		return p.Owner, err
	}
	return owner, a.requireAdmin(ctx, action)
}

// listOwner returns the owner whose things a request lists, and whether it lists those of
// all owners, as administrators do by default. action names what a request for another
// owner does.
func (a access) listOwner(ctx context.Context, owner, action string) (of string, all bool, err error) {
	p, err := api.PrincipalOf(ctx)
	switch {
	case err != nil:
		return "", false, err
	case p.Admin:
		return owner, owner == "", nil
	case owner != "" && owner != p.Owner:
		return "", false, a.requireAdmin(ctx, action)
	}
	return p.Owner, false, nil
}
