package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/sandpit-dev/sandpit/api"
)

// Queue lists and repairs the operations that the server performs later.
type Queue struct{ client *Client }

// List returns the pending operations or, with dead, those that failed permanently.
func (g Queue) List(ctx context.Context, dead bool) ([]api.Message, error) {
	query := url.Values{}
	if dead {
		query.Set("state", "dead")
	}
	return listPages[api.Message](ctx, g.client, apiPath("queue"), query, 0)
}

// Retry tries an operation again that failed permanently. NotFound, Conflict.
func (g Queue) Retry(ctx context.Context, id string) error {
	return g.client.doCall(ctx, call{method: http.MethodPost, path: apiPath("queue", id, "retry")})
}

// Drop removes an operation that failed permanently. NotFound.
func (g Queue) Drop(ctx context.Context, id string) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("queue", id)})
}
