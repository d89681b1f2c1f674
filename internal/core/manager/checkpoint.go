package manager

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

func (lc *lifecycle) checkpointFiles(ctx context.Context, rec *sandboxRecord) error {
	row := rec.currentRow()
	if err := stateError(row); err != nil {
		return err
	}
	i, err := lc.instances.ensureAttached(ctx, rec)
	if err != nil {
		return err
	}
	do := checkpointFunc(i)
	if do == nil {
		return sandpit.Errorf(sandpit.Unsupported, "checkpoint sandbox %s: its provider %q cannot do that", rec.id, row.Provider)
	}
	release, err := lc.core.acquireSlot(ctx, rec, lc.slots.saves)
	if err != nil {
		return err
	}
	defer release()
	s, err := lc.disk.reserveSave(ctx, saveRequest{id: string(rec.id), owner: row.Lease.Owner, disk: lc.disk.saves, bytes: lc.disk.estimateSave(ctx, i, false)})
	if err != nil {
		return err
	}
	defer s.release()
	at := lc.clock.Now() // files written from now on may be missing
	limit := providerCall{what: "checkpoint sandbox " + string(rec.id), limit: max(lc.o.CallTimeout, lc.o.MoveTimeout)}
	if _, err := callProvider(s.withAdmit(ctx), lc.core.loops, limit, withoutResult(do), nil); err != nil {
		s.cancel()
		return err
	}
	s.finishCheckpoint()
	return lc.records.updateRow(ctx, rec, func(r *store.Row) { r.CheckpointedAt = at })
}

// clearCheckpoint records that a sandbox has no checkpoint any more: its provider has removed it,
// because it was too old or too large.
func (lc *lifecycle) clearCheckpoint(ctx context.Context, rec *sandboxRecord) error {
	if rec.currentRow().CheckpointedAt.IsZero() {
		return errNothingToDo
	}
	return lc.records.updateRow(ctx, rec, func(r *store.Row) { r.CheckpointedAt = time.Time{} })
}
