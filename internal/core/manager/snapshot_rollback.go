package manager

import (
	"context"
	"errors"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// RollBack returns a running or paused sandbox to one of its snapshots, by the snapshot's ID or
// name; it runs then. Its users lose their handles. It continues if the caller's context ends.
// After an error the sandbox is as before.
//
// NotFound: no such sandbox or snapshot. Invalid: a snapshot of another sandbox. Conflict: the
// sandbox is neither running nor paused. Unsupported: its provider cannot do that.
func (ss *Snapshots) RollBack(ctx context.Context, id sandpit.ID, snapshot string) error {
	return ss.core.runOperation(ctx, id, "roll back", map[string]string{"snapshot": cutText(snapshot, store.MaxName)}, func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		n, release, err := ss.holdReady(ctx, row.Lease.Owner, snapshot)
		if err != nil {
			return err
		}
		defer release()
		if n.Sandbox != rec.id {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "snapshot %.100s is not a snapshot of sandbox %s", snapshot, rec.id),
				"create a new sandbox from it: sandpit create snapshot:"+string(n.ID))
		}
		switch row.State {
		case sandpit.StateRunning:
			return ss.rollBackRunning(ctx, rec, n)
		case sandpit.StatePaused:
			return ss.lifecycle.runTransition(ctx, rec, transition{"roll back", sandpit.StatePaused, sandpit.StateResuming, sandpit.StateRunning, false, false, rollBackFunc(n.ID)}, "")
		default:
			return stateError(row)
		}
	})
}

// rollBackFunc returns the provider's function that rolls a sandbox back to a snapshot.
func rollBackFunc(id sandpit.SnapshotID) func(sandpit.Instance) func(context.Context) error {
	return func(i sandpit.Instance) func(context.Context) error {
		if r, ok := as[sandpit.Rollbacker](i); ok {
			return func(ctx context.Context) error { return r.Rollback(ctx, id) }
		}
		return nil
	}
}

// rollBackRunning rolls back a running sandbox. All of its processes end or return to their earlier
// state.
func (ss *Snapshots) rollBackRunning(ctx context.Context, rec *sandboxRecord, n store.Snapshot) error {
	i, err := ss.instances.ensureAttached(ctx, rec)
	if err != nil {
		return err
	}
	do := rollBackFunc(n.ID)(i)
	if do == nil {
		return sandpit.Errorf(sandpit.Unsupported, "roll back sandbox %s: its provider %q cannot do that", rec.id, n.Provider)
	}
	release, err := ss.core.acquireSlot(ctx, rec, ss.slots.starts)
	if err != nil {
		return err
	}
	defer release()
	room, err := ss.disk.saves.Reserve(rec.currentRow().Lease.Owner, ss.disk.estimateSave(ctx, i, true)) // the provider suspends it for a moment
	if err != nil {
		return err
	}
	defer room.Release()
	why := sandpit.Errorf(sandpit.Unavailable, "sandbox %s is being rolled back to snapshot %s", rec.id, n.ID)
	rec.refuseHandles(why)
	ss.core.notifyEnd(rec, why)
	// If the server crashes now, the provider may have the sandbox on disk. Its recovery from the
	// state resuming resumes either version.
	if err := ss.records.changeState(ctx, rec, sandpit.StateResuming, nil); err != nil {
		return err
	}
	_, err = callProvider(ctx, ss.core.loops, providerCall{what: "roll back sandbox " + string(rec.id), limit: ss.o.CreateTimeout}, withoutResult(do), nil)
	if err == nil {
		err = ss.secrets.giveSecretsAgain(ctx, rec)
	}
	if err == nil {
		return ss.records.changeState(ctx, rec, sandpit.StateRunning, func(r *store.Row) { r.LastUsedAt = ss.clock.Now() })
	}
	was, onDisk := sandpit.StateRunning, errors.Is(ss.instances.pingGuest(ctx, rec), sandpit.Conflict)
	if onDisk {
		was = sandpit.StatePaused
	}
	return errors.Join(err, ss.records.changeState(ctx, rec, was, func(r *store.Row) {
		r.Reason, r.Suspended = cutText("could not roll back: "+err.Error(), store.MaxReason), onDisk
	}))
}
