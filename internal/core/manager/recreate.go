package manager

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// recreator handles sandboxes that ended unexpectedly.
type recreator struct {
	audit     *guestAudit
	clock     clock.Clock
	core      *core
	creator   *creator
	instances *instances
	log       *slog.Logger
	messages  *Messages
	o         *Options
	records   *recordStore
	remover   *remover
	secrets   *secretFiles
	slots     slots
}

// recoverSandbox recreates a lost sandbox, at most as often as its policy allows.
func (re *recreator) recoverSandbox(ctx context.Context, rec *sandboxRecord) error {
	row := rec.currentRow()
	switch {
	case row.State != sandpit.StateError || row.Policy.Recreate == 0:
		return nil
	case row.Recreated >= row.Policy.Recreate:
		return re.core.withEvent("delete", map[string]string{"reason": row.Reason}, re.remover.newRemoval(row.Reason))(ctx, rec)
	}
	args := map[string]string{"time": strconv.Itoa(row.Recreated + 1), "reason": row.Reason}
	return re.core.withEvent("recreate", args, re.recreateSandbox)(ctx, rec)
}

// recreateSandbox creates a sandbox again from its checkpoint or its spec, with the same ID.
func (re *recreator) recreateSandbox(ctx context.Context, rec *sandboxRecord) error {
	release, err := re.core.acquireSlot(ctx, rec, re.slots.starts)
	if err != nil {
		return err
	}
	defer release()
	reason := rec.currentRow().Reason
	left, err := re.findRevivable(ctx, rec)
	if err != nil {
		return err
	}
	if left == nil {
		if err := re.instances.destroyInstance(ctx, rec); err != nil {
			return err
		}
	}
	rec.setInstance(nil)
	err = re.records.changeState(ctx, rec, sandpit.StateCreating, func(r *store.Row) {
		r.Reason, r.Recreated = reason, r.Recreated+1
		if left == nil {
			r.Handle, r.CheckpointedAt = nil, time.Time{}
		}
	})
	if err != nil {
		return err
	}
	i, err := re.rebuildInstance(ctx, rec, left)
	if err == nil {
		re.instances.recordInstance(rec, i)
		return nil
	}
	rec.setInstance(i) // destroyed before the next attempt
	bad := re.records.changeState(ctx, rec, sandpit.StateError, func(r *store.Row) {
		r.Reason = cutText(reason+"; "+err.Error(), store.MaxReason)
		if len(r.Handle) > 0 && left != nil && sandpit.CodeOf(err) == sandpit.Unavailable {
			r.Recreated-- // the provider cannot be reached, and still has the files
		}
	})
	if bad != nil {
		return bad
	}
	if row := rec.currentRow(); row.Recreated >= row.Policy.Recreate {
		return re.remover.removeSandbox(ctx, rec, row.Reason)
	}
	return err
}

// findRevivable returns the instance of a lost sandbox if its provider can start it again; nil: the
// sandbox must be created anew.
func (re *recreator) findRevivable(ctx context.Context, rec *sandboxRecord) (sandpit.Reviver, error) {
	if len(rec.currentRow().Handle) == 0 {
		return nil, nil
	}
	i, err := re.instances.locateInstance(ctx, rec)
	if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, _ := as[sandpit.Reviver](i)
	return r, nil
}

// reviveInstance starts the instance of a lost sandbox again. If the provider cannot, the sandbox
// is created anew, without its files.
func (re *recreator) reviveInstance(ctx context.Context, rec *sandboxRecord, left sandpit.Reviver) (sandpit.Instance, error) {
	i, err := callProvider(ctx, re.core.loops, providerCall{what: "revive"}, left.Revive, nil)
	switch code := sandpit.CodeOf(err); {
	case err == nil && i.ID() != rec.id:
		return nil, sandpit.Errorf(sandpit.Internal, "recreate sandbox: the provider returned %.64q instead", string(i.ID()))
	case code == sandpit.Conflict: // it runs already
		return re.instances.attachHandle(ctx, rec, rec.currentRow().Handle)
	case code != sandpit.NotFound && code != sandpit.Gone:
		return i, err
	}
	re.log.WarnContext(ctx, "manager: sandbox recreated without its files", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
	if err := re.instances.destroyInstance(ctx, rec); err != nil {
		return nil, err
	}
	if err := re.records.updateRow(ctx, rec, func(r *store.Row) { r.Handle, r.CheckpointedAt = nil, time.Time{} }); err != nil {
		return nil, err
	}
	return re.requestInstanceAgain(ctx, rec)
}

// requestInstanceAgain has the provider create an instance for a sandbox that existed before.
func (re *recreator) requestInstanceAgain(ctx context.Context, rec *sandboxRecord) (sandpit.Instance, error) {
	row, release, err := re.creator.prepareImageAgain(ctx, rec.currentRow())
	if err != nil {
		return nil, err
	}
	defer release()
	return re.creator.requestInstance(ctx, rec, row)
}

func (re *recreator) rebuildInstance(ctx context.Context, rec *sandboxRecord, left sandpit.Reviver) (sandpit.Instance, error) {
	ctx, cancel := withLimit(ctx, providerCall{what: "recreate", limit: re.o.createTimeout(rec.currentRow().Provider)})
	defer cancel()
	var i sandpit.Instance
	var err error
	if left != nil {
		i, err = re.reviveInstance(ctx, rec, left)
	} else {
		i, err = re.requestInstanceAgain(ctx, rec)
	}
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	re.audit.observeGuest(rec, i)
	err = re.records.updateRow(ctx, rec, func(r *store.Row) { r.Handle = i.Handle() })
	if err == nil {
		err = re.secrets.giveSecrets(ctx, i, rec.currentRow().Spec.Secrets)
	}
	if err != nil {
		return i, err
	}
	why := rec.currentRow().Reason
	return i, re.records.changeState(ctx, rec, sandpit.StateRunning, func(r *store.Row) {
		r.LastUsedAt = re.clock.Now()
		if !r.CheckpointedAt.IsZero() { // the user must know what is missing
			r.Reason = cutText("recreated with its files of "+r.CheckpointedAt.UTC().Format(time.RFC3339)+": "+why, store.MaxReason)
		}
	})
}

// handleEnd handles an instance that has ended without the manager.
func (re *recreator) handleEnd(ctx context.Context, rec *sandboxRecord, i sandpit.Instance, exit sandpit.Exit) error {
	if rec.currentInstance() != i {
		return nil // the manager has ended or replaced it
	}
	reason := exit.Reason
	if reason == "" {
		reason = "the sandbox ended on its own"
	}
	if !exit.Known {
		reason = "vanished: " + reason
	}
	return re.handleLoss(ctx, rec, reason)
}

// actionLost is the action of an event about a sandbox that ended unexpectedly.
const actionLost = "lost"

// handleLoss handles a sandbox that ended unexpectedly: it is recreated if its policy says so, and
// otherwise recorded as deleted.
func (re *recreator) handleLoss(ctx context.Context, rec *sandboxRecord, reason string) error {
	row := rec.currentRow()
	switch {
	case row.State == sandpit.StateDeleting, row.State == sandpit.StateDeleted, row.State == sandpit.StateError:
		return nil // the queue retries deletions
	case row.State == sandpit.StateRunning && row.Recreated < row.Policy.Recreate:
		return re.core.withEvent(actionLost, map[string]string{"reason": reason}, func(ctx context.Context, rec *sandboxRecord) error {
			return re.markBroken(ctx, rec, reason)
		})(ctx, rec)
	}
	return re.core.withEvent(actionLost, map[string]string{"reason": reason}, re.remover.newRemoval(reason))(ctx, rec)
}

// markBroken leaves a sandbox in the error state and schedules its recreation.
func (re *recreator) markBroken(ctx context.Context, rec *sandboxRecord, reason string) error {
	cause := newGoneError(rec.id, reason)
	rec.refuseHandles(cause)
	if err := re.records.changeState(ctx, rec, sandpit.StateError, setReason(reason)); err != nil {
		return err
	}
	re.core.notifyEnd(rec, cause)
	re.messages.scheduleMessage(ctx, rec, kindRecover, re.clock.Now())
	return nil
}
