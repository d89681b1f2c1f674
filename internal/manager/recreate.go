package manager

import (
	"context"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/store"
)

// recoverStep makes a sandbox again that was lost, as often as its policy says.
func (m *Manager) recoverStep(ctx context.Context, b *box) error {
	row := b.look()
	switch {
	case row.State != sandpit.StateError || row.Policy.Recreate == 0:
		return nil
	case row.Recreated >= row.Policy.Recreate:
		return m.logged("delete", map[string]string{"reason": row.Reason}, m.removing(row.Reason))(ctx, b)
	}
	args := map[string]string{"time": strconv.Itoa(row.Recreated + 1), "reason": row.Reason}
	return m.logged("recreate", args, m.recreate)(ctx, b)
}

// recreate makes a sandbox again from its spec, with the same ID.
func (m *Manager) recreate(ctx context.Context, b *box) error {
	select {
	case m.making <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-m.making }()
	if err := m.destroy(ctx, b); err != nil {
		return err
	}
	b.place(nil)
	reason := b.look().Reason
	err := m.become(ctx, b, sandpit.StateCreating, func(r *store.Row) {
		r.Reason, r.Handle, r.Recreated = reason, nil, r.Recreated+1
	})
	if err != nil {
		return err
	}
	i, err := m.rebuild(ctx, b)
	if err == nil {
		m.settleIn(b, i)
		return nil
	}
	b.place(i) // what there is of it is destroyed before the next try
	if bad := m.become(ctx, b, sandpit.StateError, withReason(reason+"; "+err.Error())); bad != nil {
		return bad
	}
	if row := b.look(); row.Recreated >= row.Policy.Recreate {
		return m.remove(ctx, b, row.Reason)
	}
	return err
}

func (m *Manager) rebuild(ctx context.Context, b *box) (sandpit.Instance, error) {
	ctx, cancel := limited(ctx, remote{what: "recreate", limit: m.o.CreateTimeout})
	defer cancel()
	i, err := m.obtain(ctx, b)
	if err != nil {
		return nil, because(ctx, err)
	}
	err = m.write(ctx, b, func(r *store.Row) { r.Handle = i.Handle() })
	if err != nil {
		return i, err
	}
	return i, m.become(ctx, b, sandpit.StateRunning, func(r *store.Row) { r.LastUsedAt = m.o.Clock.Now() })
}
