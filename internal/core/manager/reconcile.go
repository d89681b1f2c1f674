package manager

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// reconciler compares the records with what the providers have, and repairs the difference.
type reconciler struct {
	builds      *Builds
	core        *core
	disk        *diskUse
	events      *Events
	identity    string
	instances   *instances
	lifecycle   *lifecycle
	log         *slog.Logger
	o           *Options
	pools       *Pools
	ports       *portPublisher
	recreator   *recreator
	remover     *remover
	sandboxes   *recordIndex
	snapshots   *Snapshots
	store       *store.Store
	unreachable sync.Map // provider name -> true while it cannot be listed
	volumes     *Volumes
}

const (
	reasonCrash = "the server ended while it was made"
	reasonPool  = "the pool it waited in is no more"
)

// runLoop compares again and again.
func (rc *reconciler) runLoop(ctx context.Context) {
	for sleep(ctx, rc.o.Reconcile) == nil {
		rc.reconcileProviders(ctx, false)
		rc.removeLeftovers(ctx)
	}
}

// removeLeftovers makes what outlives sandboxes match the rows.
func (rc *reconciler) removeLeftovers(ctx context.Context) {
	rc.volumes.removeUnfinished(ctx)
	rc.snapshots.reconcileSnapshots(ctx)
	rc.builds.removeUnused(ctx)
}

// reconcileProviders makes the world match the rows. A provider that does not answer is
// left out: its silence means nothing. At the first time what was being deleted is
// tried at once; later that is the queue's business.
func (rc *reconciler) reconcileProviders(ctx context.Context, first bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*rc.o.CallTimeout)
	defer cancel()
	var group sync.WaitGroup
	for name := range rc.o.Providers {
		group.Go(func() {
			err := rc.compareProvider(ctx, name, first)
			rc.reportProvider(ctx, name, err)
		})
	}
	group.Wait()
	rc.ports.republishPorts(ctx)
}

// reportProvider tells once that a provider cannot be reached, and once that it
// can again.
func (rc *reconciler) reportProvider(ctx context.Context, name string, err error) {
	_, silent := rc.unreachable.Load(name)
	switch {
	case err != nil && !silent && !rc.core.closing.Load():
		rc.unreachable.Store(name, true)
		rc.log.WarnContext(ctx, "a provider cannot be reached", slog.String("provider", name), slog.Any("error", err))
	case err == nil && silent:
		rc.unreachable.Delete(name)
		rc.log.InfoContext(ctx, "a provider can be reached again", slog.String("provider", name))
	default:
		return
	}
	rc.events.Record(Report{Actor: actorManager, Action: "reconcile", Args: map[string]string{"provider": name}, Err: err})
}

// compareProvider looks at what one provider has.
func (rc *reconciler) compareProvider(ctx context.Context, name string, first bool) error {
	p := rc.o.Providers[name]
	type known struct {
		b       *sandboxRecord
		version int64
	}
	// What is written before the provider is asked must be in its answer.
	var before []known
	for _, rec := range rc.sandboxes.all() {
		if row := rec.currentRow(); row.Provider == name {
			before = append(before, known{rec, row.Version})
		}
	}
	list, err := rc.instances.listPlacements(ctx, p)
	if err != nil {
		return err
	}
	listed := make(map[sandpit.ID]sandpit.Placement, len(list))
	for _, placement := range list {
		listed[placement.ID] = placement
	}
	forEach(rc.o.Parallel, before, func(k known) {
		if ctx.Err() != nil {
			return // the next time
		}
		err := rc.core.runIfUnlocked(ctx, k.b, func(ctx context.Context, rec *sandboxRecord) error {
			if rec.currentRow().Version != k.version {
				return errNothingToDo
			}
			placement, isListed := listed[rec.id]
			if isListed {
				rc.disk.correctCount(rec, placement)
			}
			err := rc.matchRecord(ctx, rec, isListed, first)
			if errors.Is(err, errNothingToDo) && isListed && placement.CheckpointedAt.IsZero() {
				return rc.lifecycle.clearCheckpoint(ctx, rec)
			}
			return err
		})
		rc.core.logMismatch(ctx, k.b.id, err)
	})
	forEach(rc.o.Parallel, rc.findStrays(list), func(placement sandpit.Placement) {
		if ctx.Err() == nil {
			rc.core.logMismatch(ctx, placement.ID, rc.removeStray(ctx, p, placement))
		}
	})
	return nil
}

func (c *core) logMismatch(ctx context.Context, id sandpit.ID, err error) {
	if err != nil {
		c.log.WarnContext(ctx, "a sandbox is not as it should be", slog.String("sandbox", string(id)), slog.Any("error", err))
	}
}

// forEach calls f for all of a list, so many at the same time.
func forEach[T any](parallel int, list []T, f func(T)) {
	var group sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for _, one := range list {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			f(one)
		})
	}
	group.Wait()
}

// matchRecord makes one sandbox what its row says, or the other way round.
func (rc *reconciler) matchRecord(ctx context.Context, rec *sandboxRecord, listed, first bool) error {
	row := rec.currentRow()
	if row.Pool != "" && row.State == sandpit.StateRunning && !rc.pools.hasSpare(row, rec) {
		return rc.core.withEvent("delete", map[string]string{"reason": reasonPool}, rc.remover.newRemoval(reasonPool))(ctx, rec)
	}
	switch row.State {
	case sandpit.StateDeleted, sandpit.StateError:
		return errNothingToDo
	case sandpit.StateDeleting:
		if first {
			return rc.remover.retryRemoval(ctx, rec)
		}
		return errNothingToDo
	case sandpit.StateCreating:
		if row.Recreated > 0 {
			return rc.recreator.markBroken(ctx, rec, reasonCrash+" again")
		}
		return rc.core.withEvent("delete", map[string]string{"reason": reasonCrash}, rc.remover.newRemoval(reasonCrash))(ctx, rec)
	case sandpit.StateRunning, sandpit.StatePaused, sandpit.StateStopped, sandpit.StateArchived:
		return rc.verifyAttached(ctx, rec, listed)
	default:
		return rc.recoverInterrupted(ctx, rec)
	}
}

// recoverInterrupted finishes what was interrupted; a sandbox that is gone is lost.
func (rc *reconciler) recoverInterrupted(ctx context.Context, rec *sandboxRecord) error {
	err := rc.core.withEvent("finish", map[string]string{"state": string(rec.state())}, rc.lifecycle.recoverTransition())(ctx, rec)
	if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
		return rc.recreator.handleLoss(ctx, rec, vanishedReason(err))
	}
	return err
}

// verifyAttached attaches to a sandbox that should be there. One that is not listed is
// lost only if it cannot be attached to either.
func (rc *reconciler) verifyAttached(ctx context.Context, rec *sandboxRecord, listed bool) error {
	i := rec.currentInstance()
	if listed && i != nil {
		return errNothingToDo
	}
	var err error
	if i == nil {
		_, err = rc.instances.ensureAttached(ctx, rec)
	} else {
		_, err = rc.instances.attachHandle(ctx, rec, rec.currentRow().Handle)
	}
	if !errors.Is(err, sandpit.NotFound) && !errors.Is(err, sandpit.Gone) {
		return err
	}
	return rc.recreator.handleLoss(ctx, rec, rc.findEndReason(ctx, i, err))
}

// vanishedReason is the reason for the end of a sandbox that a provider does not find.
func vanishedReason(err error) string {
	return cutText("vanished: the provider has it no more: "+err.Error(), store.MaxReason)
}

// findEndReason returns how an instance has ended, if it can tell, else how its provider does
// not find it.
func (rc *reconciler) findEndReason(ctx context.Context, i sandpit.Instance, notFound error) string {
	if i == nil {
		return vanishedReason(notFound)
	}
	exit, err := callProvider(ctx, rc.core.loops, providerCall{what: "wait", limit: time.Second}, i.Wait, nil)
	if err != nil || exit.Reason == "" {
		return vanishedReason(notFound)
	}
	if !exit.Known {
		return "vanished: " + exit.Reason
	}
	return exit.Reason
}

// findStrays are what is marked as ours and has no row.
func (rc *reconciler) findStrays(list []sandpit.Placement) []sandpit.Placement {
	var strange []sandpit.Placement
	seen := make(map[sandpit.ID]bool)
	for _, p := range list {
		if p.ID.Validate() != nil || p.Spec.Labels[Label] != rc.identity || seen[p.ID] {
			continue
		}
		seen[p.ID] = true
		if rec, err := rc.sandboxes.find(p.ID); err == nil && rec.state() != sandpit.StateDeleted {
			continue
		}
		strange = append(strange, p)
	}
	return strange
}

// removeStray destroys what is marked as ours and has no row. A provider that
// mixes handles up must not make us destroy something else.
func (rc *reconciler) removeStray(ctx context.Context, p sandpit.Provider, placement sandpit.Placement) error {
	row, err := rc.store.Sandbox(ctx, placement.ID)
	if !errors.Is(err, sandpit.NotFound) && (err != nil || row.State != sandpit.StateDeleted) {
		return err // a row that cannot be read, or one that has come meanwhile
	}
	for _, rec := range rc.sandboxes.all() {
		if bytes.Equal(rec.currentRow().Handle, placement.Handle) {
			return sandpit.Errorf(sandpit.Internal, "the provider lists sandbox %s under another id", rec.id)
		}
	}
	stranger := newSandboxRecord(store.Row{Sandbox: sandpit.Sandbox{ID: placement.ID}}, p)
	i, err := rc.instances.attachHandle(ctx, stranger, placement.Handle)
	if err == nil {
		_, err = callProvider(ctx, rc.core.loops, rc.core.newCall("destroy"), withoutResult(i.Destroy), nil)
	}
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	rc.events.Record(Report{Actor: actorManager, Action: "destroy stranger", Sandbox: placement.ID, Err: err})
	return err
}
