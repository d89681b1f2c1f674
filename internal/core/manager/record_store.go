package manager

import (
	"context"
	"errors"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// recordStore changes the rows of sandboxes, in the store and in memory.
type recordStore struct {
	clock     clock.Clock
	disk      *diskUse
	o         *Options
	quota     *sandboxQuota
	sandboxes *recordIndex
	shifting  sync.RWMutex // held for reading while a row is written, so that none is shifted between store and memory
	store     *store.Store
	states    stateListeners
	used      pendingUses // times of last use that are not written yet
}

// changeState writes that a sandbox is in its next state. The caller holds the lock.
func (rs *recordStore) changeState(ctx context.Context, rec *sandboxRecord, next sandpit.State, edit func(*store.Row)) error {
	now := rec.state()
	if !now.CanBecome(next) {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s and cannot become %s", rec.id, now, next)
	}
	err := rs.updateRow(ctx, rec, func(r *store.Row) {
		r.State, r.Reason, r.ChangedAt = next, "", rs.clock.Now()
		if edit != nil {
			edit(r)
		}
	})
	if err != nil {
		return err
	}
	if !usesQuota(next, rec.currentRow().Suspended) {
		rs.quota.release(rec.id)
	}
	rs.disk.countRecord(rec.currentRow())
	if next == sandpit.StateDeleting || next == sandpit.StateDeleted {
		rs.o.Publisher.Withdraw(rec.id)
	}
	rs.states.notify(rec, now)
	return nil
}

// updateRow changes the row of a sandbox, in the store and in memory. The caller holds the lock.
// The end of the caller's context does not stop it: the sandbox may have changed already, which
// must be recorded.
func (rs *recordStore) updateRow(ctx context.Context, rec *sandboxRecord, edit func(*store.Row)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	rs.shifting.RLock()
	defer rs.shifting.RUnlock()
	row := rec.currentRow()
	edit(&row)
	written, err := rs.store.Sandboxes().UpdateSandbox(ctx, row)
	if errors.Is(err, sandpit.Conflict) {
		written, err = rs.overwriteRow(ctx, row)
	}
	if err != nil {
		return err
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.row.LastUsedAt.After(written.LastUsedAt) {
		written.LastUsedAt = rec.row.LastUsedAt
	}
	rec.row = written
	return nil
}

// overwriteRow writes a row whose version in the store differs: an earlier write succeeded although
// its result was lost. Only the manager writes to the store.
func (rs *recordStore) overwriteRow(ctx context.Context, row store.Row) (store.Row, error) {
	stored, err := rs.store.Sandboxes().Sandbox(ctx, row.ID)
	if err != nil {
		return store.Row{}, err
	}
	row.Version = stored.Version
	return rs.store.Sandboxes().UpdateSandbox(ctx, row)
}

// insertRow writes a new row.
func (rs *recordStore) insertRow(ctx context.Context, rec *sandboxRecord) error {
	row, err := rs.store.Sandboxes().InsertSandbox(ctx, rec.currentRow())
	if err != nil {
		return err
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.row = row
	return nil
}

// deleteRow removes a row from the store and the record from memory.
func (rs *recordStore) deleteRow(ctx context.Context, rec *sandboxRecord) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	if err := rs.store.Sandboxes().DeleteSandbox(ctx, rec.id); err != nil {
		return err
	}
	rs.sandboxes.remove(rec)
	rs.quota.release(rec.id)
	rs.disk.space.dropClaim(string(rec.id))
	return nil
}
