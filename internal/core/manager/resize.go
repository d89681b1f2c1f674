package manager

import (
	"context"
	"log/slog"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Resize changes those limits of a running or stopped sandbox that are not zero in r. A stopped one
// has them from its next start.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it neither runs nor is stopped, or must
// be stopped first. Invalid: a limit. Unsupported: its provider cannot do that.
func (m *Manager) Resize(ctx context.Context, id sandpit.ID, r sandpit.Resources) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return m.core.runOperation(ctx, id, "resize", resourceArgs(r), func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		if row.State != sandpit.StateRunning && row.State != sandpit.StateStopped {
			return stateError(row)
		}
		changed := row.Spec.Clone()
		changed.Resources = r
		fillResources(&changed.Resources, row.Spec.Resources)
		if changed.Resources == row.Spec.Resources {
			return errNothingToDo
		}
		i, err := m.instances.ensureAttached(ctx, rec)
		if err != nil {
			return err
		}
		resizer, ok := as[sandpit.Resizer](i)
		if !ok {
			return sandpit.Errorf(sandpit.Unsupported, "sandbox %s: its provider %q cannot change the limits of a sandbox", id, row.Provider)
		}
		set := withoutResult(func(ctx context.Context) error { return resizer.Resize(ctx, r) })
		if _, err := callProvider(ctx, m.core.loops, m.core.newCallTo(row.Provider, "resize sandbox "+string(id)), set, nil); err != nil {
			return err
		}
		// If this is not written, correctLimits repairs the row.
		return m.records.updateRow(ctx, rec, func(row *store.Row) { row.Spec = changed })
	})
}

// resourceArgs returns limits as arguments of an event.
func resourceArgs(r sandpit.Resources) map[string]string {
	args := make(map[string]string)
	for name, n := range map[string]int64{"memory": r.Memory, "disk": r.Disk, "pids": int64(r.PIDs)} {
		if n != 0 {
			args[name] = strconv.FormatInt(n, 10)
		}
	}
	if r.CPUs != 0 {
		args["cpus"] = strconv.FormatFloat(r.CPUs, 'g', -1, 64)
	}
	return args
}

// correctLimits writes the limits that a provider has for a sandbox, after a Resize that was
// interrupted before the row was written. The caller holds the lock.
func (rc *reconciler) correctLimits(ctx context.Context, rec *sandboxRecord, placement sandpit.Placement) error {
	row, has := rec.currentRow(), placement.Spec.Resources
	i := rec.currentInstance()
	if i == nil || placement.Spec.Labels[Label] != rc.identity || has == row.Spec.Resources {
		return errNothingToDo
	}
	if _, resizes := as[sandpit.Resizer](i); !resizes {
		return errNothingToDo
	}
	rc.log.InfoContext(ctx, "manager: limits of a sandbox corrected", slog.String("sandbox", string(rec.id)), slog.Any("limits", has))
	return rc.records.updateRow(ctx, rec, func(r *store.Row) {
		r.Spec = r.Spec.Clone()
		r.Spec.Resources = has
	})
}
