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

// Network returns what a sandbox may reach. NotFound.
func (g Networks) Get(ctx context.Context, id sandpit.ID) (api.Network, error) {
	return get[api.Network](ctx, g.client, path("sandboxes", string(id), "network"), nil)
}

// SetNetwork replaces what an online sandbox may reach: connections that are forbidden
// now are closed, all others go on.
//
// Conflict: it is offline, or does not run. Invalid: a rule; the old ones stay.
func (g Networks) Set(ctx context.Context, id sandpit.ID, n api.SetNetwork) (api.Network, error) {
	var out api.Network
	err := g.client.do(ctx, call{method: http.MethodPut, path: path("sandboxes", string(id), "network"), in: n, out: &out, again: true})
	return out, err
}

// NetworkLog returns the latest decisions about connections of a sandbox whose Seq is
// higher than after, oldest first. A limit of zero means all that are remembered.
func (g Networks) Log(ctx context.Context, id sandpit.ID, after int64, limit int) ([]sandpit.NetworkDecision, error) {
	const all = 2000
	if limit <= 0 || limit > all {
		limit = all
	}
	query := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(limit)}}
	d, err := get[wire.NetworkDecisions](ctx, g.client, path("sandboxes", string(id), "network", "log"), query)
	return d.Items, err
}

// followPause is how long FollowNetworkLog waits before it asks again.
const followPause = time.Second

// FollowNetworkLog gives fn what was decided after a Seq, and what is decided from then
// on, until ctx ends or fn returns an error. It asks each second.
func (g Networks) FollowLog(ctx context.Context, id sandpit.ID, after int64, fn func(sandpit.NetworkDecision) error) error {
	ticker := time.NewTicker(followPause)
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

// TestNetwork tells what would become of a connection of a sandbox to "name:port" or
// "address:port", by each address that the target stands for. Nothing is connected.
func (g Networks) Test(ctx context.Context, id sandpit.ID, target string) ([]sandpit.NetworkDecision, error) {
	d, err := get[wire.NetworkDecisions](ctx, g.client, path("sandboxes", string(id), "network", "test"), url.Values{"target": {target}})
	return d.Items, err
}
