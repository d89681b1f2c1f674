package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// poolBuilds is the pool of sandboxes that builds use: callers do not find them, and the next
// manager removes them.
const poolBuilds = "builds"

// createSandbox creates a sandbox for a build, which counts for the build's owner. The caller calls
// removeSandbox.
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
	bs.registry.setBuildSandbox(rec.id, true) // the sandbox is locked until it is created
	if _, err := bs.creator.createReserved(ctx, rec, r); err != nil {
		bs.registry.setBuildSandbox(rec.id, false)
		return nil, err
	}
	return rec, nil
}

// removeSandbox removes a sandbox of a build, also if ctx has ended. The reconciler removes what
// cannot be removed here.
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
	err := bs.creator.undoCreation(ctx, rec, sandpit.Errorf(sandpit.Canceled, "the build has finished with it"))
	if err != nil {
		bs.messages.scheduleMessage(ctx, rec, kindDelete, bs.clock.Now())
	}
	return err
}

// buildInstance is a sandbox of a build, which is removed with Destroy.
type buildInstance struct {
	sandpit.Instance

	builds *Builds
	rec    *sandboxRecord
}

// Unwrap returns the instance that has the abilities.
func (w *buildInstance) Unwrap() any { return w.Instance }

// Destroy implements sandpit.Instance.
func (w *buildInstance) Destroy(ctx context.Context) error { return w.builds.removeSandbox(ctx, w.rec) }
