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
	quota     *ledger
	sandboxes *index
	shifting  sync.RWMutex // held for reading while a row is written, so that none is shifted between store and memory
	store     *store.Store
	used      touches // times of last use that are not written yet
}

// changeState writes that a sandbox is in its next state. Only who has its turn may
// call it.
func (rs *recordStore) changeState(ctx context.Context, b *box, next sandpit.State, edit func(*store.Row)) error {
	if now := b.state(); !now.CanBecome(next) {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s and cannot become %s", b.id, now, next)
	}
	err := rs.updateRow(ctx, b, func(r *store.Row) {
		r.State, r.Reason, r.ChangedAt = next, "", rs.clock.Now()
		if edit != nil {
			edit(r)
		}
	})
	if err != nil {
		return err
	}
	if !takesRoom(next, b.look().Suspended) {
		rs.quota.give(b.id)
	}
	rs.disk.countRecord(b.look())
	if next == sandpit.StateDeleting || next == sandpit.StateDeleted {
		rs.o.Publisher.Withdraw(b.id)
	}
	return nil
}

// updateRow changes the row of a sandbox, in the store and in memory. Only who has
// its turn may call it. The caller's end does not stop it: the world may have
// changed already, and that must be known.
func (rs *recordStore) updateRow(ctx context.Context, b *box, edit func(*store.Row)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	rs.shifting.RLock()
	defer rs.shifting.RUnlock()
	row := b.look()
	edit(&row)
	written, err := rs.store.UpdateSandbox(ctx, row)
	if errors.Is(err, sandpit.Conflict) {
		written, err = rs.overwriteRow(ctx, row)
	}
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.row.LastUsedAt.After(written.LastUsedAt) {
		written.LastUsedAt = b.row.LastUsedAt
	}
	b.row = written
	return nil
}

// overwriteRow writes a row whose version in the store is another: then an earlier
// write was done though its answer was lost. Nobody else writes to the store.
func (rs *recordStore) overwriteRow(ctx context.Context, row store.Row) (store.Row, error) {
	stored, err := rs.store.Sandbox(ctx, row.ID)
	if err != nil {
		return store.Row{}, err
	}
	row.Version = stored.Version
	return rs.store.UpdateSandbox(ctx, row)
}

// insertRow writes a new row.
func (rs *recordStore) insertRow(ctx context.Context, b *box) error {
	row, err := rs.store.InsertSandbox(ctx, b.look())
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row = row
	return nil
}

// deleteRow removes a row for good.
func (rs *recordStore) deleteRow(ctx context.Context, b *box) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	if err := rs.store.DeleteSandbox(ctx, b.id); err != nil {
		return err
	}
	rs.sandboxes.drop(b)
	rs.quota.give(b.id)
	rs.disk.space.drop(string(b.id))
	return nil
}
