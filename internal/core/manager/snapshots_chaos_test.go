package manager_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// snapshotStep does one random thing with snapshots, and returns an error that is not among
// those that others' steps explain.
func snapshotStep(ctx context.Context, r *manager.Manager) error {
	boxes := r.List(manager.Filter{Owner: "ann"})
	if len(boxes) == 0 {
		_, err := r.Create(ctx, owned())
		return unexplained("create", err)
	}
	box := boxes[rand.N(len(boxes))].ID
	name := fmt.Sprintf("s%d", rand.N(3))
	var err error
	step := rand.N(8)
	switch step {
	case 0, 1:
		_, err = r.Snapshots().Create(ctx, box, name)
	case 2:
		_, err = r.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: box, Count: 1 + rand.N(2)})
	case 3:
		err = r.Snapshots().RollBack(ctx, box, name)
	case 4:
		_, err = r.Create(ctx, from("ann", name))
	case 5:
		err = r.Snapshots().Delete(ctx, "ann", name)
	case 6:
		_, err = r.Snapshots().Diff(ctx, manager.DiffRequest{Owner: "ann", From: manager.Side{Snapshot: name}, To: manager.Side{Sandbox: box}})
	default:
		err = r.Delete(ctx, box)
	}
	return unexplained(fmt.Sprint("step ", step), err)
}

// unexplained returns an error that nothing explains which happens at the same time.
func unexplained(what string, err error) error {
	explained := []sandpit.Code{
		"", sandpit.NotFound, sandpit.AlreadyExists, sandpit.Conflict, sandpit.Exhausted, sandpit.Gone,
		sandpit.Invalid,                       // a rollback to a snapshot of another sandbox
		sandpit.Canceled, sandpit.Unavailable, // it is deleted while it is made, or being rolled back
	}
	if slices.Contains(explained, sandpit.CodeOf(err)) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// TestSnapshotsInDisorder has many do everything with snapshots at the same time, while the
// manager crashes again and again: in the end there is what there are rows for.
func TestSnapshotsInDisorder(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxSandboxes: 8, Drain: 10 * time.Millisecond})
	ctx := t.Context()
	for round := range 4 {
		var group sync.WaitGroup
		m := r.Manager
		for range 6 {
			group.Go(func() {
				for range 6 {
					if err := snapshotStep(ctx, m); err != nil && round%2 == 0 { // in the others its end explains anything
						t.Error(err)
					}
				}
			})
		}
		if round%2 == 1 {
			time.Sleep(time.Duration(rand.N(100)) * time.Millisecond)
			r.crash(t)
		}
		group.Wait()
		if round%2 == 1 {
			r.open(t)
		}
	}
	eventually(t, "there is what there are rows for", func() bool {
		r.Reconcile(ctx)
		r.Tidy(ctx)
		rows, err := r.store.Snapshots().ListSnapshots(ctx, store.SnapshotFilter{All: true})
		if err != nil {
			return false
		}
		var ids []sandpit.SnapshotID
		for _, n := range rows {
			if n.Brief || n.State != store.SnapshotReady || n.Problem != "" {
				return false
			}
			ids = append(ids, n.ID)
		}
		placed, err := r.cable.List(ctx)
		return err == nil && slices.Equal(ids, r.world.Snapshots()) && len(placed) == len(r.List(manager.Filter{}))
	})
	for _, s := range r.List(manager.Filter{}) {
		r.wantState(t, s.ID, sandpit.StateRunning)
	}
}
