// Package manager answers for sandboxes: it makes them, keeps count of who uses
// them, ends them when their time has come, and makes the world match what it
// has written down, after any crash.
//
// A sandbox goes through the states of sandpit.State and no others. Each change
// is written to the store before the world is touched, as a state on the way, and
// again when it is done. So whatever a crash interrupts is known, and the
// reconciler finishes it, or takes it back.
//
// A sandbox has one operation at a time; other callers wait for their turn. An
// operation that has begun goes on when its caller gives up, but for the making of
// a sandbox, which is taken back.
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

// Label marks the sandboxes of a manager, at the provider: its value is the
// identity of the manager's store.
const Label = "sandpit.manager"

// Manager answers for sandboxes. All methods may be called concurrently.
//
// Errors of all methods: Unavailable when the manager is closing or the store
// or queue cannot be reached, Exhausted when the store's disk is full, the
// context's error when that ended first, and what the methods say themselves.
type Manager struct {
	o         Options
	identity  string
	sandboxes *recordIndex
	quota     *sandboxQuota
	slots     slots
	registry  *buildRegistry

	events        *Events
	messages      *Messages
	core          *core
	volumes       *Volumes
	disk          *diskUse
	instances     *instances
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
	builds        *Builds
	pools         *Pools
	templateGroup *Templates
	builtins      *Builtins
	recreator     *recreator
	handler       *messageHandler
	reconciler    *reconciler
	sweeper       *sweeper
}

// workerPoll is how often the worker looks at the queue though it knows of nothing
// new: its messages are all scheduled here, which wakes it.
const workerPoll = time.Minute

// maxHandlers is how many messages are handled at a time. Handlers of one owner wait for
// slots of its own, and must not keep those of others from being claimed meanwhile.
const maxHandlers = 1000

var errClosed = sandpit.Errorf(sandpit.Unavailable, "the manager is closed")

// Open starts a manager: it loads what the store has, compares it with what the
// providers have, finishes or takes back what was interrupted, and goes on where
// the last one stopped. A provider that cannot be reached does not fail it, but
// its sandboxes are adopted later.
//
// Invalid: the options. Internal: the store cannot be read at all; single rows
// that cannot be read are reported and left alone.
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
	for _, p := range m.pools.byKey {
		m.core.loops.start(m.pools.newLoop(p))
	}
	return m, nil
}

// loadRecords reads the rows.
func (m *Manager) loadRecords(ctx context.Context) error {
	rows, err := m.o.Store.Sandboxes(ctx, store.Filter{})
	if err != nil && len(rows) == 0 {
		return err
	}
	if err != nil {
		m.o.Log.ErrorContext(ctx, "sandboxes that cannot be read are left alone", slog.Any("error", err))
	}
	for _, row := range rows {
		rec := newSandboxRecord(row, m.o.Providers[row.Provider])
		close(rec.created)
		m.sandboxes.add(rec)
		if usesQuota(row.State, row.Suspended) {
			m.quota.addExisting(row.Sandbox)
		}
		m.disk.countRecord(row)
	}
	return nil
}

// Close ends the manager: it accepts nothing more, lets what is under way finish
// until ctx ends, and interrupts the rest, which the next manager finishes. The
// sandboxes stay, unless Options.DestroyOnClose is set; then an error names those
// that could not be deleted. It must be called once.
func (m *Manager) Close(ctx context.Context) error {
	if m.core.closing.Swap(true) {
		return nil
	}
	m.registry.cancelAll(sandpit.Errorf(sandpit.Unavailable, "the server ended while it was building"))
	var errs []error
	if m.messages.worker != nil {
		errs = append(errs, m.messages.worker.Stop(ctx))
	}
	if m.o.DestroyOnClose {
		errs = append(errs, m.remover.deleteAll(ctx))
	}
	m.core.ops.addOne() // it is open still
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

// haltLimit is how long Close waits for what it has interrupted, and how long it
// writes afterwards.
const haltLimit = 10 * time.Second

// stopTasks ends all goroutines and writes what is left to be written.
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
	m.events.queue.enqueueOmitted(true)
	return errors.Join(err, m.records.flushUses(written), m.events.queue.close(written))
}

// evictHandles ends all handles: who holds one hears that the manager closes.
func (m *Manager) evictHandles() {
	for _, rec := range m.sandboxes.all() {
		rec.mu.Lock()
		for h := range rec.handles {
			h.cancel(errClosed)
		}
		rec.mu.Unlock()
	}
}

// Get returns a sandbox, also one that was deleted a short while ago. NotFound, also for
// one that waits in a pool: nobody has it yet.
func (m *Manager) Get(id sandpit.ID) (sandpit.Sandbox, error) {
	rec, err := m.sandboxes.findVisible(id)
	if err != nil {
		return sandpit.Sandbox{}, err
	}
	return rec.toSandbox(), nil
}

// Filter chooses sandboxes. Fields that are zero choose everything but deleted
// ones. Those that wait in a pool are nobody's, and never chosen.
type Filter struct {
	Owner string
	// Labels must all be there.
	Labels map[string]string
	// States is any of these.
	States []sandpit.State
	// After is the ID of the last sandbox of the page before.
	After sandpit.ID
	// Limit is at most so many. Default: all.
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
