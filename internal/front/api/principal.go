package api

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// Principal is who makes a request.
type Principal struct {
	// Owner is whose sandboxes they reach.
	Owner string
	// Admin reaches everybody's, and what belongs to the server itself.
	Admin bool
	// KeyID names the key that was shown; "" for somebody who needs none.
	KeyID string
}

// Owns reports whether p may touch what belongs to owner. What is nobody's is for
// admins only.
func (p Principal) Owns(owner string) bool { return p.Admin || p.Owner != "" && p.Owner == owner }

type principalKey struct{}

// WithPrincipal returns a context of a request by p, in whose name and with whose rights
// the manager acts.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	ctx = manager.WithAdministrator(manager.WithActor(ctx, p.Owner), p.Admin)
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalOf returns who makes the request. Unauthenticated: nobody that is known.
func PrincipalOf(ctx context.Context) (Principal, error) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	if !ok {
		return Principal{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unauthenticated, "this needs an API key"),
			"send it as the header X-Api-Key, or as Authorization: Bearer KEY")
	}
	return p, nil
}
