package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
)

// Tokens lists and revokes the tokens that open sandboxes without an API key.
type Tokens struct{ client *Client }

// List returns the valid tokens: those of the caller's sandboxes or, for an administrator, of
// all. Owner and id restrict the list unless they are "".
func (g Tokens) List(ctx context.Context, owner string, id sandpit.ID) ([]api.Token, error) {
	query := url.Values{}
	if owner != "" {
		query.Set("owner", owner)
	}
	if id != "" {
		query.Set("sandbox", string(id))
	}
	return listPages[api.Token](ctx, g.client, apiPath("tokens"), query, 0)
}

// Revoke ends a token by its ID, and closes what it has opened. NotFound.
func (g Tokens) Revoke(ctx context.Context, id string) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("tokens", id)})
}

// RevokeAll ends all tokens, signed URLs, preview URLs and tickets of a sandbox, and closes what
// they have opened. Public ports stay public. NotFound.
func (g Tokens) RevokeAll(ctx context.Context, id sandpit.ID) error {
	return g.client.doCall(ctx, call{method: http.MethodPost, path: apiPath("sandboxes", string(id), "tokens", "revoke"), idempotent: true})
}
