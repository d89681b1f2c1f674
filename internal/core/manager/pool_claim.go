package manager

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// claim gives a waiting sandbox to who asks for one of its kind. It reports false if
// there is none to be had: then one must be made.
func (m *Manager) claim(ctx context.Context, r CreateRequest, now time.Time) (sandpit.Sandbox, bool, error) {
	p := m.poolFor(poolKey(r.Provider, r.Spec))
	if p == nil || len(r.Spec.Mounts) > 0 {
		return sandpit.Sandbox{}, false, nil
	}
	if err := m.o.Disk.Check(); err != nil {
		return sandpit.Sandbox{}, true, err
	}
	p.count(now)
	p.noteImage(r.prepared)
	defer p.wake()
	b := p.popFor(r.Owner, r.prepared, now, m.mustShare)
	m.o.Observer.Asked(p.Provider, p.Spec.Image, b != nil)
	if b == nil {
		return sandpit.Sandbox{}, false, nil
	}
	if !m.boxes.takeKey(b, r) { // the same request is under way
		p.push(b)
		b.yield()
		return sandpit.Sandbox{}, false, nil
	}
	claimed := b.look().Sandbox
	claimed.Spec, claimed.Lease, claimed.CreatedAt = r.Spec, r.Lease, now
	if err := m.room.change(claimed); err != nil {
		m.boxes.returnKey(b, r)
		p.push(b)
		b.yield()
		return sandpit.Sandbox{}, true, err
	}
	if err := m.handOver(ctx, b, r, claimed); err != nil {
		m.boxes.returnKey(b, r)
		m.o.Log.WarnContext(ctx, "a sandbox of a pool could not be claimed", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		m.discard(b, "it could not be claimed")
		return sandpit.Sandbox{}, false, because(ctx, err)
	}
	b.yield()
	return b.view(), true, nil
}

// handOver makes a sandbox of a pool the one that was asked for. Only when all is
// done is it written down: until then it belongs to the pool, and nobody else ever
// gets it.
func (m *Manager) handOver(ctx context.Context, b *box, r CreateRequest, claimed sandpit.Sandbox) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout,
		sandpit.Errorf(sandpit.Timeout, "timed out after %v seconds", r.Timeout.Seconds()))
	defer cancel()
	i := b.placed()
	claimer, ok := as[sandpit.Claimer](i)
	if !ok {
		return sandpit.Errorf(sandpit.Internal, "sandbox %s cannot be claimed", b.id)
	}
	policy, err := m.completePolicy(i, r.Policy)
	if err := errorsOf(able(i, r.Lease.Action), err); err != nil {
		return err
	}
	if err := m.keepSecrets(b.id, r.Secrets); err != nil {
		return err
	}
	given := b.look()
	given.Sandbox = claimed
	spec := m.specFor(given)
	_, err = call(ctx, m.loops, m.remote("claim"), none(func(ctx context.Context) error { return claimer.Claim(ctx, spec) }), nil)
	if err == nil {
		err = m.giveKept(ctx, i, spec.Secrets)
	}
	if err == nil && r.Setup != nil {
		_, err = call(ctx, m.loops, remote{what: "set-up"}, none(func(ctx context.Context) error { return r.Setup(ctx, i) }), nil)
	}
	if err != nil {
		return because(ctx, err)
	}
	if claimed.Spec.Ports, err = m.publish(ctx, b, i, r.Spec.Ports); err != nil {
		return err
	}
	err = m.write(ctx, b, func(row *store.Row) {
		row.Sandbox, row.Policy, row.Pool, row.Term = claimed, policy, "", termOf(claimed.Lease, claimed.CreatedAt)
		row.LastUsedAt, row.ChangedAt, row.Admin = claimed.CreatedAt, claimed.CreatedAt, r.isTrusted()
	})
	if err != nil {
		return err
	}
	return m.scheduleDeadline(ctx, b)
}

// discard removes a sandbox that nobody has heard of. Who calls performs one of the
// ops, and has the sandbox's turn, which is given back when it is gone.
func (m *Manager) discard(b *box, why string) {
	m.ops.more()
	go func() {
		defer m.ops.end()
		defer b.yield()
		// When the manager closes, what is left is left to the next one.
		ctx, cancel := context.WithTimeout(m.ops.ctx, cleanupLimit)
		defer cancel()
		if err := m.undo(ctx, b, errors.New(why)); err != nil {
			m.schedule(ctx, b, kindDelete, m.o.Clock.Now())
			m.o.Log.WarnContext(ctx, "a sandbox of a pool is left till later", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		}
	}()
}

// makeRoom removes a sandbox that waits in a pool, and reports whether there was one.
func (m *Manager) makeRoom(ctx context.Context) bool {
	for _, p := range m.pools {
		b := p.pop()
		if b == nil {
			continue
		}
		err := m.undo(ctx, b, errors.New("its room is needed"))
		b.yield()
		if err == nil {
			return true
		}
		m.schedule(ctx, b, kindDelete, m.o.Clock.Now())
	}
	return false
}

// emptyPool removes all sandboxes that wait in a pool, for who performs one of the
// ops.
func (m *Manager) emptyPool(p *pool) {
	for b := p.pop(); b != nil; b = p.pop() {
		m.discard(b, "the manager closes")
	}
}
