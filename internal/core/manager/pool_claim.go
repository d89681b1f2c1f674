package manager

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// claimSpare gives a waiting sandbox to who asks for one of its kind. It reports false if
// there is none to be had: then one must be made.
func (ps *Pools) claimSpare(ctx context.Context, r CreateRequest, now time.Time) (sandpit.Sandbox, bool, error) {
	p := ps.findPool(poolKey(r.Provider, r.Spec))
	if p == nil || len(r.Spec.Mounts) > 0 {
		return sandpit.Sandbox{}, false, nil
	}
	if err := ps.o.Disk.Check(); err != nil {
		return sandpit.Sandbox{}, true, err
	}
	p.count(now)
	p.noteImage(r.prepared)
	defer p.wake()
	b := p.popFor(r.Owner, r.prepared, now, ps.core.mustShare)
	ps.o.Observer.Asked(p.Provider, p.Spec.Image, b != nil)
	if b == nil {
		return sandpit.Sandbox{}, false, nil
	}
	if !ps.sandboxes.takeKey(b, r) { // the same request is under way
		p.push(b)
		b.yield()
		return sandpit.Sandbox{}, false, nil
	}
	claimed := b.look().Sandbox
	claimed.Spec, claimed.Lease, claimed.CreatedAt = r.Spec, r.Lease, now
	if err := ps.quota.change(claimed); err != nil {
		ps.sandboxes.returnKey(b, r)
		p.push(b)
		b.yield()
		return sandpit.Sandbox{}, true, err
	}
	if err := ps.convertSpare(ctx, b, r, claimed); err != nil {
		ps.sandboxes.returnKey(b, r)
		ps.log.WarnContext(ctx, "a sandbox of a pool could not be claimed", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		ps.discardSpare(b, "it could not be claimed")
		return sandpit.Sandbox{}, false, because(ctx, err)
	}
	b.yield()
	return b.view(), true, nil
}

// convertSpare makes a sandbox of a pool the one that was asked for. Only when all is
// done is it written down: until then it belongs to the pool, and nobody else ever
// gets it.
func (ps *Pools) convertSpare(ctx context.Context, b *box, r CreateRequest, claimed sandpit.Sandbox) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout,
		sandpit.Errorf(sandpit.Timeout, "timed out after %v seconds", r.Timeout.Seconds()))
	defer cancel()
	i := b.placed()
	claimer, ok := as[sandpit.Claimer](i)
	if !ok {
		return sandpit.Errorf(sandpit.Internal, "sandbox %s cannot be claimed", b.id)
	}
	policy, err := ps.core.completePolicy(i, r.Policy)
	if err := errorsOf(able(i, r.Lease.Action), err); err != nil {
		return err
	}
	if err := ps.secrets.saveSecrets(b.id, r.Secrets); err != nil {
		return err
	}
	given := b.look()
	given.Sandbox = claimed
	spec := ps.creator.newProviderSpec(given)
	_, err = call(ctx, ps.core.loops, ps.core.newCall("claim"), none(func(ctx context.Context) error { return claimer.Claim(ctx, spec) }), nil)
	if err == nil {
		err = ps.secrets.giveSecrets(ctx, i, spec.Secrets)
	}
	if err == nil && r.Setup != nil {
		_, err = call(ctx, ps.core.loops, remote{what: "set-up"}, none(func(ctx context.Context) error { return r.Setup(ctx, i) }), nil)
	}
	if err != nil {
		return because(ctx, err)
	}
	if claimed.Spec.Ports, err = ps.ports.publishPorts(ctx, b, i, r.Spec.Ports); err != nil {
		return err
	}
	err = ps.records.updateRow(ctx, b, func(row *store.Row) {
		row.Sandbox, row.Policy, row.Pool, row.Term = claimed, policy, "", termOf(claimed.Lease, claimed.CreatedAt)
		row.LastUsedAt, row.ChangedAt, row.Admin = claimed.CreatedAt, claimed.CreatedAt, r.isTrusted()
	})
	if err != nil {
		return err
	}
	return ps.messages.scheduleDeadline(ctx, b)
}

// discardSpare removes a sandbox that nobody has heard of. Who calls performs one of the
// ops, and has the sandbox's turn, which is given back when it is gone.
func (ps *Pools) discardSpare(b *box, why string) {
	ps.core.ops.more()
	go func() {
		defer ps.core.ops.end()
		defer b.yield()
		// When the manager closes, what is left is left to the next one.
		ctx, cancel := context.WithTimeout(ps.core.ops.ctx, cleanupLimit)
		defer cancel()
		if err := ps.creator.undoCreation(ctx, b, errors.New(why)); err != nil {
			ps.messages.scheduleMessage(ctx, b, kindDelete, ps.clock.Now())
			ps.log.WarnContext(ctx, "a sandbox of a pool is left till later", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		}
	}()
}

// evictSpare removes a sandbox that waits in a pool, and reports whether there was one.
func (ps *Pools) evictSpare(ctx context.Context) bool {
	for _, p := range ps.byKey {
		b := p.pop()
		if b == nil {
			continue
		}
		err := ps.creator.undoCreation(ctx, b, errors.New("its room is needed"))
		b.yield()
		if err == nil {
			return true
		}
		ps.messages.scheduleMessage(ctx, b, kindDelete, ps.clock.Now())
	}
	return false
}

// emptyPool removes all sandboxes that wait in a pool, for who performs one of the
// ops.
func (ps *Pools) emptyPool(p *pool) {
	for b := p.pop(); b != nil; b = p.pop() {
		ps.discardSpare(b, "the manager closes")
	}
}
