package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// as returns an ability of an instance, if it has it.
func as[T any](i sandpit.Instance) (T, bool) {
	ability, ok := i.(T)
	return ability, ok
}

// attached returns the instance of a sandbox, and attaches to it first if that has
// not happened since the manager was opened. Only who has the turn may call it.
// NotFound: the provider does not know it.
func (m *Manager) attached(ctx context.Context, b *box) (sandpit.Instance, error) {
	if i := b.placed(); i != nil {
		return i, nil
	}
	row := b.look()
	if len(row.Handle) == 0 {
		return nil, sandpit.Errorf(sandpit.NotFound, "sandbox %s was never made", b.id)
	}
	i, err := m.attach(ctx, b, row.Handle)
	if err != nil {
		return nil, err
	}
	m.settleIn(b, i)
	return i, nil
}

// attach asks a provider for an instance and makes sure that it is the right one.
func (m *Manager) attach(ctx context.Context, b *box, handle []byte) (sandpit.Instance, error) {
	if b.provider == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "sandbox %s: its provider %q is not configured", b.id, b.look().Provider)
	}
	i, err := call(ctx, m.loops, m.remote("attach"), func(ctx context.Context) (sandpit.Instance, error) {
		return b.provider.Attach(ctx, handle)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("attach to sandbox %s: %w", b.id, err)
	}
	if i.ID() != b.id {
		return nil, sandpit.Errorf(sandpit.Internal, "attach to sandbox %s: the provider answered with %.64q", b.id, string(i.ID()))
	}
	m.observe(b, i)
	return i, nil
}

func (m *Manager) remote(what string) remote { return remote{what: what, limit: m.o.CallTimeout} }

// settleIn keeps an instance and watches for its end.
func (m *Manager) settleIn(b *box, i sandpit.Instance) {
	if b.place(i) {
		m.loops.start(func(ctx context.Context) { m.watch(ctx, b, i) })
	}
}

// The pauses between two tries to watch an instance.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// watch waits for the end of an instance.
func (m *Manager) watch(ctx context.Context, b *box, i sandpit.Instance) {
	pause := firstPause
	for ctx.Err() == nil && b.placed() == i {
		exit, err := call(ctx, m.loops, remote{what: "wait"}, i.Wait, nil)
		if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
			exit, err = sandpit.Exit{}, nil
		}
		if err == nil {
			err = m.run(ctx, b, func(ctx context.Context, b *box) error { return m.ended(ctx, b, i, exit) })
			if err == nil {
				return
			}
		}
		if ctx.Err() != nil || errors.Is(err, errClosed) {
			return // the manager ends, and the next one looks again
		}
		m.o.Log.WarnContext(ctx, "the end of a sandbox cannot be seen, or dealt with", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		if sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// ended deals with an instance that has ended by itself.
func (m *Manager) ended(ctx context.Context, b *box, i sandpit.Instance, exit sandpit.Exit) error {
	if b.placed() != i {
		return nil // it was ended by us, or made again
	}
	reason := exit.Reason
	if reason == "" {
		reason = "it ended by itself"
	}
	if !exit.Known {
		reason = "vanished: " + reason
	}
	return m.lost(ctx, b, reason)
}

// actionLost is the action of an event that says that a sandbox has ended without our doing.
const actionLost = "lost"

// lost deals with a sandbox that has ended without our doing: it is made again if
// its policy says so, else it is remembered as deleted.
func (m *Manager) lost(ctx context.Context, b *box, reason string) error {
	row := b.look()
	switch {
	case row.State == sandpit.StateDeleting, row.State == sandpit.StateDeleted, row.State == sandpit.StateError:
		return nil // and what is being deleted is the queue's business
	case row.State == sandpit.StateRunning && row.Recreated < row.Policy.Recreate:
		return m.logged(actionLost, map[string]string{"reason": reason}, func(ctx context.Context, b *box) error {
			return m.breakDown(ctx, b, reason)
		})(ctx, b)
	}
	return m.logged(actionLost, map[string]string{"reason": reason}, m.removing(reason))(ctx, b)
}

// breakDown leaves a sandbox in error, to be made again.
func (m *Manager) breakDown(ctx context.Context, b *box, reason string) error {
	cause := gone(b.id, reason)
	b.refuse(cause)
	if err := m.become(ctx, b, sandpit.StateError, withReason(reason)); err != nil {
		return err
	}
	m.ending(b, cause)
	m.schedule(ctx, b, kindRecover, m.o.Clock.Now())
	return nil
}
