package client

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit/api"
)

// Stats returns the load of the server.
func (c *Client) Stats(ctx context.Context) (api.Stats, error) {
	return getJSON[api.Stats](ctx, c, apiPath("stats"), nil)
}

// Version returns the versions of the server. It needs no key.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	return getJSON[api.Version](ctx, c, "/version", nil)
}

// Ready returns nil when the server can create sandboxes. It needs no key.
//
// Unavailable: a part of the server does not work; the text names it.
func (c *Client) Ready(ctx context.Context) error {
	return c.doCall(ctx, call{method: http.MethodGet, path: "/readyz"})
}

// Pools returns the state of the pools.
func (c *Client) Pools(ctx context.Context) ([]api.Pool, error) {
	return getItems[api.Pool](ctx, c, apiPath("pools"))
}

// Providers returns the providers and their abilities.
func (c *Client) Providers(ctx context.Context) ([]api.Provider, error) {
	return getItems[api.Provider](ctx, c, apiPath("providers"))
}
