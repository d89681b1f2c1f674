package manager

import (
	"context"
	"errors"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// become writes that a sandbox is in its next state. Only who has its turn may
// call it.
func (m *Manager) become(ctx context.Context, b *box, next sandpit.State, edit func(*store.Row)) error {
	if now := b.state(); !now.CanBecome(next) {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s and cannot become %s", b.id, now, next)
	}
	err := m.write(ctx, b, func(r *store.Row) {
		r.State, r.Reason, r.ChangedAt = next, "", m.o.Clock.Now()
		if edit != nil {
			edit(r)
		}
	})
	if err != nil {
		return err
	}
	if !takesRoom(next, b.look().Suspended) {
		m.room.give(b.id)
	}
	m.countSaved(b.look())
	if next == sandpit.StateDeleting || next == sandpit.StateDeleted {
		m.o.Publisher.Withdraw(b.id)
	}
	return nil
}

// write changes the row of a sandbox, in the store and in memory. Only who has
// its turn may call it. The caller's end does not stop it: the world may have
// changed already, and that must be known.
func (m *Manager) write(ctx context.Context, b *box, edit func(*store.Row)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	m.wall.shifting.RLock()
	defer m.wall.shifting.RUnlock()
	row := b.look()
	edit(&row)
	written, err := m.o.Store.UpdateSandbox(ctx, row)
	if errors.Is(err, sandpit.Conflict) {
		written, err = m.overwrite(ctx, row)
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

// overwrite writes a row whose version in the store is another: then an earlier
// write was done though its answer was lost. Nobody else writes to the store.
func (m *Manager) overwrite(ctx context.Context, row store.Row) (store.Row, error) {
	stored, err := m.o.Store.Sandbox(ctx, row.ID)
	if err != nil {
		return store.Row{}, err
	}
	row.Version = stored.Version
	return m.o.Store.UpdateSandbox(ctx, row)
}

// insert writes a new row.
func (m *Manager) insert(ctx context.Context, b *box) error {
	row, err := m.o.Store.InsertSandbox(ctx, b.look())
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row = row
	return nil
}

// forget removes a row for good.
func (m *Manager) forget(ctx context.Context, b *box) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	if err := m.o.Store.DeleteSandbox(ctx, b.id); err != nil {
		return err
	}
	m.boxes.drop(b)
	m.room.give(b.id)
	m.space.drop(string(b.id))
	return nil
}
