package manager

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// MaxForks is how many sandboxes one fork creates at most.
const MaxForks = 100

// ForkRequest asks for copies of a sandbox. The zero value of a field means the default stated with
// it.
type ForkRequest struct {
	Sandbox sandpit.ID
	// Count is the number of copies, at most MaxForks. Default: 1.
	Count int
	// Labels and Env are added to those of the sandbox and override them. Env applies to commands
	// that start after the fork.
	Labels, Env map[string]string
	// Secrets are the secrets of the copies, which do not get the sandbox's. Default: none.
	Secrets map[string]string
	// Lease is the lease of the copies. Default: the sandbox's.
	Lease sandpit.Lease
}

// Copy is the result of one copy of ForkEach.
type Copy struct {
	Sandbox sandpit.Sandbox
	// Err is set if the copy was not created.
	Err error
}

// Fork creates copies of a running or paused sandbox, which continues. They have its lease, policy,
// labels and environment, but neither its name nor its published ports. If one cannot be created,
// all are deleted.
//
// Errors are those of Create, and of Manager.Create.
func (ss *Snapshots) Fork(ctx context.Context, r ForkRequest) (made []sandpit.Sandbox, err error) {
	err = ss.forkSandbox(ctx, r, func(r ForkRequest, n store.Snapshot, parent store.Row) (err error) {
		made, err = ss.createCopies(ctx, r, n, parent)
		return err
	})
	return made, err
}

// ForkEach is Fork, but creates each copy independently of the others. The error is set only if
// none was tried.
func (ss *Snapshots) ForkEach(ctx context.Context, r ForkRequest) (all []Copy, err error) {
	err = ss.forkSandbox(ctx, r, func(r ForkRequest, n store.Snapshot, parent store.Row) error {
		now, err := ss.wall.now(ctx)
		if err != nil {
			return err
		}
		request := newForkRequest(r, n, parent, now)
		all = make([]Copy, r.Count)
		var group sync.WaitGroup
		for k := range all {
			group.Go(func() { all[k].Sandbox, all[k].Err = ss.createSandbox(ctx, request) })
		}
		group.Wait()
		return nil
	})
	return all, err
}

// forkSandbox saves a sandbox for as long as copies of it are created.
func (ss *Snapshots) forkSandbox(ctx context.Context, r ForkRequest, multiply func(ForkRequest, store.Snapshot, store.Row) error) error {
	r.Count = max(r.Count, 0)
	if r.Count == 0 {
		r.Count = 1
	}
	if r.Count > MaxForks {
		return sandpit.Errorf(sandpit.Invalid, "fork: %d copies, want at most %d", r.Count, MaxForks)
	}
	rec, err := ss.sandboxes.findVisible(r.Sandbox)
	if err != nil {
		return err
	}
	if ss.core.closing.Load() || !ss.core.ops.begin() {
		return errClosed
	}
	defer ss.core.ops.end()
	slot, err := awaitSlot(ctx, ss.slots.forks, rec.currentRow().Lease.Owner)
	if err != nil {
		return err
	}
	defer slot.Release()
	n := store.Snapshot{ID: sandpit.NewSnapshotID(), Brief: true}
	if err := rec.lock(ctx); err != nil {
		return err
	}
	// This waits also if the caller's context ends, because it must remove the snapshot.
	args := map[string]string{"snapshot": string(n.ID), "count": strconv.Itoa(r.Count)}
	var parent store.Row
	err = ss.core.runStep(ctx, rec, ss.core.withEvent("fork", args, func(ctx context.Context, rec *sandboxRecord) error {
		parent = rec.currentRow()
		var err error
		if n, err = ss.saveSandbox(ctx, rec, n); err != nil {
			ss.snapshotUses.endExclusive(n.ID)
			return err
		}
		ss.snapshotUses.shareExclusive(n.ID)
		return nil
	}))
	rec.unlock()
	if err != nil {
		return err
	}
	defer ss.dropTemporary(ctx, n)
	return multiply(r, n, parent)
}

// createCopies creates sandboxes from a snapshot: all or none.
func (ss *Snapshots) createCopies(ctx context.Context, r ForkRequest, n store.Snapshot, parent store.Row) ([]sandpit.Sandbox, error) {
	now, err := ss.wall.now(ctx)
	if err != nil {
		return nil, err
	}
	request := newForkRequest(r, n, parent, now)
	made := make([]sandpit.Sandbox, r.Count)
	all, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for k := range made {
		group.Go(func() {
			s, err := ss.createSandbox(all, request)
			if err != nil {
				cancel(err) // the others are not needed then
				return
			}
			made[k] = s
		})
	}
	group.Wait()
	if err = context.Cause(all); err == nil {
		return made, nil
	}
	made = slices.DeleteFunc(made, func(s sandpit.Sandbox) bool { return s.ID == "" })
	away, end := ss.core.ops.detach(ctx)
	defer end()
	forEach(ss.o.Parallel, made, func(s sandpit.Sandbox) {
		if err := ss.deleteSandbox(away, s.ID); err != nil { // retried later
			ss.log.WarnContext(away, "manager: copy of a failed fork not deleted; retried later", slog.String("sandbox", string(s.ID)), slog.Any("error", err))
		}
	})
	return nil, err
}

// newForkRequest returns the request for a copy of a sandbox.
func newForkRequest(r ForkRequest, n store.Snapshot, parent store.Row, now time.Time) CreateRequest {
	spec := parent.Spec.Clone()
	spec.Name, spec.Ports, spec.Image = "", nil, sandpit.SnapshotImage(n.ID)
	add := func(to *map[string]string, more map[string]string) {
		if *to == nil {
			*to = make(map[string]string, len(more))
		}
		maps.Copy(*to, more)
	}
	add(&spec.Labels, r.Labels)
	add(&spec.Env, r.Env)
	policy := parent.Policy
	if policy.IdleTimeout == 0 {
		policy.IdleTimeout = -1 // never; 0 would be the default
	}
	lease := sandpit.Lease{Deadline: parent.Lease.Deadline, Action: parent.Lease.Action}
	term := parent.Term
	switch {
	case !r.Lease.Deadline.IsZero():
		lease, term = r.Lease, 0
	case !lease.Deadline.After(now): // the sandbox is paused because of it, but the copies run
		again := renewLease(parent, now)
		lease = sandpit.Lease{Deadline: again.Deadline, Action: again.Action}
	}
	return CreateRequest{
		Owner: n.Owner, Provider: n.Provider, Spec: spec, Secrets: r.Secrets, Policy: policy, Lease: lease, Endless: lease.Deadline.IsZero(),
		visibleImage: &parent.Spec.Image, prepared: parent.Prepared, trusted: parent.Admin, term: term,
	}
}

// dropTemporary removes the snapshot of a fork. If that fails, the reconciler does.
func (ss *Snapshots) dropTemporary(ctx context.Context, n store.Snapshot) {
	ctx, cancel := ss.core.ops.detach(ctx)
	defer cancel()
	ss.snapshotUses.release(n.ID)
	if !ss.snapshotUses.beginExclusive(n.ID) {
		return // in use, or being deleted: the reconciler removes it
	}
	defer ss.snapshotUses.endExclusive(n.ID)
	keeper, err := ss.findKeeper(ctx, n.Provider)
	if err == nil {
		err = ss.dropSnapshot(ctx, keeper, n.ID)
	}
	if err != nil && !errors.Is(err, errClosed) {
		ss.log.WarnContext(ctx, "manager: temporary snapshot not deleted; retried later", slog.String("snapshot", string(n.ID)), slog.Any("error", err))
	}
}
