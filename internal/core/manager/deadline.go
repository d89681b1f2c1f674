package manager

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// The kinds of messages.
const (
	kindDeadline queue.Kind = "deadline" // the lease's action is due
	kindDelete   queue.Kind = "delete"   // what could not be removed is tried again
	kindRecover  queue.Kind = "recover"  // a sandbox that is lost is made again
)

// SetDeadline replaces the deadline of a sandbox and what happens then; the zero
// time means never, and no action means that the sandbox keeps the one it has. The owner
// stays. It is kept to the millisecond.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: it has passed.
// Unsupported: the provider cannot do what is asked for.
func (m *Manager) SetDeadline(ctx context.Context, id sandpit.ID, l sandpit.Lease) error {
	now, err := m.now(ctx)
	if err != nil {
		return err
	}
	keeps := l.Action == ""
	if l, err = prepareLease(l, now); err != nil {
		return err
	}
	args := map[string]string{"deadline": l.Deadline.Format(time.RFC3339Nano)}
	return m.operate(ctx, id, "set deadline", args, func(ctx context.Context, b *box) error {
		row := b.look()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		if keeps {
			l.Action = cmp.Or(row.Lease.Action, l.Action)
		} else if err := m.ableTo(ctx, b, l.Action); err != nil {
			return err
		}
		l.Owner, args["action"] = row.Lease.Owner, string(l.Action)
		if err := m.write(ctx, b, func(r *store.Row) { r.Lease, r.Term = l, termOf(l, now) }); err != nil {
			return err
		}
		return m.scheduleDeadline(ctx, b)
	})
}

// SetLabels replaces the labels of a sandbox, as the manager knows it; the
// provider keeps those it was made with.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: the labels. Exhausted:
// there are as many sandboxes with such a label as there may be.
func (m *Manager) SetLabels(ctx context.Context, id sandpit.ID, labels map[string]string) error {
	if err := checkLabels(labels); err != nil {
		return err
	}
	return m.operate(ctx, id, "set labels", nil, func(ctx context.Context, b *box) error {
		row := b.look()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		changed := row.Sandbox
		changed.Spec = row.Spec.Clone()
		changed.Spec.Labels = sandpit.Spec{Labels: labels}.Clone().Labels
		if err := m.room.change(changed); err != nil {
			return err
		}
		err := m.write(ctx, b, func(r *store.Row) { r.Spec = changed.Spec })
		if err != nil {
			m.room.revert(row.Sandbox)
		}
		return err
	})
}

// ableTo refuses an action that a sandbox cannot take.
func (m *Manager) ableTo(ctx context.Context, b *box, a sandpit.Action) error {
	if a == sandpit.ActionKill {
		return nil
	}
	i, err := m.attached(ctx, b)
	if err != nil {
		return err
	}
	return able(i, a)
}

// deadlineMatters reports whether there is something to do at the deadline.
func deadlineMatters(r store.Row) bool {
	if r.Lease.Deadline.IsZero() {
		return false
	}
	switch r.State {
	case sandpit.StateDeleting, sandpit.StateDeleted:
		return false
	case sandpit.StateStopped, sandpit.StateArchived, sandpit.StateError:
		return r.Lease.Action == sandpit.ActionKill
	case sandpit.StatePaused:
		return r.Lease.Action != sandpit.ActionPause && (r.Lease.Action != sandpit.ActionSuspend || !r.Suspended)
	default:
		return true
	}
}

// scheduleDeadline makes the queue's message what the row says.
func (m *Manager) scheduleDeadline(ctx context.Context, b *box) error {
	row := b.look()
	if row.Lease.Deadline.IsZero() {
		_, err := m.o.Queue.Cancel(ctx, b.id, kindDeadline)
		return err
	}
	_, err := m.o.Queue.Schedule(ctx, m.message(b, kindDeadline, row.Lease.Deadline))
	m.wakeWorker()
	return err
}

func (m *Manager) message(b *box, k queue.Kind, due time.Time) queue.Message {
	return queue.Message{Topic: m.identity, Sandbox: b.id, Kind: k, Due: due}
}

// schedule has something tried again that nobody waits for. What the queue does
// not take is found by the sweep.
func (m *Manager) schedule(ctx context.Context, b *box, k queue.Kind, due time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	if _, err := m.o.Queue.Schedule(ctx, m.message(b, k, due)); err != nil {
		m.o.Log.WarnContext(ctx, "an operation cannot be queued and waits for the sweep",
			slog.String("sandbox", string(b.id)), slog.String("kind", string(k)), slog.Any("error", err))
	}
	m.wakeWorker()
}

func (m *Manager) wakeWorker() {
	if m.worker != nil {
		m.worker.Wake()
	}
}

// cancelAll removes a sandbox's messages. One that is left finds nothing to do.
func (m *Manager) cancelAll(ctx context.Context, b *box) {
	if _, err := m.o.Queue.Cancel(ctx, b.id); err != nil {
		m.o.Log.InfoContext(ctx, "messages for a sandbox that is gone are left", slog.String("sandbox", string(b.id)), slog.Any("error", err))
	}
}

// handle does what a message says.
func (m *Manager) handle(ctx context.Context, msg queue.Message) error {
	err := m.due(ctx, msg)
	m.o.Observer.Handled(msg.Kind, err)
	return err
}

// due does what a message says.
func (m *Manager) due(ctx context.Context, msg queue.Message) error {
	b, err := m.boxes.find(msg.Sandbox)
	if err != nil {
		return err
	}
	ctx = WithActor(ctx, actorManager)
	switch msg.Kind {
	case kindDeadline:
		return m.runAction(ctx, b, m.deadlineStep)
	case kindDelete:
		return m.runAction(ctx, b, m.deleteStep)
	case kindRecover: // waits for a slot of another kind
		return m.run(ctx, b, m.recoverStep)
	default:
		return sandpit.Errorf(sandpit.Unsupported, "nobody knows how to do %q", string(msg.Kind))
	}
}

// runAction takes a step with a slot for actions of the sandbox's owner.
func (m *Manager) runAction(ctx context.Context, b *box, do step) error {
	slot, err := acquire(ctx, m.slots.actions, b.look().Lease.Owner)
	if err != nil {
		return err
	}
	defer slot.Release()
	return m.run(ctx, b, do)
}

// deadlineStep does what is due at the deadline. The row knows when that is: the
// message may be from before it was moved, or the clock was set.
func (m *Manager) deadlineStep(ctx context.Context, b *box) error {
	now, err := m.now(ctx)
	if err != nil {
		return err
	}
	row := b.look()
	if !deadlineMatters(row) {
		return nil
	}
	if row.Lease.Deadline.After(now) {
		return m.scheduleDeadline(ctx, b)
	}
	const reason = "deadline"
	return m.takeAction(ctx, b, row.Lease.Action, reason, false)
}

// deleteStep goes on with a deletion that failed.
func (m *Manager) deleteStep(ctx context.Context, b *box) error {
	if b.state() != sandpit.StateDeleting {
		return nil
	}
	return m.logged("delete", map[string]string{"again": "true"}, func(ctx context.Context, b *box) error {
		if err := m.clear(ctx, b); err != nil {
			return err
		}
		m.cancelAll(ctx, b)
		return m.bury(ctx, b)
	})(ctx, b)
}
