package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// Messages returns what this manager is to do later, or what it has given up, in
// the order of the IDs. The topic of the filter is the manager's own.
func (m *Manager) Messages(ctx context.Context, f queue.Filter) ([]queue.Message, error) {
	f.Topic = m.identity
	return m.o.Queue.List(ctx, f)
}

// RetryMessage has something tried again at once that was given up.
//
// NotFound: this manager has given up nothing of that ID. Conflict: the same is to be
// done already.
func (m *Manager) RetryMessage(ctx context.Context, id string) error {
	err := m.dead(ctx, id)
	if err == nil {
		err = m.o.Queue.Revive(ctx, id, m.o.Clock.Now())
	}
	m.record(Report{Request: RequestIDOf(ctx), Actor: actorOf(ctx, ""), Action: "retry", Args: map[string]string{"message": id}, Err: err})
	m.wakeWorker()
	return err
}

// DropMessage forgets something that was given up. NotFound: as with RetryMessage.
func (m *Manager) DropMessage(ctx context.Context, id string) error {
	err := m.dead(ctx, id)
	if err == nil {
		err = m.o.Queue.Drop(ctx, id)
	}
	m.record(Report{Request: RequestIDOf(ctx), Actor: actorOf(ctx, ""), Action: "drop", Args: map[string]string{"message": id}, Err: err})
	return err
}

// dead looks for a dead letter of this manager: a queue may be shared with others.
func (m *Manager) dead(ctx context.Context, id string) error {
	list, err := m.o.Queue.List(ctx, queue.Filter{Topic: m.identity, Dead: true, Limit: queue.MaxDead})
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
