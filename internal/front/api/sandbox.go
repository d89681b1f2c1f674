package api

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// Find returns a sandbox that the client may use, also one that was deleted recently.
//
// Unauthenticated: the request has no principal. NotFound: there is no such sandbox, or it
// belongs to another owner; the errors are equal.
func Find(ctx context.Context, m *manager.Manager, id sandpit.ID) (sandpit.Sandbox, error) {
	p, err := PrincipalOf(ctx)
	if err != nil {
		return sandpit.Sandbox{}, err
	}
	s, err := m.Get(id)
	if err != nil {
		return sandpit.Sandbox{}, err
	}
	if !p.Owns(s.Lease.Owner) {
		return sandpit.Sandbox{}, sandpit.Errorf(sandpit.NotFound, "Sandbox %.64s not found", string(id))
	}
	return s, nil
}

// Use returns a handle of a running sandbox that the client may use. The caller must release
// it. Its context ends with ctx, or with a cause when the sandbox stops.
//
// Errors are those of Find and of manager.Use: Gone, Conflict, Unavailable.
func Use(ctx context.Context, m *manager.Manager, id sandpit.ID) (*manager.Handle, error) {
	if _, err := Find(ctx, m, id); err != nil {
		return nil, err
	}
	return m.Use(ctx, id)
}

// UseResumed is Use that first resumes a paused sandbox and starts a stopped one, for tools,
// whose callers do not handle states. Errors also as manager.Wake: Exhausted.
func UseResumed(ctx context.Context, m *manager.Manager, id sandpit.ID) (*manager.Handle, error) {
	if _, err := Find(ctx, m, id); err != nil {
		return nil, err
	}
	return m.Wake(ctx, id)
}
