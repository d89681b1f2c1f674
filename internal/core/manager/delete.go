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
	sandboxes *recordIndex
	secrets   *secretFiles
}

// Delete deletes a sandbox and all of its data. From its beginning no handle is given out; holders
// of handles have Options.Drain to release them. The creation of a sandbox is aborted and undone.
// What cannot be removed is retried later, and the error gives the cause; another call retries at
// once.
//
// An unknown or deleted sandbox is not an error.
func (m *Manager) Delete(ctx context.Context, id sandpit.ID) error {
	rec, err := m.sandboxes.findVisible(id)
	if err != nil {
		return nil // nothing to delete
	}
	actor := actorOf(ctx, rec.currentRow().Lease.Owner)
	if m.core.closing.Load() {
		return errClosed
	}
	rec.abortCreation(sandpit.Errorf(sandpit.Canceled, "deleted by %s during its creation", actor))
	defer rec.allowCreation()
	return m.core.runLocked(ctx, rec, m.core.withEvent("delete", nil, m.remover.newRemoval("killed by "+actor)))
}

// newRemoval returns the operation that deletes a sandbox.
func (rm *remover) newRemoval(reason string) operation {
	return func(ctx context.Context, rec *sandboxRecord) error { return rm.removeSandbox(ctx, rec, reason) }
}

// removeSandbox deletes a sandbox and leaves a row with the reason.
func (rm *remover) removeSandbox(ctx context.Context, rec *sandboxRecord, reason string) error {
	switch rec.state() {
	case sandpit.StateDeleted:
		return errNothingToDo
	case sandpit.StateDeleting:
	default:
		if err := rm.beginRemoval(ctx, rec, reason); err != nil {
			return err
		}
	}
	if err := rm.clearResources(ctx, rec); err != nil {
		rm.messages.scheduleMessage(ctx, rec, kindDelete, rm.clock.Now())
		return err
	}
	rm.messages.cancelMessages(ctx, rec)
	return rm.finishRemoval(ctx, rec)
}

// beginRemoval writes that a sandbox is being deleted and takes it from its users.
func (rm *remover) beginRemoval(ctx context.Context, rec *sandboxRecord, reason string) error {
	cause := newGoneError(rec.id, reason)
	rec.refuseHandles(cause)
	k := keyOf(rec.currentRow())
	err := rm.records.changeState(ctx, rec, sandpit.StateDeleting, func(r *store.Row) {
		r.Reason, r.Key = cutText(reason, store.MaxReason), ""
	})
	if err != nil {
		return err
	}
	rm.sandboxes.freeKey(rec, k)
	if !rm.core.notifyEnd(rec, cause) {
		rm.log.WarnContext(ctx, "manager: sandbox deleted while in use", slog.String("sandbox", string(rec.id)))
	}
	return nil
}

// finishRemoval writes that a sandbox is deleted, and keeps the reason.
func (rm *remover) finishRemoval(ctx context.Context, rec *sandboxRecord) error {
	reason := rec.currentRow().Reason
	err := rm.records.changeState(ctx, rec, sandpit.StateDeleted, func(r *store.Row) {
		r.Reason, r.Handle, r.Spec = reason, nil, shortSpec(r.Spec)
	})
	if err != nil {
		return err
	}
	rec.setInstance(nil)
	return nil
}

// shortSpec returns what is kept of a deleted sandbox's spec, without what may be large: an owner
// can delete many sandboxes within Options.Remember.
func shortSpec(s sandpit.Spec) sandpit.Spec {
	return sandpit.Spec{
		Name: s.Name, Image: s.Image, Template: s.Template, Labels: s.Labels, Resources: s.Resources,
		User: s.User, WorkDir: s.WorkDir, Hostname: s.Hostname,
	}
}

// clearResources removes the instance, the secrets and the temporary directories of a sandbox.
func (rm *remover) clearResources(ctx context.Context, rec *sandboxRecord) error {
	if err := rm.instances.destroyInstance(ctx, rec); err != nil {
		return err
	}
	if err := rm.secrets.removeSecrets(rec.currentRow()); err != nil {
		return err
	}
	return rm.removeTempDirs(ctx, rec)
}

// deleteAll deletes all sandboxes in parallel and returns an error for each that is left.
func (rm *remover) deleteAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(WithActor(ctx, actorManager), closeLimit)
	defer cancel()
	var group sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, rec := range rm.sandboxes.all() {
		if rec.state() == sandpit.StateDeleted {
			continue
		}
		group.Go(func() {
			if err := rm.core.runLocked(ctx, rec, rm.core.withEvent("delete", nil, rm.newRemoval("the manager was closed"))); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, sandpit.Errorf(sandpit.CodeOf(err), "delete sandbox %s: %w", rec.id, err))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// retryRemoval continues a deletion that failed.
func (rm *remover) retryRemoval(ctx context.Context, rec *sandboxRecord) error {
	if rec.state() != sandpit.StateDeleting {
		return nil
	}
	return rm.core.withEvent("delete", map[string]string{"again": "true"}, func(ctx context.Context, rec *sandboxRecord) error {
		if err := rm.clearResources(ctx, rec); err != nil {
			return err
		}
		rm.messages.cancelMessages(ctx, rec)
		return rm.finishRemoval(ctx, rec)
	})(ctx, rec)
}
