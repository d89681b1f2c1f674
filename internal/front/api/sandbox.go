package api

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// Find returns a sandbox that the maker of the request may touch, also one that was
// deleted a short while ago.
//
// Unauthenticated: nobody knows who makes the request. NotFound: there is no such
// sandbox, or it is somebody else's; the two look alike.
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

// Use returns a handle of a running sandbox that the maker of the request may touch.
// The caller must Release it. Its context ends with ctx, or with a cause that tells
// why the sandbox was taken away.
//
// Errors are those of Find and of manager.Use: Gone, Conflict, Unavailable.
func Use(ctx context.Context, m *manager.Manager, id sandpit.ID) (*manager.Handle, error) {
	if _, err := Find(ctx, m, id); err != nil {
		return nil, err
	}
	return m.Use(ctx, id)
}

// UseResumed is Use that first resumes a sandbox that is paused and starts one that is stopped: for
// tools, whose callers know of no states. Errors also as manager.Wake: Exhausted.
func UseResumed(ctx context.Context, m *manager.Manager, id sandpit.ID) (*manager.Handle, error) {
	if _, err := Find(ctx, m, id); err != nil {
		return nil, err
	}
	return m.Wake(ctx, id)
}
