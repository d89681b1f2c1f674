package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// policyActions takes the actions that policies and deadlines ask for.
type policyActions struct {
	core      *core
	instances *instances
	lifecycle *lifecycle
	records   *recordStore
	remover   *remover
	wall      *wallClock
}

// actor takes an action that no request asks for; idle says that the sandbox is idle.
type actor func(ctx context.Context, b *box, a sandpit.Action, reason string, idle bool) error

// endIdle has an action taken on a sandbox that has been idle for so long, unless it is used
// meanwhile or a program runs in it.
func (pa *policyActions) endIdle(ctx context.Context, b *box, a sandpit.Action, after time.Duration, take actor) error {
	reason, err := pa.confirmIdle(ctx, b, after, a == sandpit.ActionKill)
	if err != nil {
		return err
	}
	return take(ctx, b, a, reason, true)
}

// takeAction takes an action that no request asks for. One that a sandbox turns out to be unable
// to take is replaced by another that keeps its files, in its policy or lease as well, so that
// clients see what happens.
func (pa *policyActions) takeAction(ctx context.Context, b *box, a sandpit.Action, reason string, idle bool) error {
	var tried []sandpit.Action
	for {
		err := pa.tryAction(ctx, b, a, reason, idle)
		if a == sandpit.ActionKill || !errors.Is(err, sandpit.Unsupported) {
			return err
		}
		i, located := pa.instances.ensureAttached(ctx, b)
		if located != nil {
			return errors.Join(err, located)
		}
		tried = append(tried, a)
		a = keepingAction(i, tried...)
		if replaced := pa.replaceAction(ctx, b, a, idle); a == "" || replaced != nil {
			return errors.Join(err, replaced)
		}
	}
}

// replaceAction has a sandbox's policy or lease name another action; "" means that there is none
// that the sandbox can take.
func (pa *policyActions) replaceAction(ctx context.Context, b *box, a sandpit.Action, idle bool) error {
	return pa.records.updateRow(ctx, b, func(r *store.Row) {
		switch {
		case idle && a == "":
			r.Policy.IdleTimeout = 0
		case idle:
			r.Policy.IdleAction = a
		case a != "":
			r.Lease.Action = a
		}
	})
}

// tryAction takes an action once.
func (pa *policyActions) tryAction(ctx context.Context, b *box, a sandpit.Action, reason string, idle bool) error {
	var v move
	args := map[string]string{"reason": reason}
	switch a {
	case sandpit.ActionStop:
		v = stoppingFrom(b.state())
	case sandpit.ActionPause:
		v = pausing
	case sandpit.ActionSuspend:
		v, args = suspendingFrom(b.state()), onDisk(reason)
	default:
		return pa.core.withEvent("delete", args, pa.remover.newRemoval(reason))(ctx, b)
	}
	v.idle = idle
	return pa.core.withEvent(v.verb, args, pa.lifecycle.newTransition(v, reason))(ctx, b)
}

// confirmIdle returns the reason to end a sandbox that is idle, to which nobody comes any
// more from here on. errNothing: it is not idle.
func (pa *policyActions) confirmIdle(ctx context.Context, b *box, after time.Duration, kill bool) (string, error) {
	busy, err := pa.isBusy(ctx, b)
	if err != nil {
		return "", err
	}
	if busy {
		pa.wall.noteUse(ctx, b)
		return "", errNothing
	}
	now, err := pa.wall.now(ctx)
	if err != nil {
		return "", err
	}
	reason := fmt.Sprintf("idle for %v", after)
	why := sandpit.Errorf(sandpit.Conflict, "sandbox %s is about to be no longer running: %s", b.id, reason)
	if kill {
		why = gone(b.id, reason)
	}
	// Who came meanwhile wins; who comes from here on is refused.
	if !b.free(why, !kill, func(r store.Row) bool { return !r.LastUsedAt.Add(after).After(now) }) {
		return "", errNothing
	}
	return reason, nil
}

// isBusy reports whether something runs in a sandbox that counts as use. A guest
// that does not say so again and again is one that nobody can use.
func (pa *policyActions) isBusy(ctx context.Context, b *box) (bool, error) {
	if b.look().Policy.IgnoreBackground {
		return false, nil
	}
	list, err := pa.instances.listProcesses(ctx, b)
	if err == nil {
		return len(list) > 0, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < deafGuest && !errors.Is(err, sandpit.Conflict) {
		return false, err
	}
	return false, nil
}
