package manager

import (
	"context"
	"errors"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Rollback makes a running or paused sandbox what a snapshot of it was, by the
// snapshot's ID or name; it runs then. Who uses it is told to stop. It goes on when the
// caller gives up. After an error the sandbox is as it was before.
//
// NotFound: no such sandbox or snapshot. Invalid: a snapshot of another sandbox.
// Conflict: it is neither running nor paused. Unsupported: its provider cannot do that.
func (m *Manager) Rollback(ctx context.Context, id sandpit.ID, snapshot string) error {
	return m.operate(ctx, id, "roll back", map[string]string{"snapshot": cut(snapshot, store.MaxName)}, func(ctx context.Context, b *box) error {
		row := b.look()
		n, release, err := m.held(ctx, row.Lease.Owner, snapshot)
		if err != nil {
			return err
		}
		defer release()
		if n.Sandbox != b.id {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "snapshot %.100s is not of sandbox %s", snapshot, b.id),
				"make a new sandbox of it: sandpit create snapshot:"+string(n.ID))
		}
		switch row.State {
		case sandpit.StateRunning:
			return m.rollBackRunning(ctx, b, n)
		case sandpit.StatePaused:
			return m.move(ctx, b, move{"roll back", sandpit.StatePaused, sandpit.StateResuming, sandpit.StateRunning, false, false, rollback(n.ID)}, "")
		default:
			return stateError(row)
		}
	})
}

// rollback returns what a provider does to make a sandbox a snapshot again.
func rollback(id sandpit.SnapshotID) func(sandpit.Instance) func(context.Context) error {
	return func(i sandpit.Instance) func(context.Context) error {
		if r, ok := as[sandpit.Rollbacker](i); ok {
			return func(ctx context.Context) error { return r.Rollback(ctx, id) }
		}
		return nil
	}
}

// rollBackRunning rolls back a sandbox that runs. All that runs in it ends, or becomes
// what it was.
func (m *Manager) rollBackRunning(ctx context.Context, b *box, n store.Snapshot) error {
	i, err := m.attached(ctx, b)
	if err != nil {
		return err
	}
	do := rollback(n.ID)(i)
	if do == nil {
		return sandpit.Errorf(sandpit.Unsupported, "roll back sandbox %s: its provider %q cannot do that", b.id, n.Provider)
	}
	release, err := m.acquireFor(ctx, b, m.slots.starts)
	if err != nil {
		return err
	}
	defer release()
	room, err := m.saves.Reserve(b.look().Lease.Owner, m.estimateSave(ctx, i, true)) // it is suspended for a moment
	if err != nil {
		return err
	}
	defer room.Release()
	why := sandpit.Errorf(sandpit.Unavailable, "sandbox %s is being rolled back to snapshot %s", b.id, n.ID)
	b.refuse(why)
	m.ending(b, why)
	// If the server breaks down now, the provider may have it on disk: who finds it
	// resuming has it go on, whichever it is.
	if err := m.become(ctx, b, sandpit.StateResuming, nil); err != nil {
		return err
	}
	_, err = call(ctx, m.loops, remote{what: "roll back sandbox " + string(b.id), limit: m.o.CreateTimeout}, none(do), nil)
	if err == nil {
		err = m.giveAgain(ctx, b)
	}
	if err == nil {
		return m.become(ctx, b, sandpit.StateRunning, func(r *store.Row) { r.LastUsedAt = m.o.Clock.Now() })
	}
	was, onDisk := sandpit.StateRunning, errors.Is(m.ask(ctx, b), sandpit.Conflict)
	if onDisk {
		was = sandpit.StatePaused
	}
	return errors.Join(err, m.become(ctx, b, was, func(r *store.Row) {
		r.Reason, r.Suspended = cut("could not roll back: "+err.Error(), store.MaxReason), onDisk
	}))
}
