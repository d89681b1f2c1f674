package manager

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// claimSpare gives a spare to a request of its kind. It reports false without one: then the
// sandbox must be created.
func (ps *Pools) claimSpare(ctx context.Context, r CreateRequest, now time.Time) (sandpit.Sandbox, bool, error) {
	p := ps.findPool(poolKey(r.Provider, r.Spec))
	if p == nil || len(r.Spec.Mounts) > 0 || r.ID != "" {
		return sandpit.Sandbox{}, false, nil
	}
	if err := cmp.Or(ps.o.Disk.Check(), blameProvider(ps.quota.hours.check(r.Provider))); err != nil {
		return sandpit.Sandbox{}, true, err
	}
	p.countRequest(now)
	p.noteImage(r.prepared)
	defer p.triggerFill()
	rec := p.takeFor(r.Owner, r.prepared, now, ps.core.mustShare)
	ps.o.Observer.Asked(p.Provider, p.Spec.Image, rec != nil)
	if rec == nil {
		return sandpit.Sandbox{}, false, nil
	}
	if !ps.sandboxes.reserveKey(rec, r) { // the same request is running
		p.addReady(rec)
		rec.unlock()
		return sandpit.Sandbox{}, false, nil
	}
	claimed := rec.currentRow().Sandbox
	claimed.Spec, claimed.Lease, claimed.CreatedAt = r.Spec, r.Lease, now
	if err := ps.quota.changeClaim(claimed, r.failed); err != nil {
		ps.sandboxes.releaseKey(rec, r)
		p.addReady(rec)
		rec.unlock()
		return sandpit.Sandbox{}, true, err
	}
	if err := ps.convertSpare(ctx, rec, r, claimed); err != nil {
		ps.sandboxes.releaseKey(rec, r)
		ps.log.WarnContext(ctx, "manager: spare not claimed", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
		ps.discardSpare(rec, "the claim failed")
		return sandpit.Sandbox{}, false, causeOf(ctx, err)
	}
	rec.unlock()
	return rec.toSandbox(), true, nil
}

// convertSpare makes a spare the requested sandbox. The row is written only when everything is
// done: until then the sandbox belongs to the pool, and cannot be claimed again.
func (ps *Pools) convertSpare(ctx context.Context, rec *sandboxRecord, r CreateRequest, claimed sandpit.Sandbox) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout,
		sandpit.Errorf(sandpit.Timeout, "timed out after %v seconds", r.Timeout.Seconds()))
	defer cancel()
	i := rec.currentInstance()
	claimer, ok := as[sandpit.Claimer](i)
	if !ok {
		return sandpit.Errorf(sandpit.Internal, "sandbox %s cannot be claimed", rec.id)
	}
	policy, err := ps.core.completePolicy(i, r.Policy)
	if err := cmp.Or(checkAbility(i, r.Lease.Action), err); err != nil {
		return err
	}
	if err := ps.secrets.saveSecrets(rec.id, r.Secrets); err != nil {
		return err
	}
	given := rec.currentRow()
	given.Sandbox = claimed
	spec := ps.creator.newProviderSpec(given)
	_, err = callProvider(ctx, ps.core.loops, ps.core.newCallTo(given.Provider, "claim"), withoutResult(func(ctx context.Context) error { return claimer.Claim(ctx, spec) }), nil)
	if err == nil {
		err = ps.secrets.giveSecrets(ctx, i, spec.Secrets)
	}
	if err == nil && r.Setup != nil {
		_, err = callProvider(ctx, ps.core.loops, providerCall{what: "set-up"}, withoutResult(func(ctx context.Context) error { return r.Setup(ctx, i, r.Spec) }), nil)
	}
	if err != nil {
		return causeOf(ctx, err)
	}
	if claimed.Spec.Ports, err = ps.ports.publishPorts(ctx, rec, i, r.Spec.Ports); err != nil {
		return err
	}
	err = ps.records.updateRow(ctx, rec, func(row *store.Row) {
		row.Sandbox, row.Policy, row.Pool, row.Term = claimed, policy, "", leaseTermFrom(claimed.Lease, claimed.CreatedAt)
		row.LastUsedAt, row.ChangedAt, row.Admin = claimed.CreatedAt, claimed.CreatedAt, r.isTrusted()
	})
	if err != nil {
		return err
	}
	rec.requestRenewal()
	return ps.messages.scheduleDeadline(ctx, rec)
}

// discardSpare removes a spare in the background and then unlocks it. The caller runs an operation,
// and holds the lock.
func (ps *Pools) discardSpare(rec *sandboxRecord, why string) {
	ps.core.ops.addOne()
	go func() {
		defer ps.core.ops.end()
		defer rec.unlock()
		// When the manager closes, the next one removes the rest.
		ctx, cancel := context.WithTimeout(ps.core.ops.ctx, cleanupLimit)
		defer cancel()
		if err := ps.creator.undoCreation(ctx, rec, errors.New(why)); err != nil {
			ps.messages.scheduleMessage(ctx, rec, kindDelete, ps.clock.Now())
			ps.log.WarnContext(ctx, "manager: spare not removed; retried later", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
		}
	}()
}

// evictSpare removes a spare of any pool, and reports whether there was one.
func (ps *Pools) evictSpare(ctx context.Context) bool {
	for _, p := range ps.byKey {
		rec := p.takeAny()
		if rec == nil {
			continue
		}
		err := ps.creator.undoCreation(ctx, rec, errors.New("its room is needed"))
		rec.unlock()
		if err == nil {
			return true
		}
		ps.messages.scheduleMessage(ctx, rec, kindDelete, ps.clock.Now())
	}
	return false
}

// emptyPool removes all spares of a pool. The caller runs an operation.
func (ps *Pools) emptyPool(p *pool) {
	for rec := p.takeAny(); rec != nil; rec = p.takeAny() {
		ps.discardSpare(rec, "the manager closes")
	}
}
