package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// instances attaches to the instances of sandboxes and watches them.
type instances struct {
	audit    *guestAudit
	core     *core
	identity string
	log      *slog.Logger
	o        *Options
	onEnd    func(context.Context, *box, sandpit.Instance, sandpit.Exit) error // handles the end of an instance
}

// as returns an ability of an instance, if it has it.
func as[T any](i sandpit.Instance) (T, bool) {
	ability, ok := i.(T)
	return ability, ok
}

// ensureAttached returns the instance of a sandbox, and attaches to it first if that has
// not happened since the manager was opened. Only who has the turn may call it.
// NotFound: the provider does not know it.
func (is *instances) ensureAttached(ctx context.Context, b *box) (sandpit.Instance, error) {
	if i := b.placed(); i != nil {
		return i, nil
	}
	row := b.look()
	if len(row.Handle) == 0 {
		return nil, sandpit.Errorf(sandpit.NotFound, "sandbox %s was never made", b.id)
	}
	i, err := is.attachHandle(ctx, b, row.Handle)
	if err != nil {
		return nil, err
	}
	is.recordInstance(b, i)
	return i, nil
}

// attachHandle asks a provider for an instance and makes sure that it is the right one.
func (is *instances) attachHandle(ctx context.Context, b *box, handle []byte) (sandpit.Instance, error) {
	if b.provider == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "sandbox %s: its provider %q is not configured", b.id, b.look().Provider)
	}
	i, err := call(ctx, is.core.loops, is.core.newCall("attach"), func(ctx context.Context) (sandpit.Instance, error) {
		return b.provider.Attach(ctx, handle)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("attach to sandbox %s: %w", b.id, err)
	}
	if i.ID() != b.id {
		return nil, sandpit.Errorf(sandpit.Internal, "attach to sandbox %s: the provider answered with %.64q", b.id, string(i.ID()))
	}
	is.audit.observeGuest(b, i)
	return i, nil
}

func (c *core) newCall(what string) remote { return remote{what: what, limit: c.o.CallTimeout} }

// recordInstance keeps an instance and watches for its end.
func (is *instances) recordInstance(b *box, i sandpit.Instance) {
	if b.place(i) {
		is.core.loops.start(func(ctx context.Context) { is.watchInstance(ctx, b, i) })
	}
}

// The pauses between two tries to watch an instance.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// watchInstance waits for the end of an instance.
func (is *instances) watchInstance(ctx context.Context, b *box, i sandpit.Instance) {
	pause := firstPause
	for ctx.Err() == nil && b.placed() == i {
		exit, err := call(ctx, is.core.loops, remote{what: "wait"}, i.Wait, nil)
		if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
			exit, err = sandpit.Exit{}, nil
		}
		if err == nil {
			err = is.core.runLocked(ctx, b, func(ctx context.Context, b *box) error { return is.onEnd(ctx, b, i, exit) })
			if err == nil {
				return
			}
		}
		if ctx.Err() != nil || errors.Is(err, errClosed) {
			return // the manager ends, and the next one looks again
		}
		is.log.WarnContext(ctx, "the end of a sandbox cannot be seen, or dealt with", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		if sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// handleEnd deals with an instance that has ended by itself.
func (re *recreator) handleEnd(ctx context.Context, b *box, i sandpit.Instance, exit sandpit.Exit) error {
	if b.placed() != i {
		return nil // it was ended by us, or made again
	}
	reason := exit.Reason
	if reason == "" {
		reason = "it ended by itself"
	}
	if !exit.Known {
		reason = "vanished: " + reason
	}
	return re.handleLoss(ctx, b, reason)
}

// actionLost is the action of an event that says that a sandbox has ended without our doing.
const actionLost = "lost"

// handleLoss deals with a sandbox that has ended without our doing: it is made again if
// its policy says so, else it is remembered as deleted.
func (re *recreator) handleLoss(ctx context.Context, b *box, reason string) error {
	row := b.look()
	switch {
	case row.State == sandpit.StateDeleting, row.State == sandpit.StateDeleted, row.State == sandpit.StateError:
		return nil // and what is being deleted is the queue's business
	case row.State == sandpit.StateRunning && row.Recreated < row.Policy.Recreate:
		return re.core.withEvent(actionLost, map[string]string{"reason": reason}, func(ctx context.Context, b *box) error {
			return re.markBroken(ctx, b, reason)
		})(ctx, b)
	}
	return re.core.withEvent(actionLost, map[string]string{"reason": reason}, re.remover.newRemoval(reason))(ctx, b)
}

// markBroken leaves a sandbox in error, to be made again.
func (re *recreator) markBroken(ctx context.Context, b *box, reason string) error {
	cause := gone(b.id, reason)
	b.refuse(cause)
	if err := re.records.changeState(ctx, b, sandpit.StateError, withReason(reason)); err != nil {
		return err
	}
	re.core.notifyEnd(b, cause)
	re.messages.scheduleMessage(ctx, b, kindRecover, re.clock.Now())
	return nil
}
