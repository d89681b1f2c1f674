package manager

import (
	"context"
	"errors"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// step is what is done to a sandbox by who has its turn.
type step func(ctx context.Context, b *box) error

// errNothing is a step that found nothing to do.
var errNothing = errors.New("nothing to do")

// operate does one thing for a caller, as one event.
func (m *Manager) operate(ctx context.Context, id sandpit.ID, action string, args map[string]string, do step) error {
	b, err := m.boxes.known(id)
	if err != nil {
		return err
	}
	if m.closing.Load() {
		return errClosed
	}
	err = m.run(ctx, b, m.logged(action, args, do))
	return about(err, sandpit.Subject{Provider: b.look().Provider, Sandbox: id, Operation: action})
}

// about says what a failure concerns. One that has no code is the server's own, whatever it
// looks like: a file of the server that is missing is nothing that the caller has not found.
func about(err error, s sandpit.Subject) error {
	if err == nil {
		return nil
	}
	_, coded := errors.AsType[sandpit.Code](err)
	if _, explained := errors.AsType[*sandpit.Error](err); !coded && !explained && !isEnded(err) {
		err = sandpit.Errorf(sandpit.Internal, "%w", err)
	}
	return sandpit.WithSubject(err, s)
}

// isEnded reports whether an error says that a context has ended.
func isEnded(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// run waits for a sandbox's turn and takes a step. The step goes on when the
// caller gives up; the caller hears of that.
func (m *Manager) run(ctx context.Context, b *box, do step) error {
	if !m.ops.begin() {
		return errClosed
	}
	if err := b.take(ctx); err != nil {
		m.ops.end()
		return err
	}
	result := make(chan error, 1)
	go func() {
		defer m.ops.end()
		defer b.yield()
		result <- m.stride(ctx, b, do)
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err
	default:
		return sandpit.Errorf(sandpit.CodeOf(ctx.Err()), "sandbox %s: nobody waits any more, but it goes on: %w", b.id, context.Cause(ctx))
	}
}

// runIfFree takes a step unless somebody else has the turn.
func (m *Manager) runIfFree(ctx context.Context, b *box, do step) error {
	if !m.ops.begin() {
		return nil
	}
	defer m.ops.end()
	if !b.tryTake() {
		return nil
	}
	defer b.yield()
	return m.stride(ctx, b, do)
}

// stride takes a step with a context that ends with the manager only.
func (m *Manager) stride(ctx context.Context, b *box, do step) error {
	ctx, cancel := m.ops.detach(ctx)
	defer cancel()
	defer m.wake()
	defer b.allow()
	if err := do(ctx, b); !errors.Is(err, errNothing) {
		return err
	}
	return nil
}

// logged is a step that leaves an event, unless there was nothing to do.
func (m *Manager) logged(action string, args map[string]string, do step) step {
	return func(ctx context.Context, b *box) error {
		begin := time.Now()
		err := do(ctx, b)
		if errors.Is(err, errNothing) {
			return err
		}
		m.record(Report{
			Request: RequestIDOf(ctx), Actor: actorOf(ctx, b.look().Lease.Owner), Action: action, Sandbox: b.id, Args: args,
			Err: err, Took: time.Since(begin),
		})
		return err
	}
}

// wake lets the sweep look again.
func (m *Manager) wake() {
	select {
	case m.nudge <- struct{}{}:
	default:
	}
}
