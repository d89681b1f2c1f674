package manager

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

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
