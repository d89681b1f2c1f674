package manager

import (
	"context"
	"log/slog"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// Messages are the scheduled actions of a manager in its queue. All methods may be called concurrently.
type Messages struct {
	clock     clock.Clock
	events    *Events
	identity  string
	log       *slog.Logger
	queue     queue.Queue
	sandboxes *index
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
