package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Networks reads and changes the network rules of sandboxes.
type Networks struct{ client *Client }

// Get returns the network rules and counters of a sandbox. NotFound.
func (g Networks) Get(ctx context.Context, id sandpit.ID) (api.Network, error) {
	return getJSON[api.Network](ctx, g.client, apiPath("sandboxes", string(id), "network"), nil)
}

// Set replaces the network rules of an online sandbox. Connections that are forbidden now are
// closed, all others stay open.
//
// Conflict: the sandbox is offline, or does not run. Invalid: a rule; the old rules stay.
func (g Networks) Set(ctx context.Context, id sandpit.ID, n api.SetNetwork) (api.Network, error) {
	var out api.Network
	err := g.client.doCall(ctx, call{method: http.MethodPut, path: apiPath("sandboxes", string(id), "network"), in: n, out: &out, idempotent: true})
	return out, err
}

// Log returns the latest decisions about connections of a sandbox whose Seq is higher than after,
// oldest first. A limit of zero means all that the server has.
func (g Networks) Log(ctx context.Context, id sandpit.ID, after int64, limit int) ([]sandpit.NetworkDecision, error) {
	const all = 2000
	if limit <= 0 || limit > all {
		limit = all
	}
	query := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(limit)}}
	d, err := getJSON[wire.NetworkDecisions](ctx, g.client, apiPath("sandboxes", string(id), "network", "log"), query)
	return d.Items, err
}

// networkLogInterval is how often FollowLog sends a request.
const networkLogInterval = time.Second

// FollowLog calls fn with the decisions after a Seq and with each new one, until ctx ends or fn
// returns an error. It sends a request each second.
func (g Networks) FollowLog(ctx context.Context, id sandpit.ID, after int64, fn func(sandpit.NetworkDecision) error) error {
	ticker := time.NewTicker(networkLogInterval)
	defer ticker.Stop()
	for {
		list, err := g.client.Networks.Log(ctx, id, after, 0)
		if err != nil {
			return err
		}
		for _, d := range list {
			if err := fn(d); err != nil {
				return err
			}
			after = max(after, d.Seq)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Test returns the decisions about a connection from a sandbox to "name:port" or "address:port",
// one for each address of the target. Nothing is connected.
func (g Networks) Test(ctx context.Context, id sandpit.ID, target string) ([]sandpit.NetworkDecision, error) {
	d, err := getJSON[wire.NetworkDecisions](ctx, g.client, apiPath("sandboxes", string(id), "network", "test"), url.Values{"target": {target}})
	return d.Items, err
}
