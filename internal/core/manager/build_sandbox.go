package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// poolBuilds is the pool of sandboxes in which builds do something: they are nobody's to
// find, and the next manager removes them.
const poolBuilds = "builds"

// createSandbox makes a sandbox in which a build does something, and which counts for its
// owner. Who calls removes it by leave.
func (bs *Builds) createSandbox(ctx context.Context, owner string, spec sandpit.Spec, offline bool) (*sandboxRecord, error) {
	now, err := bs.wall.now(ctx)
	if err != nil {
		return nil, err
	}
	r, err := bs.creator.prepareRequest(ctx, CreateRequest{
		Owner: owner, Provider: bs.o.BuilderProvider, Spec: spec, Offline: offline, Policy: store.Policy{IdleTimeout: -1},
	}, now)
	if err != nil {
		return nil, err
	}
	r.pool = poolBuilds
	rec, _, err := bs.creator.reserveSandbox(ctx, r, now)
	if err != nil {
		return nil, err
	}
	bs.registry.setBuildSandbox(rec.id, true) // nobody else has its turn before it is made
	if _, err := bs.creator.createReserved(ctx, rec, r); err != nil {
		bs.registry.setBuildSandbox(rec.id, false)
		return nil, err
	}
	return rec, nil
}

// removeSandbox removes what workroom has made, also when nobody waits any more. What it cannot
// is removed by the reconciler.
func (bs *Builds) removeSandbox(ctx context.Context, rec *sandboxRecord) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	defer cancel()
	defer bs.registry.setBuildSandbox(rec.id, false)
	if err := rec.lock(ctx); err != nil {
		return err
	}
	defer rec.unlock()
	if rec.state() == sandpit.StateDeleted {
		return nil
	}
	err := bs.creator.undoCreation(ctx, rec, sandpit.Errorf(sandpit.Canceled, "the build needs it no more"))
	if err != nil {
		bs.messages.scheduleMessage(ctx, rec, kindDelete, bs.clock.Now())
	}
	return err
}

// buildInstance is a sandbox of a build that goes with its end.
type buildInstance struct {
	sandpit.Instance

	builds *Builds
	rec    *sandboxRecord
}

// Unwrap returns what has the abilities.
func (w *buildInstance) Unwrap() any { return w.Instance }

// Destroy implements sandpit.Instance.
func (w *buildInstance) Destroy(ctx context.Context) error { return w.builds.removeSandbox(ctx, w.rec) }
