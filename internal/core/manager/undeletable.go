package manager

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// undeletableAfter is how long a deletion fails until it is reported.
const undeletableAfter = 10 * time.Minute

// undeletable reports sandboxes that cannot be deleted, and so may cost money: those that are being
// deleted for long, and those at a provider that have no row. Their deletion is retried.
type undeletable struct {
	core   *core
	events *Events
	log    *slog.Logger

	mu       sync.Mutex
	since    map[sandpit.ID]strayDeletion // strays
	counts   map[string]int               // by provider
	reported map[sandpit.ID]bool
}

// strayDeletion is a sandbox without a row whose deletion fails.
type strayDeletion struct {
	provider string
	since    time.Time
	err      error
}

func newUndeletable(c *core, ev *Events, log *slog.Logger) *undeletable {
	return &undeletable{
		core: c, events: ev, log: log,
		since: make(map[sandpit.ID]strayDeletion), counts: make(map[string]int), reported: make(map[sandpit.ID]bool),
	}
}

// noteStray records how the deletion of a sandbox without a row has ended.
func (u *undeletable) noteStray(provider string, id sandpit.ID, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		delete(u.since, id)
		return
	}
	stray := strayDeletion{provider, u.core.o.Clock.Now(), err}
	if earlier, ok := u.since[id]; ok {
		stray.since = earlier.since
	}
	u.since[id] = stray
}

// keepStrays forgets the sandboxes of a provider that it does not list any more.
func (u *undeletable) keepStrays(provider string, listed []sandpit.Placement) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.since, func(id sandpit.ID, one strayDeletion) bool {
		return one.provider == provider && !slices.ContainsFunc(listed, func(p sandpit.Placement) bool { return p.ID == id })
	})
}

// report counts the sandboxes that cannot be deleted, and reports each of them once.
func (u *undeletable) report(ctx context.Context, list []*sandboxRecord) {
	now := u.core.o.Clock.Now()
	found := make(map[sandpit.ID]strayDeletion)
	for _, rec := range list {
		if row := rec.currentRow(); row.State == sandpit.StateDeleting && now.Sub(row.ChangedAt) >= undeletableAfter {
			found[row.ID] = strayDeletion{row.Provider, row.ChangedAt, sandpit.Errorf(sandpit.Unavailable, "%s", row.Reason)}
		}
	}
	u.mu.Lock()
	for id, stray := range u.since {
		if now.Sub(stray.since) >= undeletableAfter {
			found[id] = stray
		}
	}
	counts, reported := make(map[string]int), make(map[sandpit.ID]bool, len(found))
	var fresh []sandpit.ID
	for id, one := range found {
		counts[one.provider]++
		reported[id] = true
		if !u.reported[id] {
			fresh = append(fresh, id)
		}
	}
	u.counts, u.reported = counts, reported
	u.mu.Unlock()
	for _, id := range fresh {
		one := found[id]
		u.log.ErrorContext(ctx, "manager: sandbox cannot be deleted", slog.String("sandbox", string(id)),
			slog.String("provider", one.provider), slog.Time("since", one.since), slog.Any("error", one.err))
		u.events.Record(Report{
			Actor: actorManager, Action: "cannot be deleted", Sandbox: id, Args: map[string]string{"provider": one.provider}, Err: one.err,
		})
	}
}

// countOf returns how many sandboxes of a provider cannot be deleted.
func (u *undeletable) countOf(provider string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.counts[provider]
}
