package client

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Volumes manages the volumes of the server.
type Volumes struct{ client *Client }

// Create creates a volume, which stays until it is deleted. The provider "" is the server's
// choice.
//
// Invalid: the name. AlreadyExists: the name is taken. Exhausted: the number of volumes is at its
// limit. Unsupported: no such provider, or it stores no volumes.
func (g Volumes) Create(ctx context.Context, name, provider string) (sandpit.Volume, error) {
	var v sandpit.Volume
	err := g.client.doCall(ctx, call{method: http.MethodPost, path: apiPath("volumes"), in: wire.NewVolume{Name: name, Provider: provider}, out: &v})
	return v, err
}

// List returns volumes without their sizes and sandboxes. The owner "" means all that the caller
// may see.
func (g Volumes) List(ctx context.Context, owner string) ([]sandpit.Volume, error) {
	return listPages[sandpit.Volume](ctx, g.client, apiPath("volumes"), newOwnerQuery(owner), 0)
}

// Get returns a volume with its size, if that is known, and the sandboxes that mount it. The
// owner "" is the caller. NotFound.
func (g Volumes) Get(ctx context.Context, owner, name string) (sandpit.Volume, error) {
	return getJSON[sandpit.Volume](ctx, g.client, apiPath("volumes", name), newOwnerQuery(owner))
}

// Delete removes a volume with its files. The owner "" is the caller.
//
// NotFound: no such volume. Conflict: a sandbox mounts it.
func (g Volumes) Delete(ctx context.Context, owner, name string) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("volumes", name), query: newOwnerQuery(owner), untimed: true})
}
