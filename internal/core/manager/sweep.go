package manager

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// sweeper runs the actions of policies when they are due.
type sweeper struct {
	actions   *policyActions
	clock     clock.Clock
	core      *core
	lifecycle *lifecycle
	log       *slog.Logger
	messages  *Messages
	o         *Options
	records   *recordStore
	remover   *remover
	sandboxes *recordIndex
	slots     slots
	wall      *wallClock
}

// The times of the sweep.
const (
	sweepPause       = 50 * time.Millisecond // the shortest time between two sweeps
	flushPause       = time.Second           // between two writes of times of last use
	dueRetry         = time.Minute           // after a failed action; doubles
	dueRetryLimit    = time.Hour             // the longest delay
	maxGuestFailures = 3                     // failed requests whether a guest is busy
)

// runLoop sweeps until ctx ends.
func (sw *sweeper) runLoop(ctx context.Context) {
	ensured := time.Now()
	for ctx.Err() == nil {
		next := sw.sweepDue(ctx)
		if err := sw.records.flushUses(ctx); err != nil && ctx.Err() == nil {
			sw.log.WarnContext(ctx, "manager: times of last use not written", slog.Any("error", err))
		}
		if time.Since(ensured) >= sw.o.Sweep {
			sw.messages.ensureScheduled(ctx, false)
			ensured = time.Now()
		}
		sw.waitForWork(ctx, min(next, sw.o.Sweep))
	}
}

// waitForWork waits at most d for due actions or for times of last use to write.
func (sw *sweeper) waitForWork(ctx context.Context, d time.Duration) {
	if sleep(ctx, min(d, sweepPause)) != nil {
		return
	}
	sw.records.used.mu.Lock()
	if len(sw.records.used.list) > 0 {
		d = min(d, flushPause)
	}
	sw.records.used.mu.Unlock()
	timer := time.NewTimer(d - min(d, sweepPause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-sw.core.sweepRequest:
	case <-ctx.Done():
	}
}

// sweepDue starts the actions that are due and returns the time until the next one.
func (sw *sweeper) sweepDue(ctx context.Context) time.Duration {
	now, err := sw.wall.now(ctx)
	if err != nil {
		if ctx.Err() == nil {
			sw.log.WarnContext(ctx, "manager: sweep skipped; clock jump not handled", slog.Any("error", err))
		}
		return flushPause
	}
	next := sw.o.Sweep
	for _, rec := range sw.sandboxes.all() {
		c, ok := rec.nextDue(sw.o.Remember)
		switch {
		case !ok:
		case c.at.After(now):
			next = min(next, c.at.Sub(now))
		default:
			sw.startDue(rec)
		}
	}
	return next
}

// dueAction is an action of a sandbox's policy, and when it is due.
type dueAction struct {
	what dueKind
	at   time.Time
}

type dueKind int

const (
	dueIdle dueKind = iota
	dueStop
	dueSuspend
	dueCheckpoint
	dueArchive
	dueDelete
	dueForget
)

// nextDue returns the next due action. While a sandbox is used, there are only checkpoints.
func (rec *sandboxRecord) nextDue(remember time.Duration) (dueAction, bool) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.hasDueRun {
		return dueAction{}, false
	}
	c, ok := findDue(rec.row, remember)
	if len(rec.handles) > 0 { // not idle
		c, ok = findCheckpoint(rec.row)
	}
	if ok && c.at.Before(rec.retryAt) {
		c.at = rec.retryAt
	}
	return c, ok
}

// findDue returns the next due action of a sandbox that is not in use.
func findDue(r store.Row, remember time.Duration) (dueAction, bool) {
	next, ok := findAging(r, remember)
	if c, due := findCheckpoint(r); due && (!ok || c.at.Before(next.at)) {
		return c, true
	}
	return next, ok
}

// findAging returns the next due action that changes a sandbox's state.
func findAging(r store.Row, remember time.Duration) (next dueAction, ok bool) {
	plan := func(what dueKind, after time.Duration, since time.Time) {
		if at := since.Add(after); after > 0 && (!ok || at.Before(next.at)) {
			next, ok = dueAction{what, at}, true
		}
	}
	switch r.State {
	case sandpit.StateRunning:
		plan(dueIdle, r.Policy.IdleTimeout, r.LastUsedAt)
		plan(dueStop, r.Policy.AutoStop, r.LastUsedAt)
		plan(dueSuspend, r.Policy.AutoSuspend, r.LastUsedAt)
	case sandpit.StatePaused:
		if !r.Suspended {
			plan(dueSuspend, r.Policy.AutoSuspend, r.ChangedAt)
		}
	case sandpit.StateStopped:
		plan(dueDelete, r.Policy.AutoDelete, r.ChangedAt)
		plan(dueArchive, r.Policy.AutoArchive, r.ChangedAt)
	case sandpit.StateArchived:
		plan(dueDelete, r.Policy.AutoDelete, r.ChangedAt)
	case sandpit.StateDeleted:
		plan(dueForget, remember, r.ChangedAt)
	default:
	}
	return next, ok
}

// nextAction returns what happens to a sandbox next without a request. While the sandbox is in use,
// only its deadline counts. The lock is held.
func (rec *sandboxRecord) nextAction() sandpit.Upcoming {
	r := rec.row
	var next sandpit.Upcoming
	if c, ok := findAging(r, 0); ok && len(rec.handles) == 0 {
		next = sandpit.Upcoming{Action: c.action(r), At: c.at, Cause: c.cause(r)}
		if next.At.Before(rec.retryAt) {
			next.At = rec.retryAt
		}
	}
	if deadlineMatters(r) && (next.Action == "" || !r.Lease.Deadline.After(next.At)) {
		next = sandpit.Upcoming{Action: r.Lease.Action, At: r.Lease.Deadline, Cause: sandpit.CauseDeadline}
	}
	return next
}

// action returns the action for clients.
func (c dueAction) action(r store.Row) sandpit.Action {
	switch c.what {
	case dueIdle:
		return r.Policy.IdleAction
	case dueStop:
		return sandpit.ActionStop
	case dueSuspend:
		return sandpit.ActionSuspend
	case dueArchive:
		return sandpit.ActionArchive
	default:
		return sandpit.ActionKill
	}
}

// cause returns the cause for clients.
func (c dueAction) cause(r store.Row) string {
	if r.State == sandpit.StateRunning {
		return sandpit.CauseIdle
	}
	return string(r.State)
}

// findCheckpoint returns when the files of a sandbox are to be checkpointed. The files that it was
// started with are on disk already.
func findCheckpoint(r store.Row) (dueAction, bool) {
	since := r.CheckpointedAt
	if r.ChangedAt.After(since) {
		since = r.ChangedAt
	}
	every := r.Policy.CheckpointEvery
	return dueAction{dueCheckpoint, since.Add(every)}, every > 0 && r.State == sandpit.StateRunning
}

// startDue runs a sandbox's due action in the background, unless the sandbox is locked.
func (sw *sweeper) startDue(rec *sandboxRecord) {
	rec.mu.Lock()
	rec.hasDueRun = true
	rec.mu.Unlock()
	sw.core.loops.start(func(ctx context.Context) {
		slot, err := awaitSlot(ctx, sw.slots.actions, rec.currentRow().Lease.Owner)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			defer slot.Release()
			err = sw.core.runIfUnlocked(ctx, rec, sw.runDue)
		}
		sw.recordOutcome(ctx, rec, err)
	})
}

// recordOutcome records how a due action ended. The delay after a failure doubles.
func (sw *sweeper) recordOutcome(ctx context.Context, rec *sandboxRecord, err error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	defer sw.core.triggerSweep()
	rec.hasDueRun = false
	if err == nil {
		rec.failures, rec.retryAt = 0, time.Time{}
		return
	}
	pause := dueRetryLimit
	if rec.failures < 6 {
		pause = min(dueRetry<<rec.failures, dueRetryLimit)
	}
	rec.failures++
	rec.retryAt = sw.clock.Now().Add(pause)
	sw.log.WarnContext(ctx, "manager: scheduled action failed", slog.String("sandbox", string(rec.id)),
		slog.Any("error", err), slog.Duration("retry_in", pause))
}

// runDue runs the action that is due, if it still is.
func (sw *sweeper) runDue(ctx context.Context, rec *sandboxRecord) error {
	now, err := sw.wall.now(ctx)
	if err != nil {
		return err
	}
	row := rec.currentRow()
	if c, due := findCheckpoint(row); due && !c.at.After(now) {
		return sw.core.withEvent("checkpoint", nil, sw.lifecycle.checkpointFiles)(ctx, rec)
	}
	c, ok := findDue(row, sw.o.Remember)
	if !ok || c.at.After(now) {
		return errNothingToDo
	}
	switch c.what {
	case dueIdle:
		return sw.actions.endIdle(ctx, rec, row.Policy.IdleAction, row.Policy.IdleTimeout, sw.actions.takeAction)
	case dueStop:
		return sw.actions.endIdle(ctx, rec, sandpit.ActionStop, row.Policy.AutoStop, sw.actions.tryAction)
	case dueSuspend:
		return sw.suspendIdle(ctx, rec, row)
	case dueArchive:
		reason := fmt.Sprintf("stopped for %v", row.Policy.AutoArchive)
		return sw.core.withEvent("archive", map[string]string{"reason": reason}, sw.lifecycle.newTransition(archiving, reason))(ctx, rec)
	case dueDelete:
		reason := fmt.Sprintf("%s for %v", row.State, row.Policy.AutoDelete)
		return sw.core.withEvent("delete", map[string]string{"reason": reason}, sw.remover.newRemoval(reason))(ctx, rec)
	default:
		return sw.records.deleteRow(ctx, rec)
	}
}

// suspendIdle suspends a sandbox that has not been used for the time of its policy, whether it runs
// or is paused in memory.
func (sw *sweeper) suspendIdle(ctx context.Context, rec *sandboxRecord, row store.Row) error {
	after := row.Policy.AutoSuspend
	if row.State != sandpit.StateRunning {
		return sw.actions.tryAction(ctx, rec, sandpit.ActionSuspend, fmt.Sprintf("%s for %v", row.State, after), row.Idled)
	}
	return sw.actions.endIdle(ctx, rec, sandpit.ActionSuspend, after, sw.actions.tryAction)
}
