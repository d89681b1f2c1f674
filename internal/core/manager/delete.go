package manager

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// remover deletes sandboxes with everything that belongs to them.
type remover struct {
	clock     clock.Clock
	core      *core
	events    *Events
	instances *instances
	log       *slog.Logger
	messages  *Messages
	records   *recordStore
	sandboxes *index
	secrets   *secretFiles
}

// Delete ends a sandbox and removes everything of it. From its beginning nobody
// gets a handle; who holds one hears of it and has Options.Drain to release it. A
// sandbox that is being made is taken back. What cannot be removed is tried again
// later, and the error tells what went wrong; who calls again tries at once.
//
// A sandbox that is unknown or deleted already is no error.
func (m *Manager) Delete(ctx context.Context, id sandpit.ID) error {
	b, err := m.sandboxes.known(id)
	if err != nil {
		return nil // there is nothing to delete
	}
	actor := actorOf(ctx, b.look().Lease.Owner)
	if m.core.closing.Load() {
		return errClosed
	}
	b.giveUp(sandpit.Errorf(sandpit.Canceled, "it was deleted by %s while it was made", actor))
	defer b.resumeMaking()
	return m.core.runLocked(ctx, b, m.core.withEvent("delete", nil, m.remover.newRemoval("killed by "+actor)))
}

// newRemoval is the step that ends a sandbox.
func (rm *remover) newRemoval(reason string) step {
	return func(ctx context.Context, b *box) error { return rm.removeSandbox(ctx, b, reason) }
}

// removeSandbox ends a sandbox and leaves a row that tells why.
func (rm *remover) removeSandbox(ctx context.Context, b *box, reason string) error {
	switch b.state() {
	case sandpit.StateDeleted:
		return errNothing
	case sandpit.StateDeleting:
	default:
		if err := rm.beginRemoval(ctx, b, reason); err != nil {
			return err
		}
	}
	if err := rm.clearResources(ctx, b); err != nil {
		rm.messages.scheduleMessage(ctx, b, kindDelete, rm.clock.Now())
		return err
	}
	rm.messages.cancelMessages(ctx, b)
	return rm.finishRemoval(ctx, b)
}

// beginRemoval takes a sandbox from its users.
func (rm *remover) beginRemoval(ctx context.Context, b *box, reason string) error {
	cause := gone(b.id, reason)
	b.refuse(cause)
	k := keyOf(b.look())
	err := rm.records.changeState(ctx, b, sandpit.StateDeleting, func(r *store.Row) {
		r.Reason, r.Key = cut(reason, store.MaxReason), ""
	})
	if err != nil {
		return err
	}
	rm.sandboxes.freeKey(b, k)
	if !rm.core.notifyEnd(b, cause) {
		rm.log.WarnContext(ctx, "a sandbox is deleted while it is used", slog.String("sandbox", string(b.id)))
	}
	return nil
}

// finishRemoval leaves a row that tells why a sandbox is gone.
func (rm *remover) finishRemoval(ctx context.Context, b *box) error {
	reason := b.look().Reason
	err := rm.records.changeState(ctx, b, sandpit.StateDeleted, func(r *store.Row) {
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

// clearResources removes what there is of a sandbox, also what the provider knows nothing of.
func (rm *remover) clearResources(ctx context.Context, b *box) error {
	if err := rm.instances.destroyInstance(ctx, b); err != nil {
		return err
	}
	if err := rm.secrets.removeSecrets(b.look()); err != nil {
		return err
	}
	return rm.removeTempDirs(ctx, b)
}

// deleteAll deletes all sandboxes at the same time and says what is left.
func (rm *remover) deleteAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(WithActor(ctx, actorManager), closeLimit)
	defer cancel()
	var group sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, b := range rm.sandboxes.all() {
		if b.state() == sandpit.StateDeleted {
			continue
		}
		group.Go(func() {
			if err := rm.core.runLocked(ctx, b, rm.core.withEvent("delete", nil, rm.newRemoval("the manager was closed"))); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, sandpit.Errorf(sandpit.CodeOf(err), "sandbox %s could not be deleted: %w", b.id, err))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// retryRemoval goes on with a deletion that failed.
func (rm *remover) retryRemoval(ctx context.Context, b *box) error {
	if b.state() != sandpit.StateDeleting {
		return nil
	}
	return rm.core.withEvent("delete", map[string]string{"again": "true"}, func(ctx context.Context, b *box) error {
		if err := rm.clearResources(ctx, b); err != nil {
			return err
		}
		rm.messages.cancelMessages(ctx, b)
		return rm.finishRemoval(ctx, b)
	})(ctx, b)
}
