package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// lifecycle moves sandboxes from one state to another.
type lifecycle struct {
	clock     clock.Clock
	core      *core
	disk      *diskUse
	instances *instances
	log       *slog.Logger
	messages  *Messages
	o         *Options
	quota     *ledger
	records   *recordStore
	secrets   *secretFiles
	slots     slots
}

// move is a way from one lasting state to another.
type move struct {
	verb    string
	from    sandpit.State
	via, to sandpit.State
	// disk says that the memory goes to disk.
	disk bool
	// idle says that the reason is that the sandbox is idle: its next use resumes it.
	idle bool
	// do is what the provider does, nil if it cannot.
	do func(sandpit.Instance) func(context.Context) error
}

var (
	pausing    = move{"pause", sandpit.StateRunning, sandpit.StatePausing, sandpit.StatePaused, false, false, pause}
	resuming   = move{"resume", sandpit.StatePaused, sandpit.StateResuming, sandpit.StateRunning, false, false, resume}
	suspending = move{"pause", sandpit.StateRunning, sandpit.StatePausing, sandpit.StatePaused, true, false, suspend}
	// suspendingStill is of what is paused in memory.
	suspendingStill = move{"pause", sandpit.StatePaused, sandpit.StatePausing, sandpit.StatePaused, true, false, suspend}
	stopping        = move{"stop", sandpit.StateRunning, sandpit.StateStopping, sandpit.StateStopped, false, false, stop}
	stoppingStill   = move{"stop", sandpit.StatePaused, sandpit.StateStopping, sandpit.StateStopped, false, false, stop}
	starting        = move{"start", sandpit.StateStopped, sandpit.StateResuming, sandpit.StateRunning, false, false, start}
	archiving       = move{"archive", sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived, false, false, archive}
	restoring       = move{"restore", sandpit.StateArchived, sandpit.StateRestoring, sandpit.StateStopped, false, false, restore}
)

// onDisk are the arguments of an event that tells of pausing on disk.
func onDisk(reason string) map[string]string {
	args := map[string]string{"on": "disk"}
	if reason != "" {
		args["reason"] = reason
	}
	return args
}

func (lc *lifecycle) newTransition(v move, reason string) step {
	return func(ctx context.Context, b *box) error { return lc.runTransition(ctx, b, v, reason) }
}

// newSuspend suspends a sandbox that runs, or one that is paused in memory.
func (lc *lifecycle) newSuspend(reason string) step {
	return func(ctx context.Context, b *box) error {
		row := b.look()
		if row.State == sandpit.StatePaused && row.Suspended {
			return sandpit.Errorf(sandpit.Conflict, "sandbox %s is paused on disk already", b.id)
		}
		return lc.runTransition(ctx, b, suspendingFrom(row.State), reason)
	}
}

func suspendingFrom(s sandpit.State) move {
	if s == sandpit.StatePaused {
		return suspendingStill
	}
	return suspending
}

func stoppingFrom(s sandpit.State) move {
	if s == sandpit.StatePaused {
		return stoppingStill
	}
	return stopping
}

// newStop stops a sandbox that runs, or one that is paused.
func (lc *lifecycle) newStop(reason string) step {
	return func(ctx context.Context, b *box) error {
		return lc.runTransition(ctx, b, stoppingFrom(b.state()), reason)
	}
}

// runTransition takes a sandbox from one state to another. The reason stays with it, if
// there is one.
func (lc *lifecycle) runTransition(ctx context.Context, b *box, v move, reason string) error {
	row := b.look()
	if row.State != v.from {
		if err := stateError(row); err != nil {
			return err
		}
		if v.to == sandpit.StateArchived {
			return sandpit.WithHint(explained(row), "first: sandpit stop "+string(row.ID))
		}
		return explained(row)
	}
	i, err := lc.instances.ensureAttached(ctx, b)
	if err != nil {
		return err
	}
	do := v.do(i)
	if do == nil {
		return sandpit.Errorf(sandpit.Unsupported, "%s sandbox %s: its provider %q cannot do that", v.verb, b.id, row.Provider)
	}
	if takesRoom(v.via, false) {
		if err := lc.quota.take(row.Sandbox); err != nil {
			return err
		}
	}
	release, err := lc.acquireSlots(ctx, b, row, v)
	if err != nil {
		lc.releaseUnusedQuota(b)
		return fmt.Errorf("%s sandbox %s: %w", v.verb, b.id, err)
	}
	defer release()
	ctx, over, err := lc.reserveDisk(ctx, b, v, i)
	if err != nil {
		lc.releaseUnusedQuota(b)
		return fmt.Errorf("%s sandbox %s: %w", v.verb, b.id, err)
	}
	defer over()
	leaving := row
	leaving.State, leaving.Reason = v.via, reason
	b.refuse(stateError(leaving))
	if err := lc.records.changeState(ctx, b, v.via, v.setOut(reason)); err != nil {
		lc.releaseUnusedQuota(b)
		lc.disk.countRecord(b.look())
		return err
	}
	if v.to == sandpit.StateStopped {
		lc.core.notifyEnd(b, stateError(leaving))
	} else {
		b.evict(stateError(leaving), lc.o.Drain)
	}
	return lc.finishTransition(ctx, b, v, lc.performTransition(ctx, b, v, do))
}

// reserveDisk reserves what a transition writes to the disk, if it does. The returned context
// is for it, and over is called when it is over.
func (lc *lifecycle) reserveDisk(ctx context.Context, b *box, v move, i sandpit.Instance) (saving context.Context, over func(), err error) {
	if !isSaved(v.to, v.disk) {
		return ctx, func() {}, nil
	}
	on, bytes := lc.disk.saves, int64(0)
	switch row := b.look(); {
	case v.to == sandpit.StateArchived:
		on = lc.disk.archives
	case row.State == sandpit.StateRunning || !row.Suspended:
		bytes = lc.disk.estimateSave(ctx, i, v.disk)
	}
	s, err := lc.disk.reserveSave(ctx, savingPlan{id: string(b.id), owner: b.look().Lease.Owner, disk: on, bytes: bytes, stays: true})
	if err != nil {
		return ctx, nil, err
	}
	return s.within(ctx), s.release, nil
}

// performTransition asks the provider to do something. If that comes to an end only when
// nobody waits for it any more, the row follows.
func (lc *lifecycle) performTransition(ctx context.Context, b *box, v move, do func(context.Context) error) error {
	_, err := call(ctx, lc.core.loops, lc.newTransitionCall(v, v.verb+" sandbox "+string(b.id)), none(do), func(_ struct{}, err error) {
		if err != nil {
			return // as was believed
		}
		ctx, cancel := lc.core.ops.detach(lc.core.ops.ctx)
		defer cancel()
		if err := lc.core.runLocked(ctx, b, lc.core.withEvent(v.verb, map[string]string{"late": "true"}, lc.recordLateSuccess(v))); err != nil {
			lc.log.WarnContext(ctx, "a late answer cannot be written down", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		}
	})
	return err
}

// recordLateSuccess writes that a move was made after all, unless the sandbox was moved
// elsewhere meanwhile.
func (lc *lifecycle) recordLateSuccess(v move) step {
	return func(ctx context.Context, b *box) error {
		if b.state() != v.from {
			return errNothing
		}
		if takesRoom(v.to, v.disk) {
			lc.quota.hold(b.look().Sandbox)
		}
		if err := lc.records.changeState(ctx, b, v.via, v.setOut("")); err != nil {
			return err
		}
		return lc.recordSuccess(ctx, b, v)
	}
}

// finishTransition writes where a move has led to. Of one that failed nobody may know: then
// the guest is asked, which tells whether the sandbox runs.
func (lc *lifecycle) finishTransition(ctx context.Context, b *box, v move, err error) error {
	if err == nil || lc.hasHappened(ctx, b, v, err) {
		return lc.recordSuccess(ctx, b, v)
	}
	origin := lc.stateAfterFailure(ctx, b, v)
	back := lc.records.changeState(ctx, b, origin, func(r *store.Row) {
		r.Reason = cut("could not "+v.verb+": "+err.Error(), store.MaxReason)
		if v.disk || origin == sandpit.StateRunning {
			r.Suspended = false
		}
		if origin != v.from {
			r.LastUsedAt = lc.clock.Now() // it has not been idle, but paused
		}
	})
	lc.releaseUnusedQuota(b)
	return errors.Join(err, back)
}

// stateAfterFailure returns the state that a failed move leaves a sandbox in. What is paused
// is resumed before it is stopped, and may have come no further.
func (lc *lifecycle) stateAfterFailure(ctx context.Context, b *box, v move) sandpit.State {
	if v.from == sandpit.StatePaused && v.to == sandpit.StateStopped && lc.instances.pingGuest(ctx, b) == nil {
		return sandpit.StateRunning
	}
	return v.from
}

// recordSuccess writes that a move was made. A sandbox that runs again after its deadline has a
// new one, as far away as that was when it was set.
func (lc *lifecycle) recordSuccess(ctx context.Context, b *box, v move) error {
	before := b.look()
	reason := before.Reason
	if v.to == sandpit.StateRunning {
		if err := lc.secrets.giveSecretsAgain(ctx, b); err != nil {
			return err
		}
	}
	if isSaved(v.to, v.disk) {
		lc.disk.finishSave(string(b.id), before.Lease.Owner)
	}
	err := lc.records.changeState(ctx, b, v.to, func(r *store.Row) {
		r.Reason, r.Suspended = reason, v.disk
		if v.to != sandpit.StateRunning {
			return
		}
		now := lc.clock.Now()
		r.Reason, r.LastUsedAt, r.Idled = "", now, false
		if !r.Lease.Deadline.After(now) {
			r.Lease = renewed(*r, now)
		}
	})
	if lease := b.look().Lease; err == nil && !lease.Deadline.Equal(before.Lease.Deadline) && !lease.Deadline.IsZero() {
		lc.messages.scheduleMessage(ctx, b, kindDeadline, lease.Deadline)
	}
	return err
}

// renewed is the lease of a sandbox whose deadline has passed and that goes on.
func renewed(r store.Row, now time.Time) sandpit.Lease {
	l := r.Lease
	l.Deadline = time.Time{}
	if r.Term > 0 {
		l.Deadline = queue.Millis(now.Add(r.Term))
	}
	return l
}

// hasHappened reports whether a move that failed has been made all the same: the
// answer was lost, or it had been made before.
func (lc *lifecycle) hasHappened(ctx context.Context, b *box, v move, err error) bool {
	if refused(err) {
		return false
	}
	switch sandpit.CodeOf(err) {
	case sandpit.Exhausted, sandpit.NotFound, sandpit.Gone:
		return false
	case sandpit.Conflict:
		if v.to == sandpit.StateRunning || v.from == sandpit.StateRunning {
			return (v.to == sandpit.StateRunning) == (lc.instances.pingGuest(ctx, b) == nil)
		}
		return true
	default:
		if v.to == sandpit.StateRunning {
			return lc.instances.pingGuest(ctx, b) == nil
		}
		return v.from == sandpit.StateRunning && errors.Is(lc.instances.pingGuest(ctx, b), sandpit.Conflict)
	}
}

// releaseUnusedQuota frees what a sandbox takes up if its state takes none.
func (lc *lifecycle) releaseUnusedQuota(b *box) {
	if row := b.look(); !takesRoom(row.State, row.Suspended) {
		lc.quota.give(b.id)
	}
}

// setOut writes why a move is made, and where it leads if the state does not tell.
func (v move) setOut(reason string) func(*store.Row) {
	return func(r *store.Row) {
		withReason(reason)(r)
		r.Suspended = r.Suspended || v.disk
		if v.via != sandpit.StateResuming {
			r.Idled = v.idle
		}
	}
}

// newTransitionCall allows more time for what reads or writes all of a sandbox.
func (lc *lifecycle) newTransitionCall(v move, what string) remote {
	r := lc.core.newCall(what)
	switch v.via {
	case sandpit.StateArchiving, sandpit.StateRestoring:
		r.limit = max(r.limit, lc.o.MoveTimeout)
	case sandpit.StatePausing, sandpit.StateResuming:
		if v.disk || v.verb == resuming.verb {
			r.limit = max(r.limit, lc.o.MoveTimeout)
		}
	default:
	}
	return r
}

// withReason gives a row a reason.
func withReason(reason string) func(*store.Row) {
	return func(r *store.Row) { r.Reason = cut(reason, store.MaxReason) }
}

// recoverTransition finishes a move that was interrupted. Conflict from the provider
// means that it had been made.
func (lc *lifecycle) recoverTransition() step {
	return func(ctx context.Context, b *box) error {
		v, ok := interrupted(b.look())
		if !ok {
			return errNothing
		}
		i, err := lc.instances.ensureAttached(ctx, b)
		if err != nil {
			return err
		}
		do := v.do(i)
		if do == nil {
			return lc.records.changeState(ctx, b, sandpit.StateError, withReason("its provider can no longer "+v.verb+" it"))
		}
		if p := lc.findSlotPool(b.look(), v); p != nil {
			slot, err := acquire(ctx, p, "") // what the server owes after a crash counts as its own
			if err != nil {
				return err
			}
			defer slot.Release()
		}
		_, err = call(ctx, lc.core.loops, lc.newTransitionCall(v, v.verb), none(do), nil)
		if err == nil || errors.Is(err, sandpit.Conflict) && lc.hasHappened(ctx, b, v, err) {
			return lc.recordSuccess(ctx, b, v)
		}
		if refused(err) {
			return errors.Join(err, lc.records.changeState(ctx, b, sandpit.StateError, withReason("could not "+v.verb+": "+err.Error())))
		}
		return err
	}
}

// refused reports whether an error says that nothing was done, and never will be.
func refused(err error) bool {
	switch sandpit.CodeOf(err) {
	case sandpit.Unsupported, sandpit.Invalid, sandpit.PermissionDenied, sandpit.Unauthenticated:
		return true
	default:
		return false
	}
}

// interrupted returns the move that a sandbox is on. Of one that is being paused the row
// says whether on disk.
func interrupted(r store.Row) (move, bool) {
	wakening := move{"wake", sandpit.StateStopped, sandpit.StateResuming, sandpit.StateRunning, false, false, wake}
	moves := []move{pausing, stoppingStill, wakening, archiving, restoring}
	if r.Suspended {
		moves[0] = suspending
	}
	k := slices.IndexFunc(moves, func(v move) bool { return v.via == r.State })
	if k < 0 {
		return move{}, false
	}
	return moves[k], true
}

// findSlotPool returns the pool of a transition, nil if that takes no time worth mentioning.
func (lc *lifecycle) findSlotPool(row store.Row, v move) *fairshare.Pool {
	inMemory := row.State == sandpit.StatePaused && !row.Suspended
	switch {
	case v.to == sandpit.StateRunning && inMemory && v.verb == resuming.verb:
		return nil
	case v.to == sandpit.StateRunning:
		return lc.slots.starts
	case v.disk || v.to == sandpit.StateStopped || v.to == sandpit.StateArchived:
		return lc.slots.saves
	default:
		return nil
	}
}

// acquireSlots takes the slots of a transition, as acquireFor does. To stop a sandbox that
// is paused on disk, providers resume it first, which is a start as well.
func (lc *lifecycle) acquireSlots(ctx context.Context, b *box, row store.Row, v move) (release func(), err error) {
	pool := lc.findSlotPool(row, v)
	if !row.Suspended || v.to != sandpit.StateStopped || row.State != sandpit.StatePaused {
		return lc.core.acquireSlot(ctx, b, pool)
	}
	endStart, err := lc.core.acquireSlot(ctx, b, lc.slots.starts) // first, since no holder of the other waits for this one
	if err != nil {
		return nil, err
	}
	endSave, err := lc.core.acquireSlot(ctx, b, pool)
	if err != nil {
		endStart()
		return nil, err
	}
	return func() {
		endSave()
		endStart()
	}, nil
}
