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

// reconciler compares the records with what the providers have, and repairs differences.
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
	records     *recordStore
	recreator   *recreator
	remover     *remover
	sandboxes   *recordIndex
	snapshots   *Snapshots
	states      *providerStates
	store       *store.Store
	undeletable *undeletable
	unreachable sync.Map // provider name -> true while it cannot be listed
	volumes     *Volumes
}

const (
	reasonCrash = "the server ended during its creation"
	reasonPool  = "its pool no longer exists"
)

// runLoop reconciles every Options.Reconcile.
func (rc *reconciler) runLoop(ctx context.Context) {
	for sleep(ctx, rc.o.Reconcile) == nil {
		rc.reconcileProviders(ctx, false)
		rc.removeLeftovers(ctx)
	}
}

// removeLeftovers reconciles volumes, snapshots and builds.
func (rc *reconciler) removeLeftovers(ctx context.Context) {
	rc.volumes.removeUnfinished(ctx)
	rc.snapshots.reconcileSnapshots(ctx)
	rc.builds.removeUnused(ctx)
}

// reconcileProviders makes sandboxes and rows agree. A provider that cannot be reached is skipped:
// missing sandboxes are not lost then. On the first run deletions are retried at once; later the
// queue retries them.
func (rc *reconciler) reconcileProviders(ctx context.Context, first bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*rc.o.longestCallTimeout())
	defer cancel()
	var group sync.WaitGroup
	for name := range rc.o.Providers {
		group.Go(func() {
			err := rc.compareProvider(ctx, name, first)
			rc.reportProvider(ctx, name, err)
		})
	}
	group.Wait()
	rc.undeletable.report(ctx, rc.sandboxes.all())
	rc.ports.republishPorts(ctx)
}

// reportProvider reports once that a provider cannot be reached, and once that it can be reached
// again.
func (rc *reconciler) reportProvider(ctx context.Context, name string, err error) {
	_, silent := rc.unreachable.Load(name)
	switch {
	case err != nil && !silent && !rc.core.closing.Load():
		rc.unreachable.Store(name, true)
		rc.log.WarnContext(ctx, "manager: provider unreachable", slog.String("provider", name), slog.Any("error", err))
	case err == nil && silent:
		rc.unreachable.Delete(name)
		rc.log.InfoContext(ctx, "manager: provider reachable again", slog.String("provider", name))
	default:
		return
	}
	rc.events.Record(Report{Actor: actorManager, Action: "reconcile", Args: map[string]string{"provider": name}, Err: err})
}

// compareProvider compares the records with what one provider lists.
func (rc *reconciler) compareProvider(ctx context.Context, name string, first bool) error {
	p := rc.o.Providers[name]
	type known struct {
		b       *sandboxRecord
		version int64
	}
	// A sandbox whose row is older than the list must be in the list.
	var before []known
	for _, rec := range rc.sandboxes.all() {
		if row := rec.currentRow(); row.Provider == name {
			before = append(before, known{rec, row.Version})
		}
	}
	list, err := rc.instances.listPlacements(ctx, name, p)
	if err != nil {
		return err
	}
	listed := make(map[sandpit.ID]sandpit.Placement, len(list))
	for _, placement := range list {
		listed[placement.ID] = placement
	}
	forEach(rc.o.Parallel, before, func(k known) {
		if ctx.Err() != nil {
			return // the next run continues
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
			if (err == nil || errors.Is(err, errNothingToDo)) && isListed && rec.currentRow().Version == k.version {
				if changed := rc.correctLimits(ctx, rec, placement); !errors.Is(changed, errNothingToDo) {
					return changed
				}
				if changed := rc.states.compareState(ctx, rec, placement.State); !errors.Is(changed, errNothingToDo) {
					return changed
				}
			}
			if errors.Is(err, errNothingToDo) && isListed && placement.CheckpointedAt.IsZero() {
				return rc.lifecycle.clearCheckpoint(ctx, rec)
			}
			return err
		})
		rc.core.logMismatch(ctx, k.b.id, err)
	})
	strays := rc.findStrays(list)
	rc.undeletable.keepStrays(name, strays)
	forEach(rc.o.Parallel, strays, func(placement sandpit.Placement) {
		if ctx.Err() == nil {
			err := rc.removeStray(ctx, name, p, placement)
			rc.undeletable.noteStray(name, placement.ID, err)
			rc.core.logMismatch(ctx, placement.ID, err)
		}
	})
	return nil
}

// logMismatch logs an error of a repair.
func (c *core) logMismatch(ctx context.Context, id sandpit.ID, err error) {
	if err != nil {
		c.log.WarnContext(ctx, "manager: unexpected sandbox state", slog.String("sandbox", string(id)), slog.Any("error", err))
	}
}

// forEach calls f for each element of a list, at most parallel at a time.
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

// matchRecord repairs the difference between one sandbox and its row.
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

// recoverInterrupted finishes an interrupted transition; a sandbox that the provider does not have
// is lost.
func (rc *reconciler) recoverInterrupted(ctx context.Context, rec *sandboxRecord) error {
	err := rc.core.withEvent("finish", map[string]string{"state": string(rec.state())}, rc.lifecycle.recoverTransition())(ctx, rec)
	if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
		return rc.recreator.handleLoss(ctx, rec, vanishedReason(err))
	}
	return err
}

// verifyAttached attaches to a sandbox that should exist. A sandbox that the provider does not list
// is lost only if attaching fails as well.
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

// vanishedReason is the reason for the end of a sandbox that the provider does not find.
func vanishedReason(err error) string {
	return cutText("vanished: the provider no longer has it: "+err.Error(), store.MaxReason)
}

// findEndReason returns how an instance ended, or, if the instance does not know, why the provider
// does not find it.
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

// findStrays returns the listed sandboxes of this manager that have no row.
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

// removeStray destroys a sandbox of this manager that has no row. A provider that confuses handles
// must not make it destroy another one.
func (rc *reconciler) removeStray(ctx context.Context, name string, p sandpit.Provider, placement sandpit.Placement) error {
	row, err := rc.store.Sandboxes().Sandbox(ctx, placement.ID)
	if !errors.Is(err, sandpit.NotFound) && (err != nil || row.State != sandpit.StateDeleted) {
		return err // the row cannot be read, or was written meanwhile
	}
	for _, rec := range rc.sandboxes.all() {
		if bytes.Equal(rec.currentRow().Handle, placement.Handle) {
			return sandpit.Errorf(sandpit.Internal, "the provider lists sandbox %s under another id", rec.id)
		}
	}
	stranger := newSandboxRecord(store.Row{Sandbox: sandpit.Sandbox{ID: placement.ID}, Provider: name}, p)
	i, err := rc.instances.attachHandle(ctx, stranger, placement.Handle)
	if err == nil {
		_, err = callProvider(ctx, rc.core.loops, rc.core.newCallTo(name, "destroy"), withoutResult(i.Destroy), nil)
	}
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	rc.events.Record(Report{Actor: actorManager, Action: "destroy stranger", Sandbox: placement.ID, Err: err})
	return err
}
