// Package manager creates, runs and deletes sandboxes. It knows their users, ends sandboxes at their
// deadlines and when they are idle, and after a crash makes the providers and its records agree.
//
// A sandbox has one of the states of sandpit.State. Each transition is written to the store before
// the provider is called, as a state on the way, and again when it is done. So what a crash
// interrupts is known, and the reconciler finishes or undoes it.
//
// A sandbox is locked while an operation runs; other operations wait. An operation that has begun
// continues if its caller's context ends, except the creation of a sandbox, which is undone.
package manager

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Label is the label that a manager's sandboxes have at the provider. Its value is the identity of
// the manager's store.
const Label = "sandpit.manager"

// Manager manages sandboxes. All methods may be called concurrently.
//
// Errors of all methods: Unavailable when the manager is closing or the store or queue cannot be
// reached, Exhausted when the store's disk is full, the context's error when that ended first, and
// what the methods document.
type Manager struct {
	o            Options
	identity     string
	sandboxes    *recordIndex
	quota        *sandboxQuota
	slots        slots
	registry     *buildRegistry
	snapshotUses *snapshotUses

	events        *Events
	messages      *Messages
	core          *core
	volumes       *Volumes
	volumeMeter   *volumeMeter
	disk          *diskUse
	instances     *instances
	audit         *guestAudit
	ports         *portPublisher
	secrets       *secretFiles
	actions       *policyActions
	records       *recordStore
	network       *Network
	lifecycle     *lifecycle
	remover       *remover
	usage         *UsageMeter
	templates     *templateRecords
	expander      *expander
	wall          *wallClock
	snapshots     *Snapshots
	creator       *creator
	failover      *failover
	hours         *hourKeeper
	renewals      *renewals
	states        *providerStates
	undeletable   *undeletable
	builds        *Builds
	pools         *Pools
	templateGroup *Templates
	builtins      *Builtins
	recreator     *recreator
	handler       *messageHandler
	reconciler    *reconciler
	sweeper       *sweeper
}

// workerPoll is how often the worker checks the queue without being woken. All messages are
// scheduled here, which wakes it.
const workerPoll = time.Minute

// maxHandlers is how many messages are handled at a time. Handlers of one owner wait for slots of
// that owner, and must not keep messages of others from being claimed meanwhile.
const maxHandlers = 1000

var errClosed = sandpit.Errorf(sandpit.Unavailable, "the manager is closed")

// Open starts a manager: it loads the store, compares it with the providers, finishes or undoes
// what was interrupted, and continues the work of the last manager. A provider that cannot be
// reached is not an error; its sandboxes are attached later.
//
// Invalid: the options. Internal: the store cannot be read at all; single rows that cannot be read
// are logged and ignored.
func Open(ctx context.Context, o Options) (*Manager, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := newManager(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(m.loadRecords(ctx), m.builds.failUnfinished(ctx)); err != nil {
		return nil, err
	}
	m.events.queue = startEventQueue(m.core.loops, o.Store, o.Log, o.Suspicion)
	m.reconciler.reconcileProviders(m.core.loops.ctx, true)
	m.core.loops.start(m.reconciler.removeLeftovers)
	m.messages.ensureScheduled(m.core.loops.ctx, true)
	m.messages.worker, err = queue.StartWorker(m.core.ops.ctx, queue.WorkerOptions{
		Queue: o.Queue, Topics: []string{m.identity}, Handler: m.handler.handleMessage, Clock: o.Clock, Log: o.Log,
		Concurrency: maxHandlers, Backoff: o.Retry, MaxRetries: o.MaxRetries, Poll: workerPoll,
		Jumped: func(ctx context.Context, _ time.Duration) error { _, err := m.wall.adjustForJump(ctx); return err },
	})
	if err != nil {
		return nil, errors.Join(err, m.Close(ctx))
	}
	m.core.loops.start(m.wall.watchForJumps)
	m.core.loops.start(m.sweeper.runLoop)
	m.core.loops.start(m.reconciler.runLoop)
	m.core.loops.start(m.usage.runLoop)
	m.core.loops.start(m.hours.runLoop)
	m.core.loops.start(m.renewals.runLoop)
	m.core.loops.start(m.volumeMeter.runLoop)
	for _, p := range m.pools.byKey {
		m.core.loops.start(m.pools.newLoop(p))
	}
	return m, nil
}

// loadRecords loads the rows of the store.
func (m *Manager) loadRecords(ctx context.Context) error {
	rows, err := m.o.Store.Sandboxes().ListSandboxes(ctx, store.Filter{})
	if err != nil && len(rows) == 0 {
		return err
	}
	if err != nil {
		m.o.Log.ErrorContext(ctx, "manager: unreadable sandboxes ignored", slog.Any("error", err))
	}
	uses, err := m.o.Store.ProviderUses().List(ctx)
	if err != nil {
		return err
	}
	m.quota.hours.load(uses)
	defer m.quota.hours.loaded()
	for _, row := range rows {
		rec := newSandboxRecord(row, m.o.Providers[row.Provider])
		close(rec.created)
		m.sandboxes.add(rec)
		if usesQuota(row.State, row.Suspended) {
			m.quota.addExisting(rec.currentRow().Sandbox)
		}
		m.disk.countRecord(row)
	}
	return nil
}

// Close ends the manager: it begins no operation any more, waits for the running ones until ctx
// ends, and interrupts the rest, which the next manager finishes. Sandboxes keep running, unless
// Options.DestroyOnClose is set; then an error names those that could not be deleted. It must be
// called once.
func (m *Manager) Close(ctx context.Context) error {
	if m.core.closing.Swap(true) {
		return nil
	}
	m.registry.cancelAll(sandpit.Errorf(sandpit.Unavailable, "the server ended during the build"))
	var errs []error
	if m.messages.worker != nil {
		errs = append(errs, m.messages.worker.Stop(ctx))
	}
	if m.o.DestroyOnClose {
		errs = append(errs, m.remover.deleteAll(ctx))
	}
	m.core.ops.addOne() // operations may still begin
	for _, p := range m.pools.byKey {
		m.pools.emptyPool(p)
	}
	m.core.ops.end()
	m.evictHandles()
	m.core.ops.close()
	if m.core.ops.wait(ctx) != nil {
		errs = append(errs, sandpit.Errorf(sandpit.Timeout, "close the manager: %d operations were interrupted", m.core.ops.count()))
	}
	errs = append(errs, m.stopTasks(ctx))
	return errors.Join(errs...)
}

// haltLimit is how long Close waits for what it has interrupted, and how long it then writes.
const haltLimit = 10 * time.Second

// stopTasks ends all goroutines and writes what is not written yet.
func (m *Manager) stopTasks(ctx context.Context) error {
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), haltLimit)
	defer cancel()
	m.core.ops.close()
	m.core.ops.cancel(errClosed)
	err := m.core.ops.wait(ended)
	m.core.loops.close()
	m.core.loops.cancel(errClosed)
	err = cmp.Or(err, m.core.loops.wait(ended))
	if err != nil {
		err = sandpit.Errorf(sandpit.Timeout, "close the manager: %d calls of providers have not returned", m.core.ops.count()+m.core.loops.count())
	}
	written, cancel := context.WithTimeout(context.WithoutCancel(ctx), haltLimit)
	defer cancel()
	m.templates.flushCounts(written)
	m.hours.saveHours(written)
	m.events.queue.enqueueOmitted(true)
	return errors.Join(err, m.records.flushUses(written), m.events.queue.close(written))
}

// evictHandles cancels all handles.
func (m *Manager) evictHandles() {
	for _, rec := range m.sandboxes.all() {
		rec.mu.Lock()
		for h := range rec.handles {
			h.cancel(errClosed)
		}
		rec.mu.Unlock()
	}
}

// Get returns a sandbox, also for some time after its deletion. NotFound, also for a spare.
func (m *Manager) Get(id sandpit.ID) (sandpit.Sandbox, error) {
	rec, err := m.sandboxes.findVisible(id)
	if err != nil {
		return sandpit.Sandbox{}, err
	}
	return rec.toSandbox(), nil
}

// Filter selects sandboxes. Its zero value selects all that are not deleted. Spares are never
// selected.
type Filter struct {
	Owner string
	// Labels are labels that a sandbox must have.
	Labels map[string]string
	// States are the states that a sandbox may have. Default: all but deleted.
	States []sandpit.State
	// After is the ID of the last sandbox of the previous page.
	After sandpit.ID
	// Limit bounds the number of results. Default: none.
	Limit int
}

// List returns sandboxes in the order of their IDs.
func (m *Manager) List(f Filter) []sandpit.Sandbox {
	var list []sandpit.Sandbox
	for _, rec := range m.sandboxes.all() {
		if f.Limit > 0 && len(list) == f.Limit {
			break
		}
		if r := rec.currentRow(); compareIDs(r.ID, f.After) > 0 && f.holds(r) {
			list = append(list, rec.toSandbox())
		}
	}
	return list
}

func (f Filter) holds(r store.Row) bool {
	if r.Pool != "" || f.Owner != "" && f.Owner != r.Lease.Owner {
		return false
	}
	if len(f.States) == 0 && r.State == sandpit.StateDeleted || len(f.States) > 0 && !slices.Contains(f.States, r.State) {
		return false
	}
	for key, value := range f.Labels {
		if got, ok := r.Spec.Labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func compareIDs(a, b sandpit.ID) int { return cmp.Compare(a, b) }
