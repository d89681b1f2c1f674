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

// lifecycle takes sandboxes from one state to another. Each transition begins (its reason and the
// state on the way are written), is performed by the provider, and is finished (the state that was
// reached is written). A transition that a crash interrupted is recovered by the next manager.
type lifecycle struct {
	clock     clock.Clock
	core      *core
	disk      *diskUse
	instances *instances
	log       *slog.Logger
	messages  *Messages
	o         *Options
	onRunning func(context.Context, *sandboxRecord) // called when a sandbox continues
	quota     *sandboxQuota
	records   *recordStore
	secrets   *secretFiles
	slots     slots
}

// transition is a change from one lasting state to another.
type transition struct {
	verb    string
	from    sandpit.State
	via, to sandpit.State
	// disk reports whether the memory is saved to disk.
	disk bool
	// idle reports whether the sandbox is idle, so that its next use resumes it.
	idle bool
	// do returns the provider's function, nil if the instance does not have it.
	do func(sandpit.Instance) func(context.Context) error
}

// The transitions.
var (
	pausing          = transition{"pause", sandpit.StateRunning, sandpit.StatePausing, sandpit.StatePaused, false, false, pauseFunc}
	resuming         = transition{"resume", sandpit.StatePaused, sandpit.StateResuming, sandpit.StateRunning, false, false, resumeFunc}
	suspending       = transition{"pause", sandpit.StateRunning, sandpit.StatePausing, sandpit.StatePaused, true, false, suspendFunc}
	suspendingPaused = transition{"pause", sandpit.StatePaused, sandpit.StatePausing, sandpit.StatePaused, true, false, suspendFunc}
	stopping         = transition{"stop", sandpit.StateRunning, sandpit.StateStopping, sandpit.StateStopped, false, false, stopFunc}
	stoppingPaused   = transition{"stop", sandpit.StatePaused, sandpit.StateStopping, sandpit.StateStopped, false, false, stopFunc}
	starting         = transition{"start", sandpit.StateStopped, sandpit.StateResuming, sandpit.StateRunning, false, false, startFunc}
	archiving        = transition{"archive", sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived, false, false, archiveFunc}
	restoring        = transition{"restore", sandpit.StateArchived, sandpit.StateRestoring, sandpit.StateStopped, false, false, restoreFunc}

	// resumingOrStarting recovers a sandbox that was being resumed or started.
	resumingOrStarting = transition{
		"resume or start", sandpit.StateStopped, sandpit.StateResuming, sandpit.StateRunning, false, false, resumeOrStartFunc,
	}
	// recovering lets a sandbox run that an interrupted transition has left in the error state.
	recovering = transition{"recover", sandpit.StateError, sandpit.StateResuming, sandpit.StateRunning, false, false, recoverFunc}
)

// findInterrupted returns the transition that a sandbox's state belongs to. For a sandbox that was
// being paused, the row says whether to disk.
func findInterrupted(r store.Row) (transition, bool) {
	list := []transition{pausing, stoppingPaused, resumingOrStarting, archiving, restoring}
	if r.Suspended {
		list[0] = suspending
	}
	k := slices.IndexFunc(list, func(v transition) bool { return v.via == r.State })
	if k < 0 {
		return transition{}, false
	}
	return list[k], true
}

func suspendFrom(s sandpit.State) transition {
	if s == sandpit.StatePaused {
		return suspendingPaused
	}
	return suspending
}

func stopFrom(s sandpit.State) transition {
	if s == sandpit.StatePaused {
		return stoppingPaused
	}
	return stopping
}

// newDiskArgs returns the arguments of an event about suspending.
func newDiskArgs(reason string) map[string]string {
	args := map[string]string{"on": "disk"}
	if reason != "" {
		args["reason"] = reason
	}
	return args
}

func (lc *lifecycle) newTransition(v transition, reason string) operation {
	return func(ctx context.Context, rec *sandboxRecord) error { return lc.runTransition(ctx, rec, v, reason) }
}

// newSuspend returns the operation that suspends a running sandbox, or one that is paused in memory.
func (lc *lifecycle) newSuspend(reason string) operation {
	return func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		if row.State == sandpit.StatePaused && row.Suspended {
			return sandpit.Errorf(sandpit.Conflict, "sandbox %s is already suspended", rec.id)
		}
		return lc.runTransition(ctx, rec, suspendFrom(row.State), reason)
	}
}

// newStop returns the operation that stops a running or paused sandbox.
func (lc *lifecycle) newStop(reason string) operation {
	return func(ctx context.Context, rec *sandboxRecord) error {
		return lc.runTransition(ctx, rec, stopFrom(rec.state()), reason)
	}
}

// runTransition begins, performs and finishes a transition. The caller holds the lock. The reason,
// if there is one, stays in the row.
func (lc *lifecycle) runTransition(ctx context.Context, rec *sandboxRecord, v transition, reason string) error {
	ctx, do, release, err := lc.beginTransition(ctx, rec, v, reason)
	if err != nil {
		return err
	}
	defer release()
	return lc.finishTransition(ctx, rec, v, lc.performTransition(ctx, rec, v, do))
}

// beginTransition checks that a transition is possible, takes the quota, slots and disk space that it
// needs, writes the state on the way, and takes the sandbox from its users. It returns the
// context and the provider's function for performTransition; the caller calls release at the end.
func (lc *lifecycle) beginTransition(ctx context.Context, rec *sandboxRecord, v transition, reason string) (
	performing context.Context, do func(context.Context) error, release func(), err error,
) {
	row, i, err := lc.checkTransition(ctx, rec, v)
	if err != nil {
		return nil, nil, nil, err
	}
	if do = v.do(i); do == nil {
		err = sandpit.Errorf(sandpit.Unsupported, "%s sandbox %s: its provider %q cannot do that", v.verb, rec.id, row.Provider)
		return nil, nil, nil, err
	}
	if v.to == sandpit.StateRunning {
		if err := lc.disk.checkVolumeWriter(ctx, row); err != nil {
			return nil, nil, nil, fmt.Errorf("%s sandbox %s: %w", v.verb, rec.id, err)
		}
	}
	if usesQuota(v.via, false) {
		if err := lc.quota.reserve(row.Sandbox, nil); err != nil {
			return nil, nil, nil, err
		}
	}
	performing, release, err = lc.reserveFor(ctx, rec, row, v, i)
	if err != nil {
		lc.releaseUnusedQuota(rec)
		return nil, nil, nil, fmt.Errorf("%s sandbox %s: %w", v.verb, rec.id, err)
	}
	leaving := row
	leaving.State, leaving.Reason = v.via, reason
	rec.refuseHandles(stateError(leaving))
	if err := lc.records.changeState(performing, rec, v.via, v.editBegin(reason)); err != nil {
		lc.releaseUnusedQuota(rec)
		lc.disk.countRecord(rec.currentRow())
		release()
		return nil, nil, nil, err
	}
	if v.to == sandpit.StateStopped {
		lc.core.notifyEnd(rec, stateError(leaving))
	} else {
		rec.evictHandles(stateError(leaving), lc.o.Drain)
	}
	return performing, do, release, nil
}

// checkTransition returns the row and instance of a sandbox that is in the state that a transition
// starts from.
func (lc *lifecycle) checkTransition(ctx context.Context, rec *sandboxRecord, v transition) (store.Row, sandpit.Instance, error) {
	row := rec.currentRow()
	if row.State != v.from {
		if err := stateError(row); err != nil {
			return row, nil, err
		}
		if v.to == sandpit.StateArchived {
			return row, nil, sandpit.WithHint(newStateConflict(row), "first: sandpit stop "+string(row.ID))
		}
		return row, nil, newStateConflict(row)
	}
	i, err := lc.instances.ensureAttached(ctx, rec)
	return row, i, err
}

// reserveFor takes the slots of a transition and the disk space for what it saves.
func (lc *lifecycle) reserveFor(ctx context.Context, rec *sandboxRecord, row store.Row, v transition, i sandpit.Instance) (
	performing context.Context, release func(), err error,
) {
	releaseSlots, err := lc.acquireSlots(ctx, rec, row, v)
	if err != nil {
		return nil, nil, err
	}
	performing, releaseDisk, err := lc.reserveDisk(ctx, rec, v, i)
	if err != nil {
		releaseSlots()
		return nil, nil, err
	}
	return performing, func() {
		releaseDisk()
		releaseSlots()
	}, nil
}

// reserveDisk reserves what a transition writes to the disk, if anything. The returned context is
// for the provider's call; the caller calls release after it.
func (lc *lifecycle) reserveDisk(ctx context.Context, rec *sandboxRecord, v transition, i sandpit.Instance) (
	performing context.Context, release func(), err error,
) {
	if !isSaved(v.to, v.disk) {
		return ctx, func() {}, nil
	}
	budget, bytes := lc.disk.saves, int64(0)
	switch row := rec.currentRow(); {
	case v.to == sandpit.StateArchived:
		budget = lc.disk.archives
	case row.State == sandpit.StateRunning || !row.Suspended:
		bytes = lc.disk.estimateSave(ctx, i, v.disk)
	}
	s, err := lc.disk.reserveSave(ctx, saveRequest{
		id: string(rec.id), owner: rec.currentRow().Lease.Owner, disk: budget, bytes: bytes, stays: true,
	})
	if err != nil {
		return ctx, nil, err
	}
	return s.withAdmit(ctx), s.release, nil
}

// performTransition calls the provider. If the call succeeds only after the caller has stopped
// waiting, the success is recorded then.
func (lc *lifecycle) performTransition(ctx context.Context, rec *sandboxRecord, v transition, do func(context.Context) error) error {
	late := func(_ struct{}, err error) {
		if err != nil {
			return // the transition was recorded as failed, which it was
		}
		ctx, cancel := lc.core.ops.detach(lc.core.ops.ctx)
		defer cancel()
		args := map[string]string{"late": "true"}
		if err := lc.core.runLocked(ctx, rec, lc.core.withEvent(v.verb, args, lc.newLateSuccess(v))); err != nil {
			lc.log.WarnContext(ctx, "manager: late transition not recorded", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
		}
	}
	_, err := callProvider(ctx, lc.core.loops, lc.newTransitionCall(rec.currentRow().Provider, v, v.verb+" sandbox "+string(rec.id)), withoutResult(do), late)
	return err
}

// newLateSuccess returns the operation that records a transition that succeeded late, unless the
// sandbox has changed its state meanwhile.
func (lc *lifecycle) newLateSuccess(v transition) operation {
	return func(ctx context.Context, rec *sandboxRecord) error {
		if rec.state() != v.from {
			return errNothingToDo
		}
		if usesQuota(v.to, v.disk) {
			lc.quota.addExisting(rec.currentRow().Sandbox)
		}
		if err := lc.records.changeState(ctx, rec, v.via, v.editBegin("")); err != nil {
			return err
		}
		return lc.recordSuccess(ctx, rec, v)
	}
}

// finishTransition writes the state that a transition has led to, given the error of the provider's
// call. Where the error leaves that open, the guest's answer decides: it shows whether the sandbox runs.
func (lc *lifecycle) finishTransition(ctx context.Context, rec *sandboxRecord, v transition, err error) error {
	if err == nil || lc.hasHappened(ctx, rec, v, err) {
		return lc.recordSuccess(ctx, rec, v)
	}
	state := lc.stateAfterFailure(ctx, rec, v)
	recorded := lc.records.changeState(ctx, rec, state, func(r *store.Row) {
		r.Reason = cutText("could not "+v.verb+": "+err.Error(), store.MaxReason)
		if v.disk || state == sandpit.StateRunning {
			r.Suspended = false
		}
		if state != v.from {
			r.LastUsedAt = lc.clock.Now() // the sandbox was paused, not idle
		}
	})
	lc.releaseUnusedQuota(rec)
	return errors.Join(err, recorded)
}

// stateAfterFailure returns the state that a failed transition leaves a sandbox in. A paused sandbox
// is resumed before it is stopped, so it may be running.
func (lc *lifecycle) stateAfterFailure(ctx context.Context, rec *sandboxRecord, v transition) sandpit.State {
	if v.from == sandpit.StatePaused && v.to == sandpit.StateStopped && lc.instances.pingGuest(ctx, rec) == nil {
		return sandpit.StateRunning
	}
	return v.from
}

// recordSuccess writes that a transition has succeeded. A sandbox that runs again after its deadline
// gets a new deadline, as far away as the old one was when it was set.
func (lc *lifecycle) recordSuccess(ctx context.Context, rec *sandboxRecord, v transition) error {
	before := rec.currentRow()
	reason := before.Reason
	if v.to == sandpit.StateRunning {
		if err := lc.secrets.giveSecretsAgain(ctx, rec); err != nil {
			return err
		}
	}
	if isSaved(v.to, v.disk) {
		lc.disk.finishSave(string(rec.id), before.Lease.Owner)
	}
	err := lc.records.changeState(ctx, rec, v.to, func(r *store.Row) {
		r.Reason, r.Suspended = reason, v.disk
		if v.to != sandpit.StateRunning {
			return
		}
		now := lc.clock.Now()
		r.Reason, r.LastUsedAt, r.Idled = "", now, false
		if !r.Lease.Deadline.After(now) {
			r.Lease = renewLease(*r, now)
		}
	})
	if lease := rec.currentRow().Lease; err == nil && !lease.Deadline.Equal(before.Lease.Deadline) && !lease.Deadline.IsZero() {
		lc.messages.scheduleMessage(ctx, rec, kindDeadline, lease.Deadline)
	}
	if err == nil && v.to == sandpit.StateRunning {
		rec.confirmRunning()
		lc.onRunning(ctx, rec)
	}
	return err
}

// renewLease returns the lease of a sandbox that continues after its deadline.
func renewLease(r store.Row, now time.Time) sandpit.Lease {
	l := r.Lease
	l.Deadline = time.Time{}
	if r.Term > 0 {
		l.Deadline = queue.Millis(now.Add(r.Term))
	}
	return l
}

// hasHappened reports whether a transition has happened although the provider's call failed: the
// answer was lost, or the sandbox was in that state before.
func (lc *lifecycle) hasHappened(ctx context.Context, rec *sandboxRecord, v transition, err error) bool {
	if isPermanentError(err) {
		return false
	}
	switch sandpit.CodeOf(err) {
	case sandpit.Exhausted, sandpit.NotFound, sandpit.Gone:
		return false
	case sandpit.Conflict:
		if v.to == sandpit.StateRunning || v.from == sandpit.StateRunning {
			return (v.to == sandpit.StateRunning) == (lc.instances.pingGuest(ctx, rec) == nil)
		}
		return true
	default:
		if v.to == sandpit.StateRunning {
			return lc.instances.pingGuest(ctx, rec) == nil
		}
		return v.from == sandpit.StateRunning && errors.Is(lc.instances.pingGuest(ctx, rec), sandpit.Conflict)
	}
}

// releaseUnusedQuota releases the quota of a sandbox whose state needs none.
func (lc *lifecycle) releaseUnusedQuota(rec *sandboxRecord) {
	if row := rec.currentRow(); !usesQuota(row.State, row.Suspended) {
		lc.quota.release(rec.id)
	}
}

// editBegin returns the edit of a row when a transition begins: its reason, and what the state on the
// way does not say.
func (v transition) editBegin(reason string) func(*store.Row) {
	return func(r *store.Row) {
		setReason(reason)(r)
		r.Suspended = r.Suspended || v.disk
		if v.via != sandpit.StateResuming {
			r.Idled = v.idle
		}
	}
}

// newTransitionCall allows more time for a call that reads or writes all of a sandbox.
func (lc *lifecycle) newTransitionCall(provider string, v transition, what string) providerCall {
	r := lc.core.newCallTo(provider, what)
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

// setReason returns the edit that sets the reason of a row.
func setReason(reason string) func(*store.Row) {
	return func(r *store.Row) { r.Reason = cutText(reason, store.MaxReason) }
}

// recoverTransition returns the operation that finishes a transition that a crash interrupted. A
// Conflict from the provider means that the transition had happened before the crash.
func (lc *lifecycle) recoverTransition() operation {
	return func(ctx context.Context, rec *sandboxRecord) error {
		v, ok := findInterrupted(rec.currentRow())
		if !ok {
			return errNothingToDo
		}
		i, err := lc.instances.ensureAttached(ctx, rec)
		if err != nil {
			return err
		}
		do := v.do(i)
		if do == nil {
			return lc.records.changeState(ctx, rec, sandpit.StateError, setReason("its provider can no longer "+v.verb+" it"))
		}
		if p := lc.findSlotPool(rec.currentRow(), v); p != nil {
			slot, err := awaitSlot(ctx, p, "") // recovery counts as the server's own work
			if err != nil {
				return err
			}
			defer slot.Release()
		}
		_, err = callProvider(ctx, lc.core.loops, lc.newTransitionCall(rec.currentRow().Provider, v, v.verb), withoutResult(do), nil)
		if err == nil || errors.Is(err, sandpit.Conflict) && lc.hasHappened(ctx, rec, v, err) {
			return lc.recordSuccess(ctx, rec, v)
		}
		if isPermanentError(err) {
			return errors.Join(err, lc.records.changeState(ctx, rec, sandpit.StateError, setReason("could not "+v.verb+": "+err.Error())))
		}
		return err
	}
}

// isPermanentError reports whether an error says that the provider did nothing and never will.
func isPermanentError(err error) bool {
	switch sandpit.CodeOf(err) {
	case sandpit.Unsupported, sandpit.Invalid, sandpit.PermissionDenied, sandpit.Unauthenticated:
		return true
	default:
		return false
	}
}

// findSlotPool returns the slots that a transition needs, nil for a transition that takes little
// time.
func (lc *lifecycle) findSlotPool(row store.Row, v transition) *fairshare.Pool {
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

// acquireSlots acquires the slots of a transition, as acquireSlot does. To stop a suspended
// sandbox, providers resume it first, which is a start as well.
func (lc *lifecycle) acquireSlots(ctx context.Context, rec *sandboxRecord, row store.Row, v transition) (release func(), err error) {
	pool := lc.findSlotPool(row, v)
	if !row.Suspended || v.to != sandpit.StateStopped || row.State != sandpit.StatePaused {
		return lc.core.acquireSlot(ctx, rec, pool)
	}
	endStart, err := lc.core.acquireSlot(ctx, rec, lc.slots.starts) // first, since no holder of the other waits for this one
	if err != nil {
		return nil, err
	}
	endSave, err := lc.core.acquireSlot(ctx, rec, pool)
	if err != nil {
		endStart()
		return nil, err
	}
	return func() {
		endSave()
		endStart()
	}, nil
}
