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

// actionFunc takes an action that no request asks for; idle reports whether the sandbox is idle.
type actionFunc func(ctx context.Context, b *sandboxRecord, a sandpit.Action, reason string, idle bool) error

// endIdle takes an action on a sandbox that has been idle for a time, unless the sandbox is used
// meanwhile or a program runs in it.
func (pa *policyActions) endIdle(ctx context.Context, rec *sandboxRecord, a sandpit.Action, after time.Duration, take actionFunc) error {
	reason, err := pa.confirmIdle(ctx, rec, after, a == sandpit.ActionKill)
	if err != nil {
		return err
	}
	return take(ctx, rec, a, reason, true)
}

// takeAction takes an action that no request asks for. An action that the sandbox turns out not to
// support is replaced by another that keeps its files, also in the policy or lease, so that clients
// see it.
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

// replaceAction sets another action in a sandbox's policy or lease; "" means that the sandbox
// supports none.
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

// confirmIdle checks that a sandbox is idle, refuses further use, and returns the reason to end it.
// errNothingToDo: it is not idle.
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
	why := sandpit.Errorf(sandpit.Conflict, "sandbox %s is being stopped: %s", rec.id, reason)
	if kill {
		why = newGoneError(rec.id, reason)
	}
	// A use that has begun meanwhile wins; later ones are refused.
	if !rec.refuseIfUnused(why, !kill, func(r store.Row) bool { return !r.LastUsedAt.Add(after).After(now) }) {
		return "", errNothingToDo
	}
	return reason, nil
}

// isBusy reports whether a process that counts as activity runs in a sandbox. A guest that
// repeatedly fails to answer counts as not busy: nothing can use it.
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
