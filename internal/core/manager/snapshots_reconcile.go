package manager

import (
	"context"
	"errors"
	"log/slog"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// reasonSnapshotGone is the problem of a snapshot whose provider has lost it.
const reasonSnapshotGone = "it is gone: the provider has it no more"

// tidySnapshots removes snapshots that were half made or half removed when the server
// ended, those that were there for an operation, and those without a row; and writes
// down which of the others nothing can be made of.
func (m *Manager) tidySnapshots(ctx context.Context) {
	// What is ready before a provider is asked must be in its answer.
	rows, err := m.o.Store.Snapshots(ctx, store.SnapshotFilter{All: true})
	if err != nil {
		if ctx.Err() == nil {
			m.o.Log.WarnContext(ctx, "the snapshots cannot be looked through", slog.Any("error", err))
		}
		return
	}
	byProvider := make(map[string][]store.Snapshot)
	for _, n := range rows {
		if n.State == store.SnapshotReady && !n.Brief {
			byProvider[n.Provider] = append(byProvider[n.Provider], n)
			continue
		}
		m.tidySnapshot(ctx, n)
	}
	for name := range m.o.Providers {
		m.compareSnapshots(ctx, name, byProvider[name])
	}
}

// tidySnapshot removes a snapshot, unless somebody uses it, or has come to the end with
// it since it was listed.
func (m *Manager) tidySnapshot(ctx context.Context, n store.Snapshot) {
	if ctx.Err() != nil || !m.snapshots.begin(n.ID) {
		return
	}
	defer m.snapshots.end(n.ID)
	now, err := m.snapshotRow(ctx, n)
	if errors.Is(err, sandpit.NotFound) || err == nil && now.State == store.SnapshotReady && !now.Brief {
		return
	}
	keeper, bad := m.snapshotKeeper(n.Provider)
	if err = errorsOf(err, bad); err == nil {
		err = m.dropSnapshot(ctx, keeper, n.ID)
	}
	m.record(Report{Actor: actorManager, Action: "remove snapshot", Args: snapshotArgs(n), Err: err})
}

// snapshotRow returns the row of a snapshot as it is now.
func (m *Manager) snapshotRow(ctx context.Context, n store.Snapshot) (store.Snapshot, error) {
	if n.Build != "" {
		return m.o.Store.BuildSnapshot(ctx, n.ID)
	}
	return m.o.Store.Snapshot(ctx, n.Owner, string(n.ID))
}

// compareSnapshots looks at what one provider has. One that does not answer is left out:
// its silence means nothing.
func (m *Manager) compareSnapshots(ctx context.Context, provider string, rows []store.Snapshot) {
	keeper, err := m.snapshotKeeper(provider)
	if err != nil {
		return // it has none
	}
	list, err := call(ctx, m.loops, m.remote("list snapshots"), keeper.ListSnapshots, nil)
	if err != nil {
		if ctx.Err() == nil {
			m.o.Log.DebugContext(ctx, "the snapshots of a provider cannot be listed", slog.String("provider", provider), slog.Any("error", err))
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
			problem, memory = cut(s.Unloadable, store.MaxReason), s.Memory
		}
		if problem != n.Problem || memory != n.Memory {
			m.explainSnapshot(ctx, n, memory, problem)
		}
	}
	m.removeStrange(ctx, provider, keeper, list)
}

// explainSnapshot writes down, and tells, why nothing can be made of a snapshot, or only
// what has its files, or that something can again.
func (m *Manager) explainSnapshot(ctx context.Context, n store.Snapshot, memory bool, problem string) {
	err := m.o.Store.SetSnapshotUse(ctx, n.ID, memory, problem)
	if errors.Is(err, sandpit.NotFound) {
		return // it was removed meanwhile
	}
	args := snapshotArgs(n)
	args["problem"], args["memory"] = problem, strconv.FormatBool(memory)
	m.record(Report{Actor: actorManager, Action: "look at snapshot", Args: args, Err: err})
}

// removeStrange removes what is marked as ours, has no row, and had none the last time:
// one that is just being made or removed is not that old.
func (m *Manager) removeStrange(ctx context.Context, provider string, keeper sandpit.SnapshotKeeper, list []sandpit.Snapshot) {
	m.snapshots.mu.Lock()
	before := m.snapshots.strange[provider]
	m.snapshots.mu.Unlock()
	strange := make(map[sandpit.SnapshotID]bool)
	for _, s := range list {
		if s.ID.Validate() != nil || s.Spec.Labels[Label] != m.identity {
			continue
		}
		// What has a row is left alone: somebody may be about to use it.
		known, err := m.o.Store.HasSnapshot(ctx, s.ID)
		switch {
		case err != nil || known:
		case !before[s.ID]:
			strange[s.ID] = true
		case m.snapshots.begin(s.ID):
			remove := func(ctx context.Context) error { return keeper.RemoveSnapshot(ctx, s.ID) }
			_, err := call(ctx, m.loops, m.remote("remove snapshot"), none(remove), nil)
			m.record(Report{Actor: actorManager, Action: "remove stray snapshot", Args: map[string]string{"snapshot": string(s.ID)}, Err: err})
			m.snapshots.end(s.ID)
		}
	}
	m.snapshots.mu.Lock()
	defer m.snapshots.mu.Unlock()
	if m.snapshots.strange == nil {
		m.snapshots.strange = make(map[string]map[sandpit.SnapshotID]bool)
	}
	m.snapshots.strange[provider] = strange
}
