package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// messageHandler carries out the messages of the queue.
type messageHandler struct {
	actions   *policyActions
	core      *core
	messages  *Messages
	o         *Options
	recreator *recreator
	remover   *remover
	sandboxes *recordIndex
	slots     slots
	wall      *wallClock
}

// handleMessage runs a message and reports it to the observer.
func (mh *messageHandler) handleMessage(ctx context.Context, msg queue.Message) error {
	err := mh.runMessage(ctx, msg)
	mh.o.Observer.Handled(msg.Kind, err)
	return err
}

// runMessage carries out a message.
func (mh *messageHandler) runMessage(ctx context.Context, msg queue.Message) error {
	rec, err := mh.sandboxes.find(msg.Sandbox)
	if err != nil {
		return err
	}
	ctx = WithActor(ctx, actorManager)
	switch msg.Kind {
	case kindDeadline:
		return mh.runWithSlot(ctx, rec, mh.runDeadline)
	case kindDelete:
		return mh.runWithSlot(ctx, rec, mh.remover.retryRemoval)
	case kindRecover: // acquires a slot for starts
		return mh.core.runLocked(ctx, rec, mh.recreator.recoverSandbox)
	default:
		return sandpit.Errorf(sandpit.Unsupported, "unknown message kind %q", string(msg.Kind))
	}
}

// runWithSlot runs an operation with a slot for actions of the sandbox's owner.
func (mh *messageHandler) runWithSlot(ctx context.Context, rec *sandboxRecord, do operation) error {
	slot, err := awaitSlot(ctx, mh.slots.actions, rec.currentRow().Lease.Owner)
	if err != nil {
		return err
	}
	defer slot.Release()
	return mh.core.runLocked(ctx, rec, do)
}

// runDeadline takes the lease's action if the row's deadline has passed. The message may be older
// than the row, or the clock may have been set.
func (mh *messageHandler) runDeadline(ctx context.Context, rec *sandboxRecord) error {
	now, err := mh.wall.now(ctx)
	if err != nil {
		return err
	}
	row := rec.currentRow()
	if !deadlineMatters(row) {
		return nil
	}
	if row.Lease.Deadline.After(now) {
		return mh.messages.scheduleDeadline(ctx, rec)
	}
	const reason = "deadline"
	return mh.actions.takeAction(ctx, rec, row.Lease.Action, reason, false)
}
