package client

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Builds reads builds of templates and their logs.
type Builds struct{ client *Client }

// Get returns a build of the caller. NotFound.
func (g Builds) Get(ctx context.Context, id sandpit.BuildID) (sandpit.TemplateBuild, error) {
	return getJSON[sandpit.TemplateBuild](ctx, g.client, apiPath("builds", string(id)), nil)
}

// Log returns at most 1000 entries of a build's log, from the one after the given number on.
// NotFound.
func (g Builds) Log(ctx context.Context, id sandpit.BuildID, after int64) ([]sandpit.BuildLog, error) {
	query := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {"1000"}}
	page, err := getJSON[wire.Page[sandpit.BuildLog]](ctx, g.client, apiPath("builds", string(id), "log"), query)
	return page.Items, err
}

// Wait returns a build when it has ended, successful or not. It calls onLog with each line of the
// log.
func (g Builds) Wait(ctx context.Context, id sandpit.BuildID, onLog func(sandpit.BuildLog)) (sandpit.TemplateBuild, error) {
	var after int64
	for {
		b, err := g.client.Builds.Get(ctx, id) // before the log, so that nothing is missed
		if err != nil {
			return b, err
		}
		for {
			list, err := g.client.Builds.Log(ctx, id, after)
			if err != nil {
				return b, err
			}
			for _, l := range list {
				onLog(l)
				after = l.Seq
			}
			if len(list) == 0 {
				break
			}
		}
		if b.Status.Ended() {
			return b, nil
		}
		select {
		case <-time.After(buildPollInterval):
		case <-ctx.Done():
			return b, ctx.Err()
		}
	}
}

// List returns the newest 100 builds of a template of the caller, without their recipes, newest
// first.
func (g Builds) List(ctx context.Context, ref string) ([]sandpit.TemplateBuild, error) {
	page, err := getJSON[wire.Page[sandpit.TemplateBuild]](ctx, g.client, apiPath("templates", ref, "builds"), nil)
	return page.Items, err
}

// buildPollInterval is how often Wait sends a request.
const buildPollInterval = 200 * time.Millisecond
