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

// reasonSnapshotGone is the problem of a snapshot whose provider has lost it.
const reasonSnapshotGone = "it is gone: the provider has it no more"

// reconcileSnapshots removes snapshots that were half made or half removed when the server
// ended, those that were there for an operation, and those without a row; and writes
// down which of the others nothing can be made of.
func (ss *Snapshots) reconcileSnapshots(ctx context.Context) {
	// What is ready before a provider is asked must be in its answer.
	rows, err := ss.store.Snapshots(ctx, store.SnapshotFilter{All: true})
	if err != nil {
		if ctx.Err() == nil {
			ss.log.WarnContext(ctx, "the snapshots cannot be looked through", slog.Any("error", err))
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

// removeIfUnused removes a snapshot, unless somebody uses it, or has come to the end with
// it since it was listed.
func (ss *Snapshots) removeIfUnused(ctx context.Context, n store.Snapshot) {
	if ctx.Err() != nil || !ss.snapshotUses.beginExclusive(n.ID) {
		return
	}
	defer ss.snapshotUses.endExclusive(n.ID)
	now, err := ss.findRow(ctx, n)
	if errors.Is(err, sandpit.NotFound) || err == nil && now.State == store.SnapshotReady && !now.Brief {
		return
	}
	keeper, bad := ss.findKeeper(n.Provider)
	if err = cmp.Or(err, bad); err == nil {
		err = ss.dropSnapshot(ctx, keeper, n.ID)
	}
	ss.events.Record(Report{Actor: actorManager, Action: "remove snapshot", Args: snapshotArgs(n), Err: err})
}

// findRow returns the row of a snapshot as it is now.
func (ss *Snapshots) findRow(ctx context.Context, n store.Snapshot) (store.Snapshot, error) {
	if n.Build != "" {
		return ss.store.BuildSnapshot(ctx, n.ID)
	}
	return ss.store.Snapshot(ctx, n.Owner, string(n.ID))
}

// compareProvider looks at what one provider has. One that does not answer is left out:
// its silence means nothing.
func (ss *Snapshots) compareProvider(ctx context.Context, provider string, rows []store.Snapshot) {
	keeper, err := ss.findKeeper(provider)
	if err != nil {
		return // it has none
	}
	list, err := callProvider(ctx, ss.core.loops, ss.core.newCall("list snapshots"), keeper.ListSnapshots, nil)
	if err != nil {
		if ctx.Err() == nil {
			ss.log.DebugContext(ctx, "the snapshots of a provider cannot be listed", slog.String("provider", provider), slog.Any("error", err))
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

// recordProblem writes down, and tells, why nothing can be made of a snapshot, or only
// what has its files, or that something can again.
func (ss *Snapshots) recordProblem(ctx context.Context, n store.Snapshot, memory bool, problem string) {
	err := ss.store.SetSnapshotUse(ctx, n.ID, memory, problem)
	if errors.Is(err, sandpit.NotFound) {
		return // it was removed meanwhile
	}
	args := snapshotArgs(n)
	args["problem"], args["memory"] = problem, strconv.FormatBool(memory)
	ss.events.Record(Report{Actor: actorManager, Action: "look at snapshot", Args: args, Err: err})
}

// removeStrays removes what is marked as ours, has no row, and had none the last time:
// one that is just being made or removed is not that old.
func (ss *Snapshots) removeStrays(ctx context.Context, provider string, keeper sandpit.SnapshotKeeper, list []sandpit.Snapshot) {
	ss.snapshotUses.mu.Lock()
	before := ss.snapshotUses.strays[provider]
	ss.snapshotUses.mu.Unlock()
	strange := make(map[sandpit.SnapshotID]bool)
	for _, s := range list {
		if s.ID.Validate() != nil || s.Spec.Labels[Label] != ss.identity {
			continue
		}
		// What has a row is left alone: somebody may be about to use it.
		known, err := ss.store.HasSnapshot(ctx, s.ID)
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
