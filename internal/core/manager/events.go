package manager

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Events is the audit trail of a manager. All methods may be called concurrently.
type Events struct {
	clock     clock.Clock
	queue     *eventQueue
	log       *slog.Logger
	o         *Options
	sandboxes *recordIndex
}

// actorManager is the actor of what no request asked for.
const actorManager = "manager"

type actorKey struct{}

// WithActor returns a context whose operations are done by an actor: events and reasons name it.
// Default: the owner of the sandbox.
func WithActor(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// actorOf returns the actor of an operation.
func actorOf(ctx context.Context, owner string) string {
	if actor, _ := ctx.Value(actorKey{}).(string); actor != "" {
		return actor
	}
	if owner != "" {
		return owner
	}
	return actorManager
}

type administratorKey struct{}

// WithAdministrator returns a context that says whether an administrator requests its operations.
// Default: no.
func WithAdministrator(ctx context.Context, is bool) context.Context {
	return context.WithValue(ctx, administratorKey{}, is)
}

// isAdministrator returns what WithAdministrator has set.
func isAdministrator(ctx context.Context) bool {
	is, _ := ctx.Value(administratorKey{}).(bool)
	return is
}

type requestIDKey struct{}

// WithRequestID returns a context for the request with the given ID: events, logs and errors of
// operations name it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestIDOf returns the ID of the request that ctx belongs to, "" outside of a request.
func RequestIDOf(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// Report is something that was done, or refused.
type Report struct {
	// Actor is the requester.
	Actor string
	// Request is the ID of the request, see RequestIDOf, or "".
	Request string
	// Action is what was requested, in one or two words.
	Action string
	// Sandbox is the sandbox that it concerns, if any.
	Sandbox sandpit.ID
	// Args are further details. They must not contain secrets.
	Args map[string]string
	// Err is why it was not done. Its text must not contain secrets.
	Err error
	// Restricted reports whether the action needs special rights, so that an Invalid request
	// counts as a refusal as well.
	Restricted bool
	// Took is the duration.
	Took time.Duration
}

// resultOK is the result of an event without an error.
const resultOK = "ok"

// findOwner returns the owner that may read a report. An actor that was refused is not shown to the
// owner of the sandbox that it asked for.
func (ev *Events) findOwner(r Report) string {
	rec, err := ev.sandboxes.find(r.Sandbox)
	if err != nil {
		return r.Actor
	}
	owner := rec.currentRow().Lease.Owner
	switch sandpit.CodeOf(r.Err) {
	case sandpit.PermissionDenied, sandpit.Unauthenticated, sandpit.NotFound:
		if r.Actor != owner && r.Actor != actorManager {
			return r.Actor
		}
	default:
	}
	return owner
}

// Record adds an event to the audit trail, and a line to the log. It does not wait for the disk.
// An actor that is refused too often causes another event, "suspicious".
func (ev *Events) Record(r Report) {
	r.Err = withoutCommand(r.Err)
	if ev.addEvent(r, ev.findOwner(r), classOperation) {
		ev.logReport(r)
	}
}

// addEvent adds an event that concerns an owner, and reports whether it is recorded as an event of
// its own.
func (ev *Events) addEvent(r Report, owner string, class eventClass) bool {
	ev.o.Observer.Done(r)
	now := ev.clock.Now()
	e := store.Event{
		At: now, Actor: r.Actor, Owner: owner, Action: r.Action, Sandbox: r.Sandbox, Args: r.Args,
		Result: resultOK, Duration: r.Took,
	}
	if r.Request != "" {
		e.Args = maps.Clone(r.Args)
		if e.Args == nil {
			e.Args = make(map[string]string, 1)
		}
		e.Args["request"] = r.Request
	}
	if r.Err != nil {
		e.Result, e.Message = string(sandpit.CodeOf(r.Err)), r.Err.Error()
	}
	added := ev.queue.addEvent(e, class)
	if n := ev.queue.refusals.countRefusal(r); n > 0 {
		ev.queue.addEvent(store.Event{
			At: now, Actor: r.Actor, Owner: e.Owner, Action: "suspicious", Sandbox: r.Sandbox, Result: resultOK,
			Message: "refused repeatedly", Args: map[string]string{"last": r.Action},
		}, classOperation)
		ev.log.Warn("manager: actor refused repeatedly", slog.String("actor", r.Actor), slog.Int("refusals", n))
	}
	return added
}

// logReport logs a report at the level info, and a lost sandbox at the level warn. There are as
// many lines as events, whose number is bounded.
func (ev *Events) logReport(r Report) {
	level, message := slog.LevelInfo, "manager: "+r.Action
	if r.Action == actionLost {
		level, message = slog.LevelWarn, "manager: sandbox lost"
	}
	attrs := []slog.Attr{slog.String("actor", r.Actor)}
	for _, a := range []struct{ name, value string }{{"sandbox", string(r.Sandbox)}, {"request_id", r.Request}, {"reason", r.Args["reason"]}} {
		if a.value != "" {
			attrs = append(attrs, slog.String(a.name, a.value))
		}
	}
	if provider := sandpit.SubjectOf(r.Err).Provider; provider != "" {
		attrs = append(attrs, slog.String("provider", provider))
	}
	if r.Took > 0 {
		attrs = append(attrs, slog.Duration("took", r.Took))
	}
	if r.Err != nil {
		message += " failed"
		attrs = append(attrs, slog.String("code", string(sandpit.CodeOf(r.Err))), slog.Any("error", r.Err))
	}
	ev.log.LogAttrs(context.Background(), level, message, attrs...) //nolint:sloglint // the message is the action, of which there are few; the request is over, or is named above
}

// Status returns how many events wait to be written, and how many were lost since the manager was
// opened, because too many were waiting.
func (ev *Events) Status() (waiting int, lost int64) {
	ev.queue.mu.Lock()
	defer ev.queue.mu.Unlock()
	return len(ev.queue.waiting), ev.queue.allLost
}
