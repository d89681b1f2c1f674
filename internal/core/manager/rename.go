package manager

import (
	"context"
	"errors"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Rename gives a sandbox another name, or none if name is empty. It may be in any state. Its
// provider keeps the name that it was made with.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: the name. AlreadyExists: another
// sandbox of the owner has it.
func (m *Manager) Rename(ctx context.Context, id sandpit.ID, name string) error {
	return m.core.runOperation(ctx, id, "rename", map[string]string{"name": name}, func(ctx context.Context, b *box) error {
		row := b.look()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		if row.Spec.Name == name {
			return nil
		}
		if _, err := m.creator.checkName(ctx, row.Lease.Owner, name); err != nil {
			return err
		}
		return m.records.updateRow(ctx, b, func(r *store.Row) {
			r.Spec = r.Spec.Clone()
			r.Spec.Name = name
		})
	})
}

// checkNewName refuses a request for a sandbox whose name is invalid or taken, before anything
// is done for it. A request that is repeated by its key is the one that has the name.
func (cr *creator) checkNewName(ctx context.Context, r CreateRequest) error {
	if r.pool != "" {
		return nil
	}
	holder, err := cr.checkName(ctx, r.Owner, r.Spec.Name)
	if r.Key != "" && holder.Key == r.Key {
		return nil
	}
	return err
}

// checkName refuses an invalid name and one that a sandbox of the owner has, which is returned
// as well. Of two calls at the same time with the same name both may pass: the store refuses
// the second one.
func (cr *creator) checkName(ctx context.Context, owner, name string) (holder store.Row, err error) {
	if name == "" {
		return holder, nil
	}
	if err := sandpit.CheckName(name); err != nil {
		return holder, err
	}
	holder, err = cr.store.SandboxByName(ctx, owner, name)
	switch {
	case errors.Is(err, sandpit.NotFound):
		return holder, nil
	case err != nil:
		return holder, err
	}
	return holder, store.NameTaken(name, holder.ID)
}
