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

// actionFunc takes an action that no request asks for; idle says that the sandbox is idle.
type actionFunc func(ctx context.Context, b *sandboxRecord, a sandpit.Action, reason string, idle bool) error

// endIdle has an action taken on a sandbox that has been idle for so long, unless it is used
// meanwhile or a program runs in it.
func (pa *policyActions) endIdle(ctx context.Context, rec *sandboxRecord, a sandpit.Action, after time.Duration, take actionFunc) error {
	reason, err := pa.confirmIdle(ctx, rec, after, a == sandpit.ActionKill)
	if err != nil {
		return err
	}
	return take(ctx, rec, a, reason, true)
}

// takeAction takes an action that no request asks for. One that a sandbox turns out to be unable
// to take is replaced by another that keeps its files, in its policy or lease as well, so that
// clients see what happens.
func (pa *policyActions) takeAction(ctx context.Context, rec *sandboxRecord, a sandpit.Action, reason string, idle bool) error {
	var tried []sandpit.Action
	for {
		err := pa.tryAction(ctx, rec, a, reason, idle)
		if a == sandpit.ActionKill || !errors.Is(err, sandpit.Unsupported) {
			return err
		}
		i, located := pa.instances.ensureAttached(ctx, rec)
		if located != nil {
			return errors.Join(err, located)
		}
		tried = append(tried, a)
		a = bestKeepingAction(i, tried...)
		if replaced := pa.replaceAction(ctx, rec, a, idle); a == "" || replaced != nil {
			return errors.Join(err, replaced)
		}
	}
}

// replaceAction has a sandbox's policy or lease name another action; "" means that there is none
// that the sandbox can take.
func (pa *policyActions) replaceAction(ctx context.Context, rec *sandboxRecord, a sandpit.Action, idle bool) error {
	return pa.records.updateRow(ctx, rec, func(r *store.Row) {
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
func (pa *policyActions) tryAction(ctx context.Context, rec *sandboxRecord, a sandpit.Action, reason string, idle bool) error {
	var v transition
	args := map[string]string{"reason": reason}
	switch a {
	case sandpit.ActionStop:
		v = stopFrom(rec.state())
	case sandpit.ActionPause:
		v = pausing
	case sandpit.ActionSuspend:
		v, args = suspendFrom(rec.state()), newDiskArgs(reason)
	default:
		return pa.core.withEvent("delete", args, pa.remover.newRemoval(reason))(ctx, rec)
	}
	v.idle = idle
	return pa.core.withEvent(v.verb, args, pa.lifecycle.newTransition(v, reason))(ctx, rec)
}

// confirmIdle returns the reason to end a sandbox that is idle, to which nobody comes any
// more from here on. errNothingToDo: it is not idle.
func (pa *policyActions) confirmIdle(ctx context.Context, rec *sandboxRecord, after time.Duration, kill bool) (string, error) {
	busy, err := pa.isBusy(ctx, rec)
	if err != nil {
		return "", err
	}
	if busy {
		pa.wall.noteUse(ctx, rec)
		return "", errNothingToDo
	}
	now, err := pa.wall.now(ctx)
	if err != nil {
		return "", err
	}
	reason := fmt.Sprintf("idle for %v", after)
	why := sandpit.Errorf(sandpit.Conflict, "sandbox %s is about to be no longer running: %s", rec.id, reason)
	if kill {
		why = newGoneError(rec.id, reason)
	}
	// Who came meanwhile wins; who comes from here on is refused.
	if !rec.refuseIfUnused(why, !kill, func(r store.Row) bool { return !r.LastUsedAt.Add(after).After(now) }) {
		return "", errNothingToDo
	}
	return reason, nil
}

// isBusy reports whether something runs in a sandbox that counts as use. A guest
// that does not say so again and again is one that nobody can use.
func (pa *policyActions) isBusy(ctx context.Context, rec *sandboxRecord) (bool, error) {
	if rec.currentRow().Policy.IgnoreBackground {
		return false, nil
	}
	list, err := pa.instances.listProcesses(ctx, rec)
	if err == nil {
		return len(list) > 0, nil
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.failures < maxGuestFailures && !errors.Is(err, sandpit.Conflict) {
		return false, err
	}
	return false, nil
}
