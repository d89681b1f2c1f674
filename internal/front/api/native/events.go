package native

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const pathEvents = wire.Prefix + "/events"

// EventFilter selects events. An owner sees its own actions and all events of its sandboxes.
type EventFilter struct {
	Sandbox sandpit.ID `query:"sandbox" maxLength:"100" doc:"Only events of this sandbox."`
	Actor   string     `query:"actor" maxLength:"200" doc:"Only events of this actor."`
	Action  string     `query:"action" maxLength:"200" doc:"Only events of this action."`
}

type eventsIn struct {
	EventFilter

	After  int64 `query:"after" minimum:"0" doc:"The seq of an event; only later events are returned."`
	Cursor int64 `query:"cursor" minimum:"0" doc:"The cursor of the previous page. The later of after and cursor counts."`
	Limit  int   `query:"limit" minimum:"1" maximum:"999" default:"100" doc:"The maximum number of items."`
}

type eventsOut struct {
	Body wire.Page[wire.Event]
}

type eventStreamIn struct {
	EventFilter

	After int64 `query:"after" minimum:"-1" default:"-1" doc:"The seq of the event to continue after; -1: only new events."`
	Last  int64 `header:"Last-Event-ID" minimum:"0" doc:"Takes precedence over after; browsers send it."`
}

type verdictOut struct {
	Body wire.Verdict
}

// eventHandlers serve the audit trail.
type eventHandlers struct {
	store  *store.Store
	access access
	log    *slog.Logger
}

// addOperations adds the operations on events.
func (h *eventHandlers) addOperations(r *registrar) {
	addOperation(r, newOperation(http.MethodGet, pathEvents, "listEvents", "List events"), h.listEvents)
	op := newOperation(http.MethodGet, pathEvents+"/stream", "streamEvents", "Stream events")
	op.Description = "Each message is an event; its ID is the seq. The message \"error\" has a problem and ends the stream."
	addStream(r, op, h.streamEvents)
	addOperation(r, newOperation(http.MethodGet, pathEvents+"/verify", "verifyEvents", "Verify that the audit trail is complete and unchanged"), h.verifyEvents)
}

// toEventFilter converts a filter, which it limits to the events that the client may see.
func toEventFilter(ctx context.Context, f EventFilter) (store.EventFilter, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return store.EventFilter{}, err
	}
	out := store.EventFilter{Sandbox: f.Sandbox, Actor: f.Actor, Action: f.Action}
	if !p.Admin {
		out.Owner = p.Owner
	}
	return out, nil
}

func (h *eventHandlers) listEvents(ctx context.Context, in *eventsIn) (*eventsOut, error) {
	f, err := toEventFilter(ctx, in.EventFilter)
	if err != nil {
		return nil, err
	}
	f.After, f.Limit = max(in.After, in.Cursor), in.Limit+1
	list, err := h.store.Events().ListEvents(ctx, f)
	if err != nil {
		return nil, err
	}
	page := toPage(list, in.Limit, func(e store.Event) string { return strconv.FormatInt(e.Seq, 10) })
	out := wire.Page[wire.Event]{Items: make([]wire.Event, 0, len(page.Items)), Next: page.Next}
	for _, e := range page.Items {
		out.Items = append(out.Items, toEvent(ctx, e))
	}
	return &eventsOut{out}, nil
}

func toEvent(ctx context.Context, e store.Event) wire.Event {
	return wire.Event{
		Seq: e.Seq, At: e.At, Actor: e.Actor, Action: e.Action, Sandbox: e.Sandbox, Args: e.Args,
		Result: e.Result, Message: api.Redact(ctx, e.Message), Duration: e.Duration.Seconds(), Hash: e.Hash,
	}
}

func (h *eventHandlers) verifyEvents(ctx context.Context, _ *struct{}) (*verdictOut, error) {
	if err := h.access.requireAdmin(ctx, "verify events"); err != nil {
		return nil, err
	}
	span, err := h.store.Events().EventSpan(ctx)
	if err != nil {
		return nil, err
	}
	v := wire.Verdict{OK: true, Events: span.End - span.Start}
	if err := h.store.Events().VerifyEvents(ctx); err != nil {
		if sandpit.CodeOf(err) != sandpit.Internal {
			return nil, err
		}
		v.OK, v.Reason = false, err.Error()
	}
	return &verdictOut{v}, nil
}

// streamEvents sends the events after one, and new ones as they happen.
func (h *eventHandlers) streamEvents(ctx context.Context, in *eventStreamIn) (func(*http.Request, *api.Stream), error) {
	f, err := toEventFilter(ctx, in.EventFilter)
	if err != nil {
		return nil, err
	}
	f.After = in.After
	switch {
	case in.Last > 0:
		f.After = in.Last
	case in.After < 0:
		span, err := h.store.Events().EventSpan(ctx)
		if err != nil {
			return nil, err
		}
		f.After = span.End
	}
	f.Limit = store.MaxEvents
	return func(r *http.Request, st *api.Stream) {
		err := h.sendEvents(r.Context(), st, f)
		if err == nil || sandpit.CodeOf(err) == sandpit.Canceled {
			return // the client disconnected
		}
		if err := st.Fail(r, err); err != nil {
			h.log.DebugContext(r.Context(), "api: cannot send the error that ends an event stream", slog.Any("error", err))
		}
	}, nil
}

// sendEvents sends events until something ends it, and returns the reason.
func (h *eventHandlers) sendEvents(ctx context.Context, st *api.Stream, f store.EventFilter) error {
	beat := time.NewTicker(api.HeartbeatEvery)
	defer beat.Stop()
	now := make(chan struct{})
	close(now)
	for {
		more := h.store.Events().MoreEvents()
		full, err := h.sendPage(ctx, st, &f)
		if err != nil {
			return err
		}
		if full { // there may be more already
			more = now
		}
		select {
		case <-more:
		case <-beat.C:
			if err := st.Beat(); err != nil {
				return err
			}
		case <-api.Draining(ctx):
			return api.ErrDraining
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sendPage sends the next page of events and moves the filter behind it. It reports whether
// the page was full.
func (h *eventHandlers) sendPage(ctx context.Context, st *api.Stream, f *store.EventFilter) (full bool, err error) {
	// The end is read before the events, so that no event up to it is missed.
	span, err := h.store.Events().EventSpan(ctx)
	if err != nil {
		return false, err
	}
	list, err := h.store.Events().ListEvents(ctx, *f)
	if err != nil {
		return false, err
	}
	size := memory.SizeOf(list) // until the client has read them
	if err := memory.AccountOf(ctx).Reserve(size); err != nil {
		return false, err
	}
	defer memory.AccountOf(ctx).Return(size)
	for _, e := range list {
		if err := st.Send("", strconv.FormatInt(e.Seq, 10), toEvent(ctx, e)); err != nil {
			return false, err
		}
		f.After = e.Seq
	}
	if len(list) == f.Limit {
		return true, nil
	}
	f.After = max(f.After, span.End)
	return false, nil
}
