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
	sandboxes *index
	slots     slots
	wall      *wallClock
}

// The paces of the sweep.
const (
	sweepPause = 50 * time.Millisecond // the least between two looks
	flushPause = time.Second           // between two writes of times of last use
	choreRetry = time.Minute           // after a chore that failed; doubles
	choreLimit = time.Hour             // and is never longer
	deafGuest  = 3                     // times that a guest may not answer whether it is busy
)

// runLoop does what is due by itself, when it is due.
func (sw *sweeper) runLoop(ctx context.Context) {
	ensured := time.Now()
	for ctx.Err() == nil {
		next := sw.sweepDue(ctx)
		if err := sw.records.flushUses(ctx); err != nil && ctx.Err() == nil {
			sw.log.WarnContext(ctx, "times of last use cannot be written", slog.Any("error", err))
		}
		if time.Since(ensured) >= sw.o.Sweep {
			sw.messages.ensureScheduled(ctx, false)
			ensured = time.Now()
		}
		sw.waitForWork(ctx, min(next, sw.o.Sweep))
	}
}

// waitForWork waits until there may be something to do, or something to write.
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

// sweepDue begins what is due and returns when the next thing is.
func (sw *sweeper) sweepDue(ctx context.Context) time.Duration {
	now, err := sw.wall.now(ctx)
	if err != nil {
		if ctx.Err() == nil {
			sw.log.WarnContext(ctx, "nothing is done by itself until the time is settled", slog.Any("error", err))
		}
		return flushPause
	}
	next := sw.o.Sweep
	for _, b := range sw.sandboxes.all() {
		c, ok := b.chore(sw.o.Remember)
		switch {
		case !ok:
		case c.at.After(now):
			next = min(next, c.at.Sub(now))
		default:
			sw.startDue(b)
		}
	}
	return next
}

// chore is what is to be done with a sandbox by itself.
type chore struct {
	what choreKind
	at   time.Time
}

type choreKind int

const (
	choreIdle choreKind = iota
	choreStop
	choreSuspend
	choreCheckpoint
	choreArchive
	choreDelete
	choreForget
)

// chore returns the next one. While a sandbox is used there are checkpoints only.
func (b *box) chore(remember time.Duration) (chore, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tended {
		return chore{}, false
	}
	c, ok := choreOf(b.row, remember)
	if len(b.handles) > 0 { // it is not idle
		c, ok = checkpointOf(b.row)
	}
	if ok && c.at.Before(b.retryAt) {
		c.at = b.retryAt
	}
	return c, ok
}

// choreOf returns the next chore of a sandbox that is not in use.
func choreOf(r store.Row, remember time.Duration) (chore, bool) {
	next, ok := agingOf(r, remember)
	if c, due := checkpointOf(r); due && (!ok || c.at.Before(next.at)) {
		return c, true
	}
	return next, ok
}

// agingOf returns the next chore of a sandbox that changes its state.
func agingOf(r store.Row, remember time.Duration) (next chore, ok bool) {
	plan := func(what choreKind, after time.Duration, since time.Time) {
		if at := since.Add(after); after > 0 && (!ok || at.Before(next.at)) {
			next, ok = chore{what, at}, true
		}
	}
	switch r.State {
	case sandpit.StateRunning:
		plan(choreIdle, r.Policy.IdleTimeout, r.LastUsedAt)
		plan(choreStop, r.Policy.AutoStop, r.LastUsedAt)
		plan(choreSuspend, r.Policy.AutoSuspend, r.LastUsedAt)
	case sandpit.StatePaused:
		if !r.Suspended {
			plan(choreSuspend, r.Policy.AutoSuspend, r.ChangedAt)
		}
	case sandpit.StateStopped:
		plan(choreDelete, r.Policy.AutoDelete, r.ChangedAt)
		plan(choreArchive, r.Policy.AutoArchive, r.ChangedAt)
	case sandpit.StateArchived:
		plan(choreDelete, r.Policy.AutoDelete, r.ChangedAt)
	case sandpit.StateDeleted:
		plan(choreForget, remember, r.ChangedAt)
	default:
	}
	return next, ok
}

// upcoming returns what happens to a sandbox next without a request. While it is in use, only
// its deadline counts. The lock is held.
func (b *box) upcoming() sandpit.Upcoming {
	r := b.row
	var next sandpit.Upcoming
	if c, ok := agingOf(r, 0); ok && len(b.handles) == 0 {
		next = sandpit.Upcoming{Action: c.action(r), At: c.at, Cause: c.cause(r)}
		if next.At.Before(b.retryAt) {
			next.At = b.retryAt
		}
	}
	if deadlineMatters(r) && (next.Action == "" || !r.Lease.Deadline.After(next.At)) {
		next = sandpit.Upcoming{Action: r.Lease.Action, At: r.Lease.Deadline, Cause: sandpit.CauseDeadline}
	}
	return next
}

// action returns what a chore does to a sandbox.
func (c chore) action(r store.Row) sandpit.Action {
	switch c.what {
	case choreIdle:
		return r.Policy.IdleAction
	case choreStop:
		return sandpit.ActionStop
	case choreSuspend:
		return sandpit.ActionSuspend
	case choreArchive:
		return sandpit.ActionArchive
	default:
		return sandpit.ActionKill
	}
}

// cause returns why a chore is done.
func (c chore) cause(r store.Row) string {
	if r.State == sandpit.StateRunning {
		return sandpit.CauseIdle
	}
	return string(r.State)
}

// checkpointOf returns when the files of a sandbox are to be saved. What it has begun to
// run with is on disk already, or worth nothing.
func checkpointOf(r store.Row) (chore, bool) {
	since := r.CheckpointedAt
	if r.ChangedAt.After(since) {
		since = r.ChangedAt
	}
	every := r.Policy.CheckpointEvery
	return chore{choreCheckpoint, since.Add(every)}, every > 0 && r.State == sandpit.StateRunning
}

// startDue does a sandbox's chore, beside others, unless somebody else has its turn.
func (sw *sweeper) startDue(b *box) {
	b.mu.Lock()
	b.tended = true
	b.mu.Unlock()
	sw.core.loops.start(func(ctx context.Context) {
		slot, err := acquire(ctx, sw.slots.actions, b.look().Lease.Owner)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			defer slot.Release()
			err = sw.core.runIfUnlocked(ctx, b, sw.runDue)
		}
		sw.recordOutcome(ctx, b, err)
	})
}

// recordOutcome notes how a chore went. One that failed waits longer each time.
func (sw *sweeper) recordOutcome(ctx context.Context, b *box, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer sw.core.triggerSweep()
	b.tended = false
	if err == nil {
		b.failures, b.retryAt = 0, time.Time{}
		return
	}
	pause := choreLimit
	if b.failures < 6 {
		pause = min(choreRetry<<b.failures, choreLimit)
	}
	b.failures++
	b.retryAt = sw.clock.Now().Add(pause)
	sw.log.WarnContext(ctx, "what was due by itself was not done", slog.String("sandbox", string(b.id)),
		slog.Any("error", err), slog.Duration("again in", pause))
}

// runDue does what is due, if it still is.
func (sw *sweeper) runDue(ctx context.Context, b *box) error {
	now, err := sw.wall.now(ctx)
	if err != nil {
		return err
	}
	row := b.look()
	if c, due := checkpointOf(row); due && !c.at.After(now) {
		return sw.core.withEvent("checkpoint", nil, sw.lifecycle.checkpointFiles)(ctx, b)
	}
	c, ok := choreOf(row, sw.o.Remember)
	if !ok || c.at.After(now) {
		return errNothing
	}
	switch c.what {
	case choreIdle:
		return sw.actions.endIdle(ctx, b, row.Policy.IdleAction, row.Policy.IdleTimeout, sw.actions.takeAction)
	case choreStop:
		return sw.actions.endIdle(ctx, b, sandpit.ActionStop, row.Policy.AutoStop, sw.actions.tryAction)
	case choreSuspend:
		return sw.suspendIdle(ctx, b, row)
	case choreArchive:
		reason := fmt.Sprintf("stopped for %v", row.Policy.AutoArchive)
		return sw.core.withEvent("archive", map[string]string{"reason": reason}, sw.lifecycle.newTransition(archiving, reason))(ctx, b)
	case choreDelete:
		reason := fmt.Sprintf("%s for %v", row.State, row.Policy.AutoDelete)
		return sw.core.withEvent("delete", map[string]string{"reason": reason}, sw.remover.newRemoval(reason))(ctx, b)
	default:
		return sw.records.deleteRow(ctx, b)
	}
}

// suspendIdle pauses a sandbox on disk that nobody has used for as long as its policy says,
// whether it runs or is paused in memory.
func (sw *sweeper) suspendIdle(ctx context.Context, b *box, row store.Row) error {
	after := row.Policy.AutoSuspend
	if row.State != sandpit.StateRunning {
		return sw.actions.tryAction(ctx, b, sandpit.ActionSuspend, fmt.Sprintf("%s for %v", row.State, after), row.Idled)
	}
	return sw.actions.endIdle(ctx, b, sandpit.ActionSuspend, after, sw.actions.tryAction)
}
