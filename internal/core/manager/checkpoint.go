package manager

import (
	"context"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// suspendIdle pauses a sandbox on disk that nobody has used for as long as its policy says,
// whether it runs or is paused in memory.
func (sw *sweeper) suspendIdle(ctx context.Context, b *box, row store.Row) error {
	after := row.Policy.AutoSuspend
	if row.State != sandpit.StateRunning {
		return sw.actions.tryAction(ctx, b, sandpit.ActionSuspend, fmt.Sprintf("%s for %v", row.State, after), row.Idled)
	}
	return sw.actions.endIdle(ctx, b, sandpit.ActionSuspend, after, sw.actions.tryAction)
}

// wakes reports whether using a paused or stopped sandbox resumes it.
func wakes(r store.Row) bool {
	return r.Policy.WakeOnUse || r.Idled || r.Policy.AutoSuspend > 0 && r.Suspended
}

// isAsleep reports whether a sandbox in this state can be resumed by using it.
func isAsleep(s sandpit.State) bool {
	return s == sandpit.StatePaused || s == sandpit.StateStopped
}

// resumeOnUse has a sandbox go on. Of all who have waited while somebody tried in vain, nobody
// tries again: they hear why it was in vain. before is how many tries had ended when the
// waiting began.
func (lc *lifecycle) resumeOnUse(ctx context.Context, b *box, before int) error {
	b.mu.Lock()
	tried, last := b.wakings != before, b.wakeErr
	b.mu.Unlock()
	if tried && last != nil {
		return last
	}
	row := b.look()
	var err error
	if row.State == sandpit.StatePaused {
		err = lc.core.withEvent(resuming.verb, nil, lc.newTransition(resuming, ""))(ctx, b)
	} else {
		err = lc.core.withEvent(starting.verb, nil, lc.newTransition(starting, ""))(ctx, b)
	}
	if err != nil {
		err = fmt.Errorf("wake sandbox %s, which was %s: %w", b.id, row.State, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wakings++
	b.wakeErr = err
	return err
}

// attempts is how many tries to wake a sandbox have ended.
func (b *box) attempts() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wakings
}

// Checkpoint saves the files of a running sandbox, which it begins with if it is made
// again after a crash. It goes on meanwhile, but for a moment.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it does not run.
// Unsupported: its provider cannot do that. Exhausted: no room on disk.
func (m *Manager) Checkpoint(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "checkpoint", nil, m.lifecycle.checkpointFiles)
}

func (lc *lifecycle) checkpointFiles(ctx context.Context, b *box) error {
	row := b.look()
	if err := stateError(row); err != nil {
		return err
	}
	i, err := lc.instances.ensureAttached(ctx, b)
	if err != nil {
		return err
	}
	do := checkpoint(i)
	if do == nil {
		return sandpit.Errorf(sandpit.Unsupported, "checkpoint sandbox %s: its provider %q cannot do that", b.id, row.Provider)
	}
	release, err := lc.core.acquireSlot(ctx, b, lc.slots.saves)
	if err != nil {
		return err
	}
	defer release()
	s, err := lc.disk.reserveSave(ctx, savingPlan{id: string(b.id), owner: row.Lease.Owner, disk: lc.disk.saves, bytes: lc.disk.estimateSave(ctx, i, false)})
	if err != nil {
		return err
	}
	defer s.release()
	at := lc.clock.Now() // what is written from now on may be missing
	limit := remote{what: "checkpoint sandbox " + string(b.id), limit: max(lc.o.CallTimeout, lc.o.MoveTimeout)}
	if _, err := call(s.within(ctx), lc.core.loops, limit, none(do), nil); err != nil {
		s.undo()
		return err
	}
	s.finishCheckpoint()
	return lc.records.updateRow(ctx, b, func(r *store.Row) { r.CheckpointedAt = at })
}

// clearCheckpoint writes down that a sandbox has none any more: its provider has removed
// it, because it was too old or too large.
func (lc *lifecycle) clearCheckpoint(ctx context.Context, b *box) error {
	if b.look().CheckpointedAt.IsZero() {
		return errNothing
	}
	return lc.records.updateRow(ctx, b, func(r *store.Row) { r.CheckpointedAt = time.Time{} })
}
