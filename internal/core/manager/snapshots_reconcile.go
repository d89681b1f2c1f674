package manager

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// reasonSnapshotGone is the problem of a snapshot that its provider has lost.
const reasonSnapshotGone = "gone: the provider no longer has it"

// reconcileSnapshots removes snapshots whose creation or deletion was interrupted, temporary ones
// that are left, and those without a row; and records which of the others cannot be used.
func (ss *Snapshots) reconcileSnapshots(ctx context.Context) {
	// A snapshot that is ready before the provider is called must be in its list.
	rows, err := ss.store.Snapshots().ListSnapshots(ctx, store.SnapshotFilter{All: true})
	if err != nil {
		if ctx.Err() == nil {
			ss.log.WarnContext(ctx, "manager: snapshots not listed", slog.Any("error", err))
		}
		return
	}
	byProvider := make(map[string][]store.Snapshot)
	for _, n := range rows {
		if n.State == store.SnapshotReady && !n.Brief {
			byProvider[n.Provider] = append(byProvider[n.Provider], n)
			continue
		}
		ss.removeIfUnused(ctx, n)
	}
	for name := range ss.o.Providers {
		ss.compareProvider(ctx, name, byProvider[name])
	}
}

// removeIfUnused removes a snapshot, unless it is in use, or was finished or deleted since it was
// listed.
func (ss *Snapshots) removeIfUnused(ctx context.Context, n store.Snapshot) {
	if ctx.Err() != nil || !ss.snapshotUses.beginExclusive(n.ID) {
		return
	}
	defer ss.snapshotUses.endExclusive(n.ID)
	now, err := ss.findRow(ctx, n)
	if errors.Is(err, sandpit.NotFound) || err == nil && now.State == store.SnapshotReady && !now.Brief {
		return
	}
	keeper, bad := ss.findKeeper(ctx, n.Provider)
	if err = cmp.Or(err, bad); err == nil {
		err = ss.dropSnapshot(ctx, keeper, n.ID)
	}
	ss.events.Record(Report{Actor: actorManager, Action: "remove snapshot", Args: snapshotArgs(n), Err: err})
}

// findRow returns the current row of a snapshot.
func (ss *Snapshots) findRow(ctx context.Context, n store.Snapshot) (store.Snapshot, error) {
	if n.Build != "" {
		return ss.store.Templates().BuildSnapshot(ctx, n.ID)
	}
	return ss.store.Snapshots().Snapshot(ctx, n.Owner, string(n.ID))
}

// compareProvider compares the rows with what one provider lists. A provider that is not open or
// cannot be reached is skipped: missing snapshots are not lost then. Reconciling sandboxes opens a
// provider that has any.
func (ss *Snapshots) compareProvider(ctx context.Context, provider string, rows []store.Snapshot) {
	keeper, ok := sandpit.As[sandpit.SnapshotKeeper](ss.o.Providers[provider])
	if !ok {
		return // it has no snapshots
	}
	list, err := callProvider(ctx, ss.core.loops, ss.core.newCallTo(provider, "list snapshots"), keeper.ListSnapshots, nil)
	if err != nil {
		if ctx.Err() == nil {
			ss.log.DebugContext(ctx, "manager: snapshots of a provider not listed", slog.String("provider", provider), slog.Any("error", err))
		}
		return
	}
	there := make(map[sandpit.SnapshotID]sandpit.Snapshot, len(list))
	for _, s := range list {
		there[s.ID] = s
	}
	for _, n := range rows {
		problem, memory := reasonSnapshotGone, n.Memory
		if s, ok := there[n.ID]; ok {
			problem, memory = cutText(s.Unloadable, store.MaxReason), s.Memory
		}
		if problem != n.Problem || memory != n.Memory {
			ss.recordProblem(ctx, n, memory, problem)
		}
	}
	ss.removeStrays(ctx, provider, keeper, list)
}

// recordProblem records why a snapshot cannot be used, or not with its memory, or that it can be
// used again.
func (ss *Snapshots) recordProblem(ctx context.Context, n store.Snapshot, memory bool, problem string) {
	err := ss.store.Snapshots().SetSnapshotUse(ctx, n.ID, memory, problem)
	if errors.Is(err, sandpit.NotFound) {
		return // deleted meanwhile
	}
	args := snapshotArgs(n)
	args["problem"], args["memory"] = problem, strconv.FormatBool(memory)
	ss.events.Record(Report{Actor: actorManager, Action: "look at snapshot", Args: args, Err: err})
}

// removeStrays removes snapshots of this manager that have no row and had none at the last
// comparison: a snapshot that is being created or deleted is not that old.
func (ss *Snapshots) removeStrays(ctx context.Context, provider string, keeper sandpit.SnapshotKeeper, list []sandpit.Snapshot) {
	ss.snapshotUses.mu.Lock()
	before := ss.snapshotUses.strays[provider]
	ss.snapshotUses.mu.Unlock()
	strange := make(map[sandpit.SnapshotID]bool)
	for _, s := range list {
		if s.ID.Validate() != nil || s.Spec.Labels[Label] != ss.identity {
			continue
		}
		// One with a row may be about to be used.
		known, err := ss.store.Snapshots().HasSnapshot(ctx, s.ID)
		switch {
		case err != nil || known:
		case !before[s.ID]:
			strange[s.ID] = true
		case ss.snapshotUses.beginExclusive(s.ID):
			remove := func(ctx context.Context) error { return keeper.RemoveSnapshot(ctx, s.ID) }
			_, err := callProvider(ctx, ss.core.loops, ss.core.newCall("remove snapshot"), withoutResult(remove), nil)
			ss.events.Record(Report{Actor: actorManager, Action: "remove stray snapshot", Args: map[string]string{"snapshot": string(s.ID)}, Err: err})
			ss.snapshotUses.endExclusive(s.ID)
		}
	}
	ss.snapshotUses.mu.Lock()
	defer ss.snapshotUses.mu.Unlock()
	if ss.snapshotUses.strays == nil {
		ss.snapshotUses.strays = make(map[string]map[sandpit.SnapshotID]bool)
	}
	ss.snapshotUses.strays[provider] = strange
}
