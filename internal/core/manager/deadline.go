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

// messageHandler carries out the messages of the queue.
type messageHandler struct {
	actions   *policyActions
	core      *core
	messages  *Messages
	o         *Options
	recreator *recreator
	remover   *remover
	sandboxes *index
	slots     slots
	wall      *wallClock
}

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
	now, err := m.wall.now(ctx)
	if err != nil {
		return err
	}
	keeps := l.Action == ""
	if l, err = prepareLease(l, now); err != nil {
		return err
	}
	args := map[string]string{"deadline": l.Deadline.Format(time.RFC3339Nano)}
	return m.core.runOperation(ctx, id, "set deadline", args, func(ctx context.Context, b *box) error {
		row := b.look()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		if keeps {
			l.Action = cmp.Or(row.Lease.Action, l.Action)
		} else if err := m.checkAction(ctx, b, l.Action); err != nil {
			return err
		}
		l.Owner, args["action"] = row.Lease.Owner, string(l.Action)
		if err := m.records.updateRow(ctx, b, func(r *store.Row) { r.Lease, r.Term = l, termOf(l, now) }); err != nil {
			return err
		}
		return m.messages.scheduleDeadline(ctx, b)
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
	return m.core.runOperation(ctx, id, "set labels", nil, func(ctx context.Context, b *box) error {
		row := b.look()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		changed := row.Sandbox
		changed.Spec = row.Spec.Clone()
		changed.Spec.Labels = sandpit.Spec{Labels: labels}.Clone().Labels
		if err := m.quota.change(changed); err != nil {
			return err
		}
		err := m.records.updateRow(ctx, b, func(r *store.Row) { r.Spec = changed.Spec })
		if err != nil {
			m.quota.revert(row.Sandbox)
		}
		return err
	})
}

// checkAction refuses an action that a sandbox cannot take.
func (m *Manager) checkAction(ctx context.Context, b *box, a sandpit.Action) error {
	if a == sandpit.ActionKill {
		return nil
	}
	i, err := m.instances.ensureAttached(ctx, b)
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
func (ms *Messages) scheduleDeadline(ctx context.Context, b *box) error {
	row := b.look()
	if row.Lease.Deadline.IsZero() {
		_, err := ms.queue.Cancel(ctx, b.id, kindDeadline)
		return err
	}
	_, err := ms.queue.Schedule(ctx, ms.newMessage(b, kindDeadline, row.Lease.Deadline))
	ms.wakeWorker()
	return err
}

func (ms *Messages) newMessage(b *box, k queue.Kind, due time.Time) queue.Message {
	return queue.Message{Topic: ms.identity, Sandbox: b.id, Kind: k, Due: due}
}

// scheduleMessage has something tried again that nobody waits for. What the queue does
// not take is found by the sweep.
func (ms *Messages) scheduleMessage(ctx context.Context, b *box, k queue.Kind, due time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	if _, err := ms.queue.Schedule(ctx, ms.newMessage(b, k, due)); err != nil {
		ms.log.WarnContext(ctx, "an operation cannot be queued and waits for the sweep",
			slog.String("sandbox", string(b.id)), slog.String("kind", string(k)), slog.Any("error", err))
	}
	ms.wakeWorker()
}

func (ms *Messages) wakeWorker() {
	if ms.worker != nil {
		ms.worker.Wake()
	}
}

// cancelMessages removes a sandbox's messages. One that is left finds nothing to do.
func (ms *Messages) cancelMessages(ctx context.Context, b *box) {
	if _, err := ms.queue.Cancel(ctx, b.id); err != nil {
		ms.log.InfoContext(ctx, "messages for a sandbox that is gone are left", slog.String("sandbox", string(b.id)), slog.Any("error", err))
	}
}

// handleMessage does what a message says.
func (mh *messageHandler) handleMessage(ctx context.Context, msg queue.Message) error {
	err := mh.runMessage(ctx, msg)
	mh.o.Observer.Handled(msg.Kind, err)
	return err
}

// runMessage does what a message says.
func (mh *messageHandler) runMessage(ctx context.Context, msg queue.Message) error {
	b, err := mh.sandboxes.find(msg.Sandbox)
	if err != nil {
		return err
	}
	ctx = WithActor(ctx, actorManager)
	switch msg.Kind {
	case kindDeadline:
		return mh.runWithSlot(ctx, b, mh.runDeadline)
	case kindDelete:
		return mh.runWithSlot(ctx, b, mh.remover.retryRemoval)
	case kindRecover: // waits for a slot of another kind
		return mh.core.runLocked(ctx, b, mh.recreator.recoverSandbox)
	default:
		return sandpit.Errorf(sandpit.Unsupported, "nobody knows how to do %q", string(msg.Kind))
	}
}

// runWithSlot takes a step with a slot for actions of the sandbox's owner.
func (mh *messageHandler) runWithSlot(ctx context.Context, b *box, do step) error {
	slot, err := acquire(ctx, mh.slots.actions, b.look().Lease.Owner)
	if err != nil {
		return err
	}
	defer slot.Release()
	return mh.core.runLocked(ctx, b, do)
}

// runDeadline does what is due at the deadline. The row knows when that is: the
// message may be from before it was moved, or the clock was set.
func (mh *messageHandler) runDeadline(ctx context.Context, b *box) error {
	now, err := mh.wall.now(ctx)
	if err != nil {
		return err
	}
	row := b.look()
	if !deadlineMatters(row) {
		return nil
	}
	if row.Lease.Deadline.After(now) {
		return mh.messages.scheduleDeadline(ctx, b)
	}
	const reason = "deadline"
	return mh.actions.takeAction(ctx, b, row.Lease.Action, reason, false)
}

// retryRemoval goes on with a deletion that failed.
func (rm *remover) retryRemoval(ctx context.Context, b *box) error {
	if b.state() != sandpit.StateDeleting {
		return nil
	}
	return rm.core.withEvent("delete", map[string]string{"again": "true"}, func(ctx context.Context, b *box) error {
		if err := rm.clearResources(ctx, b); err != nil {
			return err
		}
		rm.messages.cancelMessages(ctx, b)
		return rm.finishRemoval(ctx, b)
	})(ctx, b)
}
