package manager

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// providerHours measures how long the sandboxes of each provider have run in the current calendar
// month, and enforces ProviderLimits.MaxHours. All methods may be called concurrently.
type providerHours struct {
	now    func() time.Time
	limits map[string]ProviderLimits

	mu      sync.Mutex
	month   string // "2026-11"
	spent   map[string]time.Duration
	running map[sandpit.ID]runningHour
	savedAt time.Time // until Open has added all sandboxes, when the last server wrote the hours
}

// runningHour is a sandbox that runs, and since when its time is not in spent yet.
type runningHour struct {
	provider string
	since    time.Time
}

func newProviderHours(o Options) *providerHours {
	return &providerHours{
		now: o.Clock.Now, limits: o.ProviderLimits,
		spent: make(map[string]time.Duration), running: make(map[sandpit.ID]runningHour),
	}
}

const monthFormat = "2006-01"

// load adds what earlier servers have measured in this month. Sandboxes that begin before loaded is
// called have run since then: providers run them without a server.
func (ph *providerHours) load(list []store.ProviderUse) {
	ph.mu.Lock()
	defer ph.mu.Unlock()
	now := ph.now().UTC()
	ph.month = now.Format(monthFormat)
	for _, u := range list {
		if u.Month == ph.month {
			ph.spent[u.Provider] += u.Time
		}
		if u.At.After(ph.savedAt) {
			ph.savedAt = u.At
		}
	}
	begin := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	if !ph.savedAt.IsZero() && ph.savedAt.Before(begin) {
		ph.savedAt = begin // what ran before belongs to an earlier month
	}
}

// loaded ends load: sandboxes begin at present.
func (ph *providerHours) loaded() {
	ph.mu.Lock()
	defer ph.mu.Unlock()
	ph.savedAt = time.Time{}
}

func (ph *providerHours) begin(id sandpit.ID, provider string) {
	ph.mu.Lock()
	defer ph.mu.Unlock()
	since := ph.now()
	if !ph.savedAt.IsZero() && ph.savedAt.Before(since) {
		since = ph.savedAt
	}
	ph.running[id] = runningHour{provider, since}
}

func (ph *providerHours) end(id sandpit.ID) {
	ph.mu.Lock()
	defer ph.mu.Unlock()
	ph.settle(id, ph.now())
	delete(ph.running, id)
}

// settle adds the time of a running sandbox to spent. The lock is held.
func (ph *providerHours) settle(id sandpit.ID, now time.Time) {
	h, ok := ph.running[id]
	if !ok {
		return
	}
	ph.spent[h.provider] += max(now.Sub(h.since), 0) // the clock may have been set
	h.since = now
	ph.running[id] = h
}

// settleAll adds the times of all running sandboxes to spent, and begins a new month when its time
// has come. The lock is held.
func (ph *providerHours) settleAll() {
	now := ph.now()
	for id := range ph.running {
		ph.settle(id, now)
	}
	if month := now.UTC().Format(monthFormat); month != ph.month {
		ph.month = month
		clear(ph.spent)
	}
}

// used returns the time that all sandboxes of a provider have run in this month.
func (ph *providerHours) used(provider string) time.Duration {
	ph.mu.Lock()
	defer ph.mu.Unlock()
	ph.settleAll()
	return ph.spent[provider]
}

// list returns what to write to the store.
func (ph *providerHours) list() []store.ProviderUse {
	ph.mu.Lock()
	defer ph.mu.Unlock()
	ph.settleAll()
	var list []store.ProviderUse
	for provider, spent := range ph.spent {
		list = append(list, store.ProviderUse{Provider: provider, Month: ph.month, Time: spent, At: ph.now()})
	}
	return list
}

// check returns an Exhausted error if a provider has used its hours.
func (ph *providerHours) check(provider string) error {
	most := ph.limits[provider].MaxHours
	if most == 0 || ph.used(provider) < time.Duration(most)*time.Hour {
		return nil
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%s", describeHours(provider, most)),
		"raise providers.max_sandbox_hours, or wait for the next month")
}

func describeHours(provider string, most int) string {
	return fmt.Sprintf("provider %s has used its %d sandbox hours of this month", provider, most)
}

// hourKeeper writes the hours of providers to the store, and ends sandboxes of those that have used
// theirs.
type hourKeeper struct {
	actions   *policyActions
	core      *core
	hours     *providerHours
	log       *slog.Logger
	o         *Options
	sandboxes *recordIndex
	store     *store.Store
}

// hoursEvery is the time between two writes.
const hoursEvery = time.Minute

// runLoop writes and enforces until ctx ends.
func (hk *hourKeeper) runLoop(ctx context.Context) {
	for sleep(ctx, hoursEvery) == nil {
		hk.saveHours(ctx)
		hk.enforceLimits(ctx)
	}
}

// saveHours writes the hours.
func (hk *hourKeeper) saveHours(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	if err := hk.store.ProviderUses().Save(ctx, hk.hours.list()); err != nil && !hk.core.closing.Load() {
		hk.log.WarnContext(ctx, "manager: hours of providers not written", slog.Any("error", err))
	}
}

// enforceLimits ends the running sandboxes of providers that have used their hours.
func (hk *hourKeeper) enforceLimits(ctx context.Context) {
	for name, l := range hk.o.ProviderLimits {
		if hk.hours.check(name) == nil {
			continue
		}
		reason := describeHours(name, l.MaxHours)
		forEach(hk.o.Parallel, hk.sandboxes.all(), func(rec *sandboxRecord) {
			if row := rec.currentRow(); row.Provider != name || !usesQuota(row.State, row.Suspended) || !row.State.Lasting() {
				return
			}
			err := hk.core.runIfUnlocked(ctx, rec, func(ctx context.Context, rec *sandboxRecord) error {
				return hk.endSandbox(ctx, rec, reason)
			})
			if err != nil {
				hk.log.ErrorContext(ctx, "manager: sandbox above the hours of its provider not ended",
					slog.String("sandbox", string(rec.id)), slog.String("provider", name), slog.Any("error", err))
			}
		})
	}
}

// endSandbox suspends, stops or pauses a sandbox, or deletes one that keeps nothing.
func (hk *hourKeeper) endSandbox(ctx context.Context, rec *sandboxRecord, reason string) error {
	switch row := rec.currentRow(); {
	case row.State != sandpit.StateRunning:
		return errNothingToDo
	case row.Pool != "": // a spare has nothing to keep
		return hk.actions.takeAction(ctx, rec, sandpit.ActionKill, reason, true)
	}
	i, err := hk.actions.instances.ensureAttached(ctx, rec)
	if err != nil {
		return err
	}
	action := bestKeepingAction(i)
	if action == "" {
		action = sandpit.ActionKill
	}
	return hk.actions.takeAction(ctx, rec, action, reason, true)
}
