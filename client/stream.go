package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/tmaxmax/go-sse"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// maxEvent bounds one event of a stream, in bytes.
const maxEvent = 4 << 20

// errStop ends following an event stream without an error.
var errStop = errors.New("stop")

// FollowEvents calls fn for each event that f chooses, from the oldest that it
// chooses on, and then as they happen, until fn returns an error, which it returns, or
// ctx ends. When the connection breaks it goes on where it was, for as long as the
// server can be reached again within Options.Timeout.
func (g Events) Follow(ctx context.Context, f EventFilter, fn func(api.Event) error) error {
	lost := time.Time{}
	pause := pauses()
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

func (g Events) followOnce(ctx context.Context, f *EventFilter, fn func(api.Event) error) error {
	query := f.query()
	query.Set("after", strconv.FormatInt(f.After, 10)) // without, a server begins with what happens next
	var refused error
	r := call{
		method: http.MethodGet, path: path("events", "stream"), query: query,
		header: http.Header{"Last-Event-Id": {strconv.FormatInt(f.After, 10)}},
	}
	err := g.client.stream(ctx, r, func(name string, data []byte) error {
		if name != "" && name != "event" {
			return nil
		}
		var e api.Event
		if err := json.Unmarshal(data, &e); err != nil {
			return sandpit.Errorf(sandpit.Internal, "an event that cannot be read: %w", err)
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

// PullImage fetches an image for the server's sandboxes. Progress hears of bytes, total
// being 0 where it is not known; it may be nil.
func (g Images) Pull(ctx context.Context, p api.Pull, progress func(done, total int64)) (api.Image, error) {
	var (
		image api.Image
		done  bool
	)
	r := call{method: http.MethodPost, path: path("images", "pull"), in: p}
	err := g.client.stream(ctx, r, func(name string, data []byte) error {
		switch name {
		case "progress":
			var p wire.Progress
			if err := json.Unmarshal(data, &p); err == nil && progress != nil {
				progress(p.Done, p.Total)
			}
		case "result":
			done = true
			return json.Unmarshal(data, &image)
		}
		return nil
	})
	if err == nil && !done {
		err = sandpit.Errorf(sandpit.Unavailable, "the connection to the server ended before the image was there")
	}
	return image, err
}

// stream asks for server-sent events and calls fn for each. An event "error" has a
// problem, and ends it.
func (c *Client) stream(ctx context.Context, r call, fn func(name string, data []byte) error) error {
	var text []byte
	if r.in != nil {
		var err error
		if text, err = json.Marshal(r.in); err != nil {
			return sandpit.Errorf(sandpit.Invalid, "a request that cannot be written down: %w", err)
		}
	}
	req, err := c.request(ctx, r.method, r.path, r.query, bytes.NewReader(text))
	if err != nil {
		return err
	}
	maps.Copy(req.Header, r.header)
	req.Header.Set("Accept", "text/event-stream")
	if r.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.send(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	next, stop := iter.Pull2(sse.Read(res.Body, &sse.ReadConfig{MaxEventSize: maxEvent}))
	defer stop()
	for {
		e, err, ok := next()
		switch {
		case !ok:
			return nil
		case errors.Is(err, bufio.ErrTooLong):
			return sandpit.Errorf(sandpit.Exhausted, "the server sends an event of more than %d bytes", maxEvent)
		case errors.Is(err, sse.ErrUnexpectedEOF) && ctx.Err() == nil:
			return sandpit.Errorf(sandpit.Unavailable, "the connection to the server broke: %w", err)
		case err != nil:
			return err
		case e.Type == "error":
			var p wire.Problem
			if err := json.Unmarshal([]byte(e.Data), &p); err != nil {
				return notSandpit(res, err)
			}
			return toError(p)
		}
		if err := fn(e.Type, []byte(e.Data)); err != nil {
			if errors.Is(err, errStop) {
				return nil
			}
			return err
		}
	}
}
