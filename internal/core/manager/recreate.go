package manager

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
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
	release, err := m.acquireFor(ctx, b, m.slots.starts)
	if err != nil {
		return err
	}
	defer release()
	reason := b.look().Reason
	left, err := m.remains(ctx, b)
	if err != nil {
		return err
	}
	if left == nil {
		if err := m.destroy(ctx, b); err != nil {
			return err
		}
	}
	b.place(nil)
	err = m.become(ctx, b, sandpit.StateCreating, func(r *store.Row) {
		r.Reason, r.Recreated = reason, r.Recreated+1
		if left == nil {
			r.Handle, r.CheckpointedAt = nil, time.Time{}
		}
	})
	if err != nil {
		return err
	}
	i, err := m.rebuild(ctx, b, left)
	if err == nil {
		m.settleIn(b, i)
		return nil
	}
	b.place(i) // what there is of it is destroyed before the next try
	bad := m.become(ctx, b, sandpit.StateError, func(r *store.Row) {
		r.Reason = cut(reason+"; "+err.Error(), store.MaxReason)
		if len(r.Handle) > 0 && left != nil && sandpit.CodeOf(err) == sandpit.Unavailable {
			r.Recreated-- // the provider is away, and what it keeps is still there
		}
	})
	if bad != nil {
		return bad
	}
	if row := b.look(); row.Recreated >= row.Policy.Recreate {
		return m.remove(ctx, b, row.Reason)
	}
	return err
}

// remains returns what is left of a sandbox, if its provider can start that again; nil:
// it must be made anew.
func (m *Manager) remains(ctx context.Context, b *box) (sandpit.Reviver, error) {
	if len(b.look().Handle) == 0 {
		return nil, nil
	}
	i, err := m.locate(ctx, b)
	if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, _ := as[sandpit.Reviver](i)
	return r, nil
}

// revive starts again what is left of a sandbox. If that cannot be, the sandbox is made
// anew, without its files.
func (m *Manager) revive(ctx context.Context, b *box, left sandpit.Reviver) (sandpit.Instance, error) {
	i, err := call(ctx, m.loops, remote{what: "revive"}, left.Revive, nil)
	switch code := sandpit.CodeOf(err); {
	case err == nil && i.ID() != b.id:
		return nil, sandpit.Errorf(sandpit.Internal, "the provider revived %.64q instead", string(i.ID()))
	case code == sandpit.Conflict: // somebody else has started it
		return m.attach(ctx, b, b.look().Handle)
	case code != sandpit.NotFound && code != sandpit.Gone:
		return i, err
	}
	m.o.Log.WarnContext(ctx, "a sandbox is made anew, without its files", slog.String("sandbox", string(b.id)), slog.Any("error", err))
	if err := m.destroy(ctx, b); err != nil {
		return nil, err
	}
	if err := m.write(ctx, b, func(r *store.Row) { r.Handle, r.CheckpointedAt = nil, time.Time{} }); err != nil {
		return nil, err
	}
	return m.obtainAgain(ctx, b)
}

// obtainAgain is obtain of a sandbox that existed before.
func (m *Manager) obtainAgain(ctx context.Context, b *box) (sandpit.Instance, error) {
	row, release, err := m.prepareAgain(ctx, b.look())
	if err != nil {
		return nil, err
	}
	defer release()
	return m.obtainAs(ctx, b, row)
}

func (m *Manager) rebuild(ctx context.Context, b *box, left sandpit.Reviver) (sandpit.Instance, error) {
	ctx, cancel := limited(ctx, remote{what: "recreate", limit: m.o.CreateTimeout})
	defer cancel()
	var i sandpit.Instance
	var err error
	if left != nil {
		i, err = m.revive(ctx, b, left)
	} else {
		i, err = m.obtainAgain(ctx, b)
	}
	if err != nil {
		return nil, because(ctx, err)
	}
	m.observe(b, i)
	err = m.write(ctx, b, func(r *store.Row) { r.Handle = i.Handle() })
	if err == nil {
		err = m.giveKept(ctx, i, b.look().Spec.Secrets)
	}
	if err != nil {
		return i, err
	}
	why := b.look().Reason
	return i, m.become(ctx, b, sandpit.StateRunning, func(r *store.Row) {
		r.LastUsedAt = m.o.Clock.Now()
		if !r.CheckpointedAt.IsZero() { // who has used it must know what is missing
			r.Reason = cut("made again, with its files of "+r.CheckpointedAt.UTC().Format(time.RFC3339)+": "+why, store.MaxReason)
		}
	})
}
