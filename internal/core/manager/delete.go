package manager

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Delete ends a sandbox and removes everything of it. From its beginning nobody
// gets a handle; who holds one hears of it and has Options.Drain to release it. A
// sandbox that is being made is taken back. What cannot be removed is tried again
// later, and the error tells what went wrong; who calls again tries at once.
//
// A sandbox that is unknown or deleted already is no error.
func (m *Manager) Delete(ctx context.Context, id sandpit.ID) error {
	b, err := m.boxes.known(id)
	if err != nil {
		return nil // there is nothing to delete
	}
	actor := actorOf(ctx, b.look().Lease.Owner)
	if m.closing.Load() {
		return errClosed
	}
	b.giveUp(sandpit.Errorf(sandpit.Canceled, "it was deleted by %s while it was made", actor))
	defer b.resumeMaking()
	return m.run(ctx, b, m.logged("delete", nil, m.removing("killed by "+actor)))
}

// removing is the step that ends a sandbox.
func (m *Manager) removing(reason string) step {
	return func(ctx context.Context, b *box) error { return m.remove(ctx, b, reason) }
}

// remove ends a sandbox and leaves a row that tells why.
func (m *Manager) remove(ctx context.Context, b *box, reason string) error {
	switch b.state() {
	case sandpit.StateDeleted:
		return errNothing
	case sandpit.StateDeleting:
	default:
		if err := m.condemn(ctx, b, reason); err != nil {
			return err
		}
	}
	if err := m.clear(ctx, b); err != nil {
		m.schedule(ctx, b, kindDelete, m.o.Clock.Now())
		return err
	}
	m.cancelAll(ctx, b)
	return m.bury(ctx, b)
}

// condemn takes a sandbox from its users.
func (m *Manager) condemn(ctx context.Context, b *box, reason string) error {
	cause := gone(b.id, reason)
	b.refuse(cause)
	k := keyOf(b.look())
	err := m.become(ctx, b, sandpit.StateDeleting, func(r *store.Row) {
		r.Reason, r.Key = cut(reason, store.MaxReason), ""
	})
	if err != nil {
		return err
	}
	m.boxes.freeKey(b, k)
	if !m.ending(b, cause) {
		m.o.Log.WarnContext(ctx, "a sandbox is deleted while it is used", slog.String("sandbox", string(b.id)))
	}
	return nil
}

// bury leaves a row that tells why a sandbox is gone.
func (m *Manager) bury(ctx context.Context, b *box) error {
	reason := b.look().Reason
	err := m.become(ctx, b, sandpit.StateDeleted, func(r *store.Row) {
		r.Reason, r.Handle, r.Spec = reason, nil, remembered(r.Spec)
	})
	if err != nil {
		return err
	}
	b.place(nil)
	return nil
}

// remembered returns what is kept of a deleted sandbox's spec, without what may be large: an
// owner can delete many sandboxes within Options.Remember.
func remembered(s sandpit.Spec) sandpit.Spec {
	return sandpit.Spec{
		Name: s.Name, Image: s.Image, Template: s.Template, Labels: s.Labels, Resources: s.Resources,
		User: s.User, WorkDir: s.WorkDir, Hostname: s.Hostname,
	}
}

// clear removes what there is of a sandbox, also what the provider knows nothing of.
func (m *Manager) clear(ctx context.Context, b *box) error {
	if err := m.destroy(ctx, b); err != nil {
		return err
	}
	if err := m.dropSecrets(b.look()); err != nil {
		return err
	}
	return m.removeTempDirs(ctx, b)
}

// destroy removes what a provider has of a sandbox. A provider that does not know it has
// nothing of it.
func (m *Manager) destroy(ctx context.Context, b *box) error {
	i, err := m.locate(ctx, b)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = call(ctx, m.loops, m.remote("destroy sandbox "+string(b.id)), none(i.Destroy), nil)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	return err
}

// locate finds the instance of a sandbox that may not have been made: then nobody
// has been told its handle, but the provider lists it. NotFound: there is none.
func (m *Manager) locate(ctx context.Context, b *box) (sandpit.Instance, error) {
	if i := b.placed(); i != nil {
		return i, nil
	}
	if row := b.look(); len(row.Handle) > 0 {
		return m.attach(ctx, b, row.Handle)
	}
	list, err := m.list(ctx, b.provider)
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if p.ID == b.id && p.Spec.Labels[Label] == m.identity {
			return m.attach(ctx, b, p.Handle)
		}
	}
	return nil, notFound(b.id)
}

func (m *Manager) list(ctx context.Context, p sandpit.Provider) ([]sandpit.Placement, error) {
	if p == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "list sandboxes: the provider is not configured")
	}
	return call(ctx, m.loops, m.remote("list sandboxes"), p.List, nil)
}

// destroyAll deletes all sandboxes at the same time and says what is left.
func (m *Manager) destroyAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(WithActor(ctx, actorManager), closeLimit)
	defer cancel()
	var group sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, b := range m.boxes.all() {
		if b.state() == sandpit.StateDeleted {
			continue
		}
		group.Go(func() {
			if err := m.run(ctx, b, m.logged("delete", nil, m.removing("the manager was closed"))); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, sandpit.Errorf(sandpit.CodeOf(err), "sandbox %s could not be deleted: %w", b.id, err))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
