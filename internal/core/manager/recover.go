package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
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
