package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Keys manages the API keys of the server. It is for administrators.
type Keys struct{ client *Client }

// List returns the API keys without their secrets.
func (g Keys) List(ctx context.Context) ([]api.Key, error) {
	return listPages[api.Key](ctx, g.client, apiPath("keys"), url.Values{}, 0)
}

// Create creates an API key for an owner's sandboxes; a ttl of zero means that it does not
// expire. With admin, it has all rights.
func (g Keys) Create(ctx context.Context, owner, name string, ttl time.Duration, admin bool) (api.MadeKey, error) {
	var k api.MadeKey
	err := g.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("keys"), out: &k,
		in: wire.NewKey{Name: name, Owner: owner, Admin: admin, TTL: ttl.Seconds()},
	})
	return k, err
}

// Delete deletes an API key. NotFound.
func (g Keys) Delete(ctx context.Context, id string) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("keys", id)})
}
