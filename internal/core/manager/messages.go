package manager

import (
	"context"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Messages are the scheduled actions of a manager in its queue. All methods may be called concurrently.
type Messages struct {
	clock     clock.Clock
	events    *Events
	identity  string
	log       *slog.Logger
	queue     queue.Queue
	sandboxes *recordIndex
	worker    *queue.Worker
}

// List returns what this manager is to do later, or what it has given up, in
// the order of the IDs. The topic of the filter is the manager's own.
func (ms *Messages) List(ctx context.Context, f queue.Filter) ([]queue.Message, error) {
	f.Topic = ms.identity
	return ms.queue.List(ctx, f)
}

// Retry has something tried again at once that was given up.
//
// NotFound: this manager has given up nothing of that ID. Conflict: the same is to be
// done already.
func (ms *Messages) Retry(ctx context.Context, id string) error {
	err := ms.findDead(ctx, id)
	if err == nil {
		err = ms.queue.Revive(ctx, id, ms.clock.Now())
	}
	ms.events.Record(Report{Request: RequestIDOf(ctx), Actor: actorOf(ctx, ""), Action: "retry", Args: map[string]string{"message": id}, Err: err})
	ms.wakeWorker()
	return err
}

// Drop forgets something that was given up. NotFound: as with RetryMessage.
func (ms *Messages) Drop(ctx context.Context, id string) error {
	err := ms.findDead(ctx, id)
	if err == nil {
		err = ms.queue.Drop(ctx, id)
	}
	ms.events.Record(Report{Request: RequestIDOf(ctx), Actor: actorOf(ctx, ""), Action: "drop", Args: map[string]string{"message": id}, Err: err})
	return err
}

// findDead looks for a dead letter of this manager: a queue may be shared with others.
func (ms *Messages) findDead(ctx context.Context, id string) error {
	list, err := ms.queue.List(ctx, queue.Filter{Topic: ms.identity, Dead: true, Limit: queue.MaxDead})
	if err != nil {
		return err
	}
	for _, msg := range list {
		if msg.ID == id {
			return nil
		}
	}
	return sandpit.Errorf(sandpit.NotFound, "there is no dead letter %.64q", id)
}

// The kinds of messages.
const (
	kindDeadline queue.Kind = "deadline" // the lease's action is due
	kindDelete   queue.Kind = "delete"   // what could not be removed is tried again
	kindRecover  queue.Kind = "recover"  // a sandbox that is lost is made again
)

// scheduleDeadline makes the queue's message what the row says.
func (ms *Messages) scheduleDeadline(ctx context.Context, rec *sandboxRecord) error {
	row := rec.currentRow()
	if row.Lease.Deadline.IsZero() {
		_, err := ms.queue.Cancel(ctx, rec.id, kindDeadline)
		return err
	}
	_, err := ms.queue.Schedule(ctx, ms.newMessage(rec, kindDeadline, row.Lease.Deadline))
	ms.wakeWorker()
	return err
}

func (ms *Messages) newMessage(rec *sandboxRecord, k queue.Kind, due time.Time) queue.Message {
	return queue.Message{Topic: ms.identity, Sandbox: rec.id, Kind: k, Due: due}
}

// scheduleMessage has something tried again that nobody waits for. What the queue does
// not take is found by the sweep.
func (ms *Messages) scheduleMessage(ctx context.Context, rec *sandboxRecord, k queue.Kind, due time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	if _, err := ms.queue.Schedule(ctx, ms.newMessage(rec, k, due)); err != nil {
		ms.log.WarnContext(ctx, "an operation cannot be queued and waits for the sweep",
			slog.String("sandbox", string(rec.id)), slog.String("kind", string(k)), slog.Any("error", err))
	}
	ms.wakeWorker()
}

func (ms *Messages) wakeWorker() {
	if ms.worker != nil {
		ms.worker.Wake()
	}
}

// cancelMessages removes a sandbox's messages. One that is left finds nothing to do.
func (ms *Messages) cancelMessages(ctx context.Context, rec *sandboxRecord) {
	if _, err := ms.queue.Cancel(ctx, rec.id); err != nil {
		ms.log.InfoContext(ctx, "messages for a sandbox that is gone are left", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
	}
}

// messageKey is a message that must be in the queue.
type messageKey struct {
	sandbox sandpit.ID
	kind    queue.Kind
}

// ensureScheduled makes sure that the queue has what the rows ask for: a crash may have
// come between both, and what was given up must not be forgotten. At the first
// time a claim that is left is a dead server's, and nobody need wait for its end.
func (ms *Messages) ensureScheduled(ctx context.Context, first bool) {
	pending, err := ms.listAll(ctx, false)
	var dead map[messageKey]queue.Message
	if err == nil {
		dead, err = ms.listAll(ctx, true)
	}
	if err != nil {
		if ctx.Err() == nil {
			ms.log.WarnContext(ctx, "the queue cannot be compared with the sandboxes", slog.Any("error", err))
		}
		return
	}
	now := ms.clock.Now()
	for _, rec := range ms.sandboxes.all() {
		kind, due, ok := wantedMessage(rec.currentRow(), now)
		if !ok {
			continue
		}
		e := messageKey{rec.id, kind}
		if first && !due.After(now) {
			if _, err := ms.queue.Cancel(ctx, rec.id, kind); err == nil {
				delete(pending, e)
			}
		}
		if msg, there := pending[e]; there && (kind != kindDeadline || msg.Attempts > 0 || msg.Due.Equal(queue.Millis(due))) {
			continue
		}
		if msg, there := dead[e]; there && ms.queue.Revive(ctx, msg.ID, due) == nil {
			continue
		}
		ms.scheduleMessage(ctx, rec, kind, due)
	}
	ms.wakeWorker()
}

// wantedMessage returns the message that a row asks for.
func wantedMessage(r store.Row, now time.Time) (queue.Kind, time.Time, bool) {
	switch {
	case r.State == sandpit.StateDeleting:
		return kindDelete, now, true
	case r.State == sandpit.StateError && r.Policy.Recreate > 0:
		return kindRecover, now, true
	case deadlineMatters(r):
		return kindDeadline, r.Lease.Deadline, true
	default:
		return "", time.Time{}, false
	}
}

// listAll returns the manager's messages.
func (ms *Messages) listAll(ctx context.Context, dead bool) (map[messageKey]queue.Message, error) {
	all := make(map[messageKey]queue.Message)
	f := queue.Filter{Topic: ms.identity, Dead: dead, Limit: queue.MaxList}
	for {
		page, err := ms.queue.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, msg := range page {
			all[messageKey{msg.Sandbox, msg.Kind}] = msg
		}
		if len(page) < f.Limit {
			return all, nil
		}
		f.After = page[len(page)-1].ID
	}
}
