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

// EventFilter chooses events. An ordinary owner sees what was done in the owner's name,
// and to the owner's sandboxes.
type EventFilter struct {
	Sandbox sandpit.ID `query:"sandbox" maxLength:"100" doc:"What was done to this one."`
	Actor   string     `query:"actor" maxLength:"200" doc:"What was done in this name."`
	Action  string     `query:"action" maxLength:"200" doc:"What was done like this."`
}

type eventsIn struct {
	EventFilter

	After  int64 `query:"after" minimum:"0" doc:"The seq of an event: only later ones."`
	Cursor int64 `query:"cursor" minimum:"0" doc:"That of the page before. The later of the two counts."`
	Limit  int   `query:"limit" minimum:"1" maximum:"999" default:"100" doc:"At most so many."`
}

type eventsOut struct {
	Body wire.Page[wire.Event]
}

type eventStreamIn struct {
	EventFilter

	After int64 `query:"after" minimum:"-1" default:"-1" doc:"The seq of the event to go on after; -1: only what comes from now on."`
	Last  int64 `header:"Last-Event-ID" minimum:"0" doc:"Goes before after: browsers send it."`
}

type verdictOut struct {
	Body wire.Verdict
}

// events registers what tells of the past.
func (s *server) events() {
	add(s, operation(http.MethodGet, pathEvents, "listEvents", "List events"), s.listEvents)
	op := operation(http.MethodGet, pathEvents+"/stream", "streamEvents", "Be told of events")
	op.Description = "Each message is an event; its id is the event's seq. The event \"error\" ends the stream, with a problem."
	stream(s, op, s.streamEvents)
	add(s, operation(http.MethodGet, pathEvents+"/verify", "verifyEvents", "See whether the trail of events is whole"), s.verifyEvents)
}

// filter puts a filter into the words of the store.
func (s *server) filter(ctx context.Context, f EventFilter) (store.EventFilter, error) {
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

func (s *server) listEvents(ctx context.Context, in *eventsIn) (*eventsOut, error) {
	f, err := s.filter(ctx, in.EventFilter)
	if err != nil {
		return nil, err
	}
	f.After, f.Limit = max(in.After, in.Cursor), in.Limit+1
	list, err := s.Store.Events(ctx, f)
	if err != nil {
		return nil, err
	}
	page := paged(list, in.Limit, func(e store.Event) string { return strconv.FormatInt(e.Seq, 10) })
	out := wire.Page[wire.Event]{Items: make([]wire.Event, 0, len(page.Items)), Next: page.Next}
	for _, e := range page.Items {
		out.Items = append(out.Items, event(ctx, e))
	}
	return &eventsOut{out}, nil
}

func event(ctx context.Context, e store.Event) wire.Event {
	return wire.Event{
		Seq: e.Seq, At: e.At, Actor: e.Actor, Action: e.Action, Sandbox: e.Sandbox, Args: e.Args,
		Result: e.Result, Message: api.Redact(ctx, e.Message), Duration: e.Duration.Seconds(), Hash: e.Hash,
	}
}

func (s *server) verifyEvents(ctx context.Context, _ *struct{}) (*verdictOut, error) {
	if err := s.administrator(ctx, "verify events"); err != nil {
		return nil, err
	}
	span, err := s.Store.EventSpan(ctx)
	if err != nil {
		return nil, err
	}
	v := wire.Verdict{OK: true, Events: span.End - span.Start}
	if err := s.Store.VerifyEvents(ctx); err != nil {
		if sandpit.CodeOf(err) != sandpit.Internal {
			return nil, err
		}
		v.OK, v.Reason = false, err.Error()
	}
	return &verdictOut{v}, nil
}

// streamEvents tells what is there after an event, and what comes.
func (s *server) streamEvents(ctx context.Context, in *eventStreamIn) (func(*http.Request, *api.Stream), error) {
	f, err := s.filter(ctx, in.EventFilter)
	if err != nil {
		return nil, err
	}
	f.After = in.After
	switch {
	case in.Last > 0:
		f.After = in.Last
	case in.After < 0:
		span, err := s.Store.EventSpan(ctx)
		if err != nil {
			return nil, err
		}
		f.After = span.End
	}
	f.Limit = store.MaxEvents
	return func(r *http.Request, st *api.Stream) {
		err := s.tell(r.Context(), st, f)
		if err == nil || sandpit.CodeOf(err) == sandpit.Canceled {
			return // whoever listened has gone
		}
		if err := st.Fail(r, err); err != nil {
			s.Log.DebugContext(r.Context(), "the end of a stream is not heard", slog.Any("error", err))
		}
	}, nil
}

// tell sends events until something ends it, which it returns.
func (s *server) tell(ctx context.Context, st *api.Stream, f store.EventFilter) error {
	beat := time.NewTicker(api.HeartbeatEvery)
	defer beat.Stop()
	now := make(chan struct{})
	close(now)
	for {
		more := s.Store.MoreEvents()
		full, err := s.tellPage(ctx, st, &f)
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

// tellPage sends what there is, moves the filter on, and reports whether it was as
// much as one look finds.
func (s *server) tellPage(ctx context.Context, st *api.Stream, f *store.EventFilter) (full bool, err error) {
	// The end before the look: nothing up to it is missed, whoever it concerns.
	span, err := s.Store.EventSpan(ctx)
	if err != nil {
		return false, err
	}
	list, err := s.Store.Events(ctx, *f)
	if err != nil {
		return false, err
	}
	size := memory.SizeOf(list) // until the client has read them
	if err := memory.AccountOf(ctx).Reserve(size); err != nil {
		return false, err
	}
	defer memory.AccountOf(ctx).Return(size)
	for _, e := range list {
		if err := st.Send("", strconv.FormatInt(e.Seq, 10), event(ctx, e)); err != nil {
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
