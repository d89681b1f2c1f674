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

// Messages are the scheduled actions of a manager in its queue. All methods may be called
// concurrently.
type Messages struct {
	clock     clock.Clock
	events    *Events
	identity  string
	log       *slog.Logger
	queue     queue.Queue
	sandboxes *recordIndex
	worker    *queue.Worker
}

// List returns the scheduled actions of this manager, or those that were given up, in the order of
// their IDs. The filter's topic is ignored.
func (ms *Messages) List(ctx context.Context, f queue.Filter) ([]queue.Message, error) {
	f.Topic = ms.identity
	return ms.queue.List(ctx, f)
}

// Retry schedules an action that was given up, at once.
//
// NotFound: this manager has given up no action of that ID. Conflict: the same action is already
// scheduled.
func (ms *Messages) Retry(ctx context.Context, id string) error {
	err := ms.findDead(ctx, id)
	if err == nil {
		err = ms.queue.Revive(ctx, id, ms.clock.Now())
	}
	ms.events.Record(Report{Request: RequestIDOf(ctx), Actor: actorOf(ctx, ""), Action: "retry", Args: map[string]string{"message": id}, Err: err})
	ms.wakeWorker()
	return err
}

// Drop removes an action that was given up. NotFound: as with Retry.
func (ms *Messages) Drop(ctx context.Context, id string) error {
	err := ms.findDead(ctx, id)
	if err == nil {
		err = ms.queue.Drop(ctx, id)
	}
	ms.events.Record(Report{Request: RequestIDOf(ctx), Actor: actorOf(ctx, ""), Action: "drop", Args: map[string]string{"message": id}, Err: err})
	return err
}

// findDead checks that a dead letter belongs to this manager: several may share a queue.
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
	return sandpit.Errorf(sandpit.NotFound, "dead letter %.64q not found", id)
}

// The kinds of messages.
const (
	kindDeadline queue.Kind = "deadline" // take the lease's action
	kindDelete   queue.Kind = "delete"   // retry a deletion
	kindRecover  queue.Kind = "recover"  // recreate a lost sandbox
)

// scheduleDeadline updates the message of a sandbox's deadline.
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

// scheduleMessage schedules an action that no caller waits for. If the queue fails, ensureScheduled
// repeats it.
func (ms *Messages) scheduleMessage(ctx context.Context, rec *sandboxRecord, k queue.Kind, due time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	if _, err := ms.queue.Schedule(ctx, ms.newMessage(rec, k, due)); err != nil {
		ms.log.WarnContext(ctx, "manager: action not scheduled; retried by the sweep",
			slog.String("sandbox", string(rec.id)), slog.String("kind", string(k)), slog.Any("error", err))
	}
	ms.wakeWorker()
}

func (ms *Messages) wakeWorker() {
	if ms.worker != nil {
		ms.worker.Wake()
	}
}

// cancelMessages removes the messages of a sandbox. One that is left finds nothing to do.
func (ms *Messages) cancelMessages(ctx context.Context, rec *sandboxRecord) {
	if _, err := ms.queue.Cancel(ctx, rec.id); err != nil {
		ms.log.InfoContext(ctx, "manager: messages of a deleted sandbox not removed", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
	}
}

// messageKey identifies a message of a sandbox.
type messageKey struct {
	sandbox sandpit.ID
	kind    queue.Kind
}

// ensureScheduled schedules the actions that the rows ask for and the queue does not have, after a
// crash between both, and revives those that were given up. On the first run, the claims in the
// queue are those of a server that has ended, and are not waited for.
func (ms *Messages) ensureScheduled(ctx context.Context, first bool) {
	pending, err := ms.listAll(ctx, false)
	var dead map[messageKey]queue.Message
	if err == nil {
		dead, err = ms.listAll(ctx, true)
	}
	if err != nil {
		if ctx.Err() == nil {
			ms.log.WarnContext(ctx, "manager: queue not compared with the records", slog.Any("error", err))
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

// listAll returns all messages of this manager.
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
