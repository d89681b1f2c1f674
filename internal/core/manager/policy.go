package manager

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// SetPolicy replaces the policy of a sandbox. What p leaves out gets the defaults of a new
// sandbox. It counts as a use, so that the sandbox is not idle at once.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: the policy. Unsupported: the
// provider cannot do what it asks for.
func (m *Manager) SetPolicy(ctx context.Context, id sandpit.ID, p store.Policy) error {
	p = m.core.completeIdleTimeout(p)
	if err := checkPolicy(p); err != nil {
		return err
	}
	args := make(map[string]string)
	return m.core.runOperation(ctx, id, "set policy", args, func(ctx context.Context, b *box) error {
		row := b.look()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		i, err := m.instances.ensureAttached(ctx, b)
		if err != nil {
			return err
		}
		complete, err := m.core.completePolicy(i, p)
		if err != nil {
			return err
		}
		describePolicy(args, complete)
		now := m.o.Clock.Now()
		return m.records.updateRow(ctx, b, func(r *store.Row) { r.Policy, r.LastUsedAt = complete, now })
	})
}

// describePolicy adds what a policy has happen to the arguments of an event.
func describePolicy(args map[string]string, p store.Policy) {
	args["idle_action"] = string(p.IdleAction)
	for name, d := range map[string]time.Duration{
		"idle_timeout": p.IdleTimeout, "auto_stop": p.AutoStop, "auto_suspend": p.AutoSuspend,
		"auto_archive": p.AutoArchive, "auto_delete": p.AutoDelete, "checkpoint_every": p.CheckpointEvery,
	} {
		if d > 0 {
			args[name] = d.String()
		}
	}
}
