package manager

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// providerStates records what providers do to sandboxes by themselves: a cloud stops those that are
// idle, and people start some in its console. Such a sandbox is never lost: its next use resumes it.
type providerStates struct {
	core      *core
	instances *instances
	lifecycle *lifecycle
	log       *slog.Logger
	o         *Options
	records   *recordStore
	recreator *recreator
	remover   *remover
}

// handleEnd handles an instance that has ended, or that its provider has stopped, without the
// manager. The caller holds the lock.
func (ps *providerStates) handleEnd(ctx context.Context, rec *sandboxRecord, i sandpit.Instance, exit sandpit.Exit) error {
	switch {
	case exit.State == "":
		return ps.recreator.handleEnd(ctx, rec, i, exit)
	case rec.currentInstance() != i:
		return nil
	}
	err := ps.compareState(ctx, rec, exit.State)
	if errors.Is(err, errNothingToDo) {
		return nil
	}
	return err
}

// compareState compares the state of a sandbox with what its provider has said, and changes the row
// if both differ and the instance confirms it. The caller holds the lock.
func (ps *providerStates) compareState(ctx context.Context, rec *sandboxRecord, said sandpit.State) error {
	row := rec.currentRow()
	if said == "" || isSameAtProvider(row.State, said) || !canChangeOnItsOwn(row.State) {
		return errNothingToDo
	}
	i, err := ps.instances.ensureAttached(ctx, rec)
	if err != nil {
		return err
	}
	if said, err = ps.readState(ctx, rec, i, said); err != nil {
		return err
	}
	return ps.adoptState(ctx, rec, i, said)
}

// canChangeOnItsOwn reports whether a sandbox in this state may be in another one at its provider.
func canChangeOnItsOwn(s sandpit.State) bool {
	switch s {
	case sandpit.StateRunning, sandpit.StatePaused, sandpit.StateStopped, sandpit.StateArchived:
		return true
	default:
		return false
	}
}

// isSameAtProvider reports whether a provider may have a sandbox in the state said that is in a state
// here: a cloud that only pauses has a stopped one paused.
func isSameAtProvider(here, said sandpit.State) bool {
	return here == said || here == sandpit.StateStopped && said == sandpit.StatePaused
}

// readState asks an instance for its state; usual is the answer of one that does not know.
func (ps *providerStates) readState(ctx context.Context, rec *sandboxRecord, i sandpit.Instance, usual sandpit.State) (sandpit.State, error) {
	r, ok := as[sandpit.StateReader](i)
	if !ok {
		return usual, nil
	}
	return callProvider(ctx, ps.core.loops, ps.core.newCallTo(rec.currentRow().Provider, "read the state of sandbox "+string(rec.id)), r.ReadState, nil)
}

// adoptState records the state that a sandbox has at its provider.
func (ps *providerStates) adoptState(ctx context.Context, rec *sandboxRecord, i sandpit.Instance, to sandpit.State) error {
	row := rec.currentRow()
	if isSameAtProvider(row.State, to) || !canChangeOnItsOwn(to) {
		return errNothingToDo
	}
	reason := "its provider " + row.Provider + " has changed it: " + string(row.State) + " to " + string(to)
	if row.Pool != "" {
		return ps.core.withEvent("delete", map[string]string{"reason": reason}, ps.remover.newRemoval(reason))(ctx, rec)
	}
	ps.log.InfoContext(ctx, "manager: provider changed a sandbox", slog.String("sandbox", string(rec.id)),
		slog.String("provider", row.Provider), slog.String("from", string(row.State)), slog.String("to", string(to)))
	for rec.state() != to {
		v := nextOwnTransition(rec.state(), to, i)
		args := map[string]string{"reason": reason}
		err := ps.core.withEvent(v.verb, args, func(ctx context.Context, rec *sandboxRecord) error {
			return ps.recordTransition(ctx, rec, v, reason)
		})(ctx, rec)
		if err != nil {
			return err
		}
	}
	return nil
}

// nextOwnTransition returns the next transition on the way between two states.
func nextOwnTransition(from, to sandpit.State, i sandpit.Instance) (v transition) {
	switch {
	case from == sandpit.StateRunning && to == sandpit.StatePaused:
		v = pausing
		if suspendFunc(i) != nil {
			v = suspending // a provider that pauses by itself frees the memory
		}
	case from == sandpit.StateRunning:
		v = stopping
	case from == sandpit.StatePaused && to == sandpit.StateRunning:
		v = resuming
	case from == sandpit.StatePaused:
		v = stoppingPaused
	case from == sandpit.StateStopped && to == sandpit.StateArchived:
		v = archiving
	case from == sandpit.StateStopped:
		v = starting
	default:
		v = restoring
	}
	v.idle = v.to != sandpit.StateRunning
	return v
}

// recordTransition records a transition that a provider has made, and takes the sandbox from its
// users if it does not run any more.
func (ps *providerStates) recordTransition(ctx context.Context, rec *sandboxRecord, v transition, reason string) error {
	leaving := rec.currentRow()
	leaving.State, leaving.Reason = v.to, reason
	if usesQuota(v.to, v.disk) {
		ps.lifecycle.quota.addExisting(leaving.Sandbox)
	}
	if v.from == sandpit.StateRunning {
		rec.refuseForResume(stateError(leaving))
	}
	if err := ps.records.changeState(ctx, rec, v.via, v.editBegin(reason)); err != nil {
		return err
	}
	switch {
	case v.to == sandpit.StateStopped && v.from != sandpit.StateArchived:
		ps.core.notifyEnd(rec, stateError(leaving))
	case v.from == sandpit.StateRunning:
		rec.evictHandles(stateError(leaving), ps.o.Drain)
	default: // it has no users
	}
	return ps.lifecycle.recordSuccess(ctx, rec, v)
}

// confirmEvery is how long a sandbox that is used counts as running without asking its provider.
const confirmEvery = 30 * time.Second

// confirmForUse asks the provider of a sandbox that has not been used for a while whether it still
// runs. A provider that does not answer is no error here: the use shows it.
func (ps *providerStates) confirmForUse(ctx context.Context, rec *sandboxRecord) {
	if !rec.needsConfirmation() {
		return
	}
	err := ps.core.runLocked(ctx, rec, func(ctx context.Context, rec *sandboxRecord) error {
		if !rec.needsConfirmation() {
			return errNothingToDo
		}
		rec.confirmRunning()
		i := rec.currentInstance()
		state, err := ps.readState(ctx, rec, i, sandpit.StateRunning)
		if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
			return ps.recreator.handleLoss(ctx, rec, vanishedReason(err))
		}
		if err != nil {
			return err
		}
		return ps.adoptState(ctx, rec, i, state)
	})
	if err != nil && ctx.Err() == nil {
		ps.log.WarnContext(ctx, "manager: state of sandbox unknown", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
	}
}

// needsConfirmation reports whether a sandbox should run and its provider has not said so for a
// while, which can stop it.
func (rec *sandboxRecord) needsConfirmation() bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.row.State != sandpit.StateRunning || rec.instance == nil || time.Since(rec.confirmedAt) < confirmEvery {
		return false
	}
	_, ok := as[sandpit.StateReader](rec.instance)
	return ok
}

// doubtAfter has the next use ask the provider whether the sandbox still runs, if the error of a call
// may mean that it does not.
func (rec *sandboxRecord) doubtAfter(err error) {
	switch sandpit.CodeOf(err) {
	case sandpit.Conflict, sandpit.Gone, sandpit.Unavailable:
	default:
		return
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.confirmedAt = time.Time{}
}

// refuseForResume refuses new handles, as refuseHandles, but callers wait and resume the sandbox.
func (rec *sandboxRecord) refuseForResume(why error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.refusal, rec.refusedIdle = why, true
}
