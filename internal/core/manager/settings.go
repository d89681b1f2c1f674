package manager

import (
	"cmp"
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// SetDeadline replaces the lease of a sandbox, except its owner. The zero deadline means never;
// without an action, the action does not change. The deadline is rounded to milliseconds.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: the deadline has passed. Unsupported:
// the provider cannot take the action.
func (m *Manager) SetDeadline(ctx context.Context, id sandpit.ID, l sandpit.Lease) error {
	now, err := m.wall.now(ctx)
	if err != nil {
		return err
	}
	keeps := l.Action == ""
	if l, err = prepareLease(l, now); err != nil {
		return err
	}
	args := map[string]string{"deadline": l.Deadline.Format(time.RFC3339Nano)}
	return m.core.runOperation(ctx, id, "set deadline", args, func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		if keeps {
			l.Action = cmp.Or(row.Lease.Action, l.Action)
		} else if err := m.checkAction(ctx, rec, l.Action); err != nil {
			return err
		}
		l.Owner, args["action"] = row.Lease.Owner, string(l.Action)
		if err := m.records.updateRow(ctx, rec, func(r *store.Row) { r.Lease, r.Term = l, leaseTermFrom(l, now) }); err != nil {
			return err
		}
		m.renewals.renewSandbox(ctx, rec)
		return m.messages.scheduleDeadline(ctx, rec)
	})
}

// SetLabels replaces the labels of a sandbox in the manager; the provider keeps the original ones.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: the labels. Exhausted: the limit of
// sandboxes with such a label is reached.
func (m *Manager) SetLabels(ctx context.Context, id sandpit.ID, labels map[string]string) error {
	if err := checkLabels(labels); err != nil {
		return err
	}
	return m.core.runOperation(ctx, id, "set labels", nil, func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		changed := row.Sandbox
		changed.Spec = row.Spec.Clone()
		changed.Spec.Labels = sandpit.Spec{Labels: labels}.Clone().Labels
		if err := m.quota.changeClaim(changed, nil); err != nil {
			return err
		}
		err := m.records.updateRow(ctx, rec, func(r *store.Row) { r.Spec = changed.Spec })
		if err != nil {
			m.quota.revertChange(row.Sandbox)
		}
		return err
	})
}

// checkAction refuses an action that a sandbox does not support.
func (m *Manager) checkAction(ctx context.Context, rec *sandboxRecord, a sandpit.Action) error {
	if a == sandpit.ActionKill {
		return nil
	}
	i, err := m.instances.ensureAttached(ctx, rec)
	if err != nil {
		return err
	}
	return checkAbility(i, a)
}

// deadlineMatters reports whether there is anything to do at the deadline.
func deadlineMatters(r store.Row) bool {
	if r.Lease.Deadline.IsZero() {
		return false
	}
	switch r.State {
	case sandpit.StateDeleting, sandpit.StateDeleted:
		return false
	case sandpit.StateStopped, sandpit.StateArchived, sandpit.StateError:
		return r.Lease.Action == sandpit.ActionKill
	case sandpit.StatePaused:
		return r.Lease.Action != sandpit.ActionPause && (r.Lease.Action != sandpit.ActionSuspend || !r.Suspended)
	default:
		return true
	}
}

// SetPolicy replaces the policy of a sandbox. What p leaves out gets the defaults of a new sandbox.
// The call counts as activity, so that the sandbox is not idle at once.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: the policy. Unsupported: the provider
// cannot do what the policy asks for.
func (m *Manager) SetPolicy(ctx context.Context, id sandpit.ID, p store.Policy) error {
	p = m.core.completeIdleTimeout(p)
	if err := checkPolicy(p); err != nil {
		return err
	}
	args := make(map[string]string)
	return m.core.runOperation(ctx, id, "set policy", args, func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		i, err := m.instances.ensureAttached(ctx, rec)
		if err != nil {
			return err
		}
		complete, err := m.core.completePolicy(i, p)
		if err != nil {
			return err
		}
		describePolicy(args, complete)
		now := m.o.Clock.Now()
		err = m.records.updateRow(ctx, rec, func(r *store.Row) { r.Policy, r.LastUsedAt = complete, now })
		if err == nil {
			m.renewals.renewSandbox(ctx, rec)
		}
		return err
	})
}

// describePolicy adds a policy to the arguments of an event.
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

// Rename gives a sandbox another name, or none if name is empty. The sandbox may be in any state.
// Its provider keeps the original name.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: the name. AlreadyExists: another
// sandbox of the owner has it.
func (m *Manager) Rename(ctx context.Context, id sandpit.ID, name string) error {
	return m.core.runOperation(ctx, id, "rename", map[string]string{"name": name}, func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		if row.State == sandpit.StateDeleting || row.State == sandpit.StateDeleted {
			return stateError(row)
		}
		if row.Spec.Name == name {
			return nil
		}
		if _, err := m.creator.checkName(ctx, row.Lease.Owner, name); err != nil {
			return err
		}
		return m.records.updateRow(ctx, rec, func(r *store.Row) {
			r.Spec = r.Spec.Clone()
			r.Spec.Name = name
		})
	})
}
