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
func (bs *Builds) createSandbox(ctx context.Context, owner string, spec sandpit.Spec, offline bool) (*box, error) {
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
	b, _, err := bs.creator.reserveSandbox(ctx, r, now)
	if err != nil {
		return nil, err
	}
	bs.registry.houses(b.id, true) // nobody else has its turn before it is made
	if _, err := bs.creator.createReserved(ctx, b, r); err != nil {
		bs.registry.houses(b.id, false)
		return nil, err
	}
	return b, nil
}

// removeSandbox removes what workroom has made, also when nobody waits any more. What it cannot
// is removed by the reconciler.
func (bs *Builds) removeSandbox(ctx context.Context, b *box) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	defer cancel()
	defer bs.registry.houses(b.id, false)
	if err := b.take(ctx); err != nil {
		return err
	}
	defer b.yield()
	if b.state() == sandpit.StateDeleted {
		return nil
	}
	err := bs.creator.undoCreation(ctx, b, sandpit.Errorf(sandpit.Canceled, "the build needs it no more"))
	if err != nil {
		bs.messages.scheduleMessage(ctx, b, kindDelete, bs.clock.Now())
	}
	return err
}

// workbox is a sandbox of a build that goes with its end.
type workbox struct {
	sandpit.Instance

	builds *Builds
	b      *box
}

// Unwrap returns what has the abilities.
func (w *workbox) Unwrap() any { return w.Instance }

// Destroy implements sandpit.Instance.
func (w *workbox) Destroy(ctx context.Context) error { return w.builds.removeSandbox(ctx, w.b) }
