package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Recover lets a sandbox in the error state run again. One whose transition the provider refused to
// finish after a restart of the server starts or resumes with its files; one that was lost is
// recreated as its policy says, without waiting for the next attempt. If that fails, the sandbox
// stays in the error state.
//
// NotFound: no such sandbox, or its provider does not have it any more. Gone: it was deleted.
// Conflict: it is not in the error state. Exhausted: no room for another running sandbox.
func (m *Manager) Recover(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "recover", nil, func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		if row.State != sandpit.StateError {
			return newStateConflict(row)
		}
		err := m.lifecycle.runTransition(ctx, rec, recovering, "")
		if code := sandpit.CodeOf(err); code != sandpit.NotFound && code != sandpit.Gone || row.Recreated >= row.Policy.Recreate {
			return err
		}
		return m.recreator.recreateSandbox(ctx, rec)
	})
}

// IsRecoverable reports whether Recover may help a sandbox: it is in the error state, and its provider
// has created it or its policy lets it be recreated.
func (m *Manager) IsRecoverable(id sandpit.ID) bool {
	rec, err := m.sandboxes.findVisible(id)
	if err != nil {
		return false
	}
	row := rec.currentRow()
	return row.State == sandpit.StateError && (len(row.Handle) > 0 || row.Recreated < row.Policy.Recreate)
}

// isUnfinished reports whether a crash of the server interrupted the creation of a sandbox.
func isUnfinished(r store.Row) bool {
	isGone := r.State == sandpit.StateDeleting || r.State == sandpit.StateDeleted
	return r.State == sandpit.StateCreating || isGone && r.Reason == reasonCrash
}

// IsUnfinished reports whether a sandbox is being created, or was when the server ended.
func (m *Manager) IsUnfinished(id sandpit.ID) bool {
	rec, err := m.sandboxes.findVisible(id)
	return err == nil && isUnfinished(rec.currentRow())
}

// ForgetUnfinished removes the record of a sandbox whose creation a crash of the server interrupted,
// so that its ID can be used again. It does nothing if there is no such record.
//
// Conflict: parts of the sandbox are not removed yet, or the ID belongs to another one.
func (m *Manager) ForgetUnfinished(ctx context.Context, id sandpit.ID) error {
	rec, err := m.sandboxes.findVisible(id)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return m.core.runLocked(ctx, rec, func(ctx context.Context, rec *sandboxRecord) error {
		if row := rec.currentRow(); row.State != sandpit.StateDeleted || !isUnfinished(row) {
			return newStateConflict(row)
		}
		return m.records.deleteRow(ctx, rec)
	})
}
