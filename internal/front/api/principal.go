package api

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// Principal is the authenticated client of a request.
type Principal struct {
	// Owner is the owner whose sandboxes the client may use.
	Owner string
	// Admin gives access to the sandboxes of all owners and to the server itself.
	Admin bool
	// KeyID is the ID of the client's key; "" for a client without a key.
	KeyID string
}

// Owns reports whether p may use what belongs to owner. What has no owner is for
// administrators only.
func (p Principal) Owns(owner string) bool { return p.Admin || p.Owner != "" && p.Owner == owner }

type principalKey struct{}

// WithPrincipal returns a context of a request by p. The manager acts in the name and with the
// rights of p.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	ctx = manager.WithAdministrator(manager.WithActor(ctx, p.Owner), p.Admin)
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalOf returns the principal of a request. Unauthenticated: it has none.
func PrincipalOf(ctx context.Context) (Principal, error) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	if !ok {
		return Principal{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unauthenticated, "this needs an API key"),
			"send it as the header X-Api-Key, or as Authorization: Bearer KEY")
	}
	return p, nil
}
