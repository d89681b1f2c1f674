package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
)

// Events reads the audit trail.
type Events struct{ client *Client }

// List returns events in their order.
func (g Events) List(ctx context.Context, f EventFilter) ([]api.Event, error) {
	return listPages[api.Event](ctx, g.client, apiPath("events"), f.toQuery(), f.Limit)
}

// Verify checks that the audit trail was not changed.
func (g Events) Verify(ctx context.Context) (api.Verdict, error) {
	return getJSON[api.Verdict](ctx, g.client, apiPath("events", "verify"), nil)
}

// EventFilter selects events. Zero fields select all.
type EventFilter struct {
	Sandbox sandpit.ID
	Actor   string
	Action  string
	// After is the Seq of an event: only later ones are selected.
	After int64
	// Limit bounds the number of results. Default: all.
	Limit int
}

// toQuery returns the query of a request.
func (f EventFilter) toQuery() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"sandbox": string(f.Sandbox), "actor": f.Actor, "action": f.Action} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if f.After > 0 {
		query.Set("after", strconv.FormatInt(f.After, 10))
	}
	return query
}

// Follow calls fn for each event that f selects, from the oldest on, and then for each new one,
// until fn returns an error, which Follow returns, or ctx ends. When the connection breaks, it
// reconnects and continues, as long as the server can be reached again within Options.Timeout.
func (g Events) Follow(ctx context.Context, f EventFilter, fn func(api.Event) error) error {
	lost := time.Time{}
	pause := newBackoff()
	for {
		err := g.client.Events.followOnce(ctx, &f, func(e api.Event) error {
			lost = time.Time{}
			pause.Reset()
			return fn(e)
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && sandpit.CodeOf(err) != sandpit.Unavailable {
			return err
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		if err != nil && time.Since(lost) > g.client.o.Timeout {
			return err
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// followOnce follows events until the connection ends, and advances f.After.
func (g Events) followOnce(ctx context.Context, f *EventFilter, fn func(api.Event) error) error {
	query := f.toQuery()
	query.Set("after", strconv.FormatInt(f.After, 10)) // without it, the server begins with the next event
	var refused error
	r := call{
		method: http.MethodGet, path: apiPath("events", "stream"), query: query,
		header: http.Header{"Last-Event-Id": {strconv.FormatInt(f.After, 10)}},
	}
	err := g.client.streamEvents(ctx, r, func(name string, data []byte) error {
		if name != "" && name != "event" {
			return nil
		}
		var e api.Event
		if err := json.Unmarshal(data, &e); err != nil {
			return sandpit.Errorf(sandpit.Internal, "decode an event: %w", err)
		}
		f.After = max(f.After, e.Seq)
		if refused = fn(e); refused != nil {
			return errStop
		}
		return nil
	})
	if refused != nil {
		return refused
	}
	return err
}

// errStop ends an event stream without an error.
var errStop = errors.New("stop")
