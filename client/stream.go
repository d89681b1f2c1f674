package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"

	"github.com/tmaxmax/go-sse"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// maxEvent bounds one event of a stream, in bytes.
const maxEvent = 4 << 20

// streamEvents requests server-sent events and calls fn for each. An event "error" contains a
// problem and ends the stream.
func (c *Client) streamEvents(ctx context.Context, r call, fn func(name string, data []byte) error) error {
	var text []byte
	if r.in != nil {
		var err error
		if text, err = json.Marshal(r.in); err != nil {
			return sandpit.Errorf(sandpit.Invalid, "encode the request: %w", err)
		}
	}
	req, err := c.newRequest(ctx, r.method, r.path, r.query, bytes.NewReader(text))
	if err != nil {
		return err
	}
	maps.Copy(req.Header, r.header)
	req.Header.Set("Accept", "text/event-stream")
	if r.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.sendRequest(req)
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
			return sandpit.Errorf(sandpit.Exhausted, "an event of the server has more than %d bytes", maxEvent)
		case errors.Is(err, sse.ErrUnexpectedEOF) && ctx.Err() == nil:
			return sandpit.Errorf(sandpit.Unavailable, "connection to the server lost: %w", err)
		case err != nil:
			return err
		case e.Type == "error":
			var p wire.Problem
			if err := json.Unmarshal([]byte(e.Data), &p); err != nil {
				return newForeignResponseError(res, err)
			}
			return newProblemError(p)
		}
		if err := fn(e.Type, []byte(e.Data)); err != nil {
			if errors.Is(err, errStop) {
				return nil
			}
			return err
		}
	}
}
