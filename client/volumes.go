package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Volumes manages the volumes of the server.
type Volumes struct{ client *Client }

// Create makes a volume, which stays until it is deleted. The provider "" is the
// server's choice.
//
// Invalid: the name. AlreadyExists: it is taken. Exhausted: there are as many as there
// may be. Unsupported: no such provider, or it keeps no volumes.
func (g Volumes) Create(ctx context.Context, name, provider string) (sandpit.Volume, error) {
	var v sandpit.Volume
	err := g.client.do(ctx, call{method: http.MethodPost, path: path("volumes"), in: wire.NewVolume{Name: name, Provider: provider}, out: &v})
	return v, err
}

// Volumes lists volumes, without sizes and without who has them. The owner "" is
// everybody that can be seen.
func (g Volumes) List(ctx context.Context, owner string) ([]sandpit.Volume, error) {
	return pages[sandpit.Volume](ctx, g.client, path("volumes"), ownerQuery(owner), 0)
}

// Volume returns a volume with its size, if that is known, and the sandboxes that have
// it. The owner "" is the caller. NotFound.
func (g Volumes) Get(ctx context.Context, owner, name string) (sandpit.Volume, error) {
	return get[sandpit.Volume](ctx, g.client, path("volumes", name), ownerQuery(owner))
}

// DeleteVolume removes a volume with all of its files. The owner "" is the caller.
//
// NotFound: there is none. Conflict: a sandbox has it.
func (g Volumes) Delete(ctx context.Context, owner, name string) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("volumes", name), query: ownerQuery(owner), untimed: true})
}

func ownerQuery(owner string) url.Values {
	query := url.Values{}
	if owner != "" {
		query.Set("owner", owner)
	}
	return query
}
