package manager

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// cancelBuild cancels a running build and waits for its end.
func (bs *Builds) cancelBuild(ctx context.Context, id sandpit.BuildID) {
	r := bs.registry.findRunning(id)
	if r == nil {
		return
	}
	r.cancel(sandpit.Errorf(sandpit.Canceled, "the template was deleted"))
	select {
	case <-r.done:
	case <-ctx.Done():
	}
}

// dropBuild removes a build with its snapshot and image. Conflict: it is still needed.
func (bs *Builds) dropBuild(ctx context.Context, b store.TemplateBuild) error {
	needed := sandpit.Errorf(sandpit.Conflict, "build %s is still needed", b.ID)
	if bs.registry.findRunning(b.ID) != nil {
		return needed
	}
	for _, one := range bs.sandboxes.all() {
		if row := one.currentRow(); row.Spec.Template.Build == b.ID && row.State != sandpit.StateDeleted {
			return needed
		}
	}
	if b.Snapshot != "" {
		if err := bs.dropSnapshot(ctx, b.Snapshot); err != nil {
			return err
		}
	}
	if bs.o.Builder != nil {
		if err := bs.o.Builder.RemoveTemplate(ctx, b.ID); err != nil {
			return err
		}
	}
	return bs.store.Templates().DeleteBuild(ctx, b.ID)
}

func (bs *Builds) dropSnapshot(ctx context.Context, id sandpit.SnapshotID) error {
	n, err := bs.store.Templates().BuildSnapshot(ctx, id)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if !bs.snapshotUses.beginExclusive(id) {
		return sandpit.Errorf(sandpit.Conflict, "snapshot %s is in use", id)
	}
	defer bs.snapshotUses.endExclusive(id)
	keeper, err := bs.snapshots.findKeeper(ctx, n.Provider)
	if err != nil {
		return err
	}
	return bs.snapshots.dropSnapshot(ctx, keeper, id)
}

// removeUnused removes builds without a tag, and writes the counts of created sandboxes.
func (bs *Builds) removeUnused(ctx context.Context) {
	bs.templates.flushCounts(ctx)
	builds, err := bs.store.Templates().ListBuilds(ctx, store.BuildFilter{Loose: true, Brief: true})
	if err != nil {
		if ctx.Err() == nil {
			bs.log.WarnContext(ctx, "manager: builds not listed", slog.Any("error", err))
		}
		return
	}
	for _, b := range builds {
		if ctx.Err() != nil || !bs.isForgettable(ctx, b) {
			continue
		}
		bs.removeBuild(ctx, b)
	}
}

// removeBuild removes a build unless it is in use, and records an event.
func (bs *Builds) removeBuild(ctx context.Context, b store.TemplateBuild) {
	if err := bs.dropBuild(ctx, b); !errors.Is(err, sandpit.Conflict) {
		bs.events.Record(Report{Actor: actorManager, Action: "remove build", Args: map[string]string{"build": string(b.ID), "owner": b.Owner}, Err: err})
	}
}

// removeOldest removes the oldest ended builds without a tag of an owner beyond maxUntagged.
func (bs *Builds) removeOldest(ctx context.Context, owner string) {
	builds, err := bs.store.Templates().ListBuilds(ctx, store.BuildFilter{Owner: owner, Loose: true, Brief: true})
	if err != nil {
		bs.log.WarnContext(ctx, "manager: old builds not removed", slog.String("owner", owner), slog.Any("error", err))
		return
	}
	ended := 0
	for _, b := range builds { // newest first
		if !b.Status.Ended() {
			continue
		}
		if ended++; ended > maxUntagged {
			bs.removeBuild(ctx, b)
		}
	}
}

// isForgettable reports whether a build can no longer be requested, or ended long ago.
func (bs *Builds) isForgettable(ctx context.Context, b store.TemplateBuild) bool {
	_, err := bs.store.Templates().Template(ctx, b.Template)
	switch now := bs.clock.Now(); {
	case errors.Is(err, sandpit.NotFound):
		return true
	case err != nil:
		return false
	case b.Status.Ended():
		return now.Sub(b.FinishedAt) > bs.o.KeepDeleted
	default:
		return now.Sub(b.CreatedAt) > maxUnstarted
	}
}

// maxUnstarted is how long a build may wait for Start.
const maxUnstarted = time.Hour

// maxUntagged is how many ended builds without a tag are kept for an owner: their recipes and logs
// take space.
const maxUntagged = 50
