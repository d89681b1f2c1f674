package manager

import (
	"context"
	"math"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
)

// slotWait bounds every wait for a slot.
const slotWait = 10 * time.Minute

// slots divide between owners the work of which the manager does a bounded amount at a time. Work
// that belongs to no owner, such as filling a pool, counts for the owner "", which is the server
// itself and never has a key.
//
// A slot is held only for work that the server bounds. Waiting for a program of an owner, for a
// registry or for another slot of the same kind happens without it.
type slots struct {
	// starts are sandboxes that are created or started, until the provider has returned them.
	starts *fairshare.Pool
	// saves are sandboxes that are written to disk, or moved to an archive and back.
	saves *fairshare.Pool
	// actions are what policies and deadlines have the manager do.
	actions *fairshare.Pool
	// forks hold a snapshot on disk until all copies were made.
	forks  *fairshare.Pool
	builds *fairshare.Pool
	diffs  *fairshare.Pool
}

func newSlots(o Options) slots {
	// Whatever waits for a slot has a place among MaxSandboxes, so that this bounds nothing
	// else: requests above the quotas fail before they wait.
	waiting := o.MaxSandboxes
	pool := func(name string, total, waiting int) *fairshare.Pool {
		return fairshare.NewPool(fairshare.Options{
			Name: name, Total: int64(total), PerOwner: fairshare.Half(int64(total)), MaxWaiting: waiting,
			Hint: "wait until some of them have finished",
		})
	}
	return slots{
		starts:  pool("sandbox starts", o.Parallel, waiting),
		saves:   pool("saves of sandboxes", o.Parallel, waiting),
		actions: pool("scheduled actions", o.Parallel, math.MaxInt), // at most one for each sandbox
		forks:   pool("forks", o.Parallel, maxWaitingForks),
		builds:  pool("template builds", o.MaxBuilds, maxPending),
		diffs:   pool("comparisons", maxDiffs, maxWaitingDiffs),
	}
}

// How many requests of one owner may wait for slots that MaxSandboxes does not bound.
const (
	maxWaitingForks = 32
	maxWaitingDiffs = 32
)

// Shares returns how the slots and limits are used, for metrics.
func (m *Manager) Shares() []fairshare.Status {
	s := m.slots
	list := []fairshare.Status{m.quota.status(), m.disk.space.status()}
	for _, p := range []*fairshare.Pool{s.starts, s.saves, s.actions, s.forks, s.builds, s.diffs} {
		list = append(list, p.Status())
	}
	return list
}

// awaitSlot acquires a slot for an owner, waiting at most slotWait. The caller releases it.
//
// Exhausted: too many requests of the owner wait, or the wait took too long.
func awaitSlot(ctx context.Context, p *fairshare.Pool, owner string) (*fairshare.Grant, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, slotWait, sandpit.WithHint(
		sandpit.Errorf(sandpit.Exhausted, "the server has been busy with other requests for %v", slotWait), "try again later"))
	defer cancel()
	grant, err := p.Acquire(ctx, owner, 1)
	if sandpit.CodeOf(err) == sandpit.Exhausted {
		return nil, sandpit.WithRetry(err, time.Second) // slots come free by themselves
	}
	return grant, err
}
