package manager

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Create makes a sandbox and returns it when it runs. When it fails, or ctx ends,
// what was made is taken back; what cannot be is tried again later, and keeps its
// place till then.
//
// Invalid: the request. Exhausted: no room, by the limits or the provider's.
// Unsupported: no such provider, or it cannot do what is asked for, now or at the
// deadline. Conflict: the key was used for another request. Timeout: it took too
// long.
func (m *Manager) Create(ctx context.Context, r CreateRequest) (sandpit.Sandbox, error) {
	begin := time.Now()
	if m.closing.Load() || !m.ops.begin() {
		return sandpit.Sandbox{}, errClosed
	}
	defer m.ops.end()
	s, err := m.create(ctx, r)
	err = about(err, sandpit.Subject{Provider: cmp.Or(r.Provider, m.o.Provider), Sandbox: s.ID, Operation: "create"})
	m.record(Report{
		Request: RequestIDOf(ctx), Actor: actorOf(ctx, r.Owner), Action: "create", Sandbox: s.ID, Args: r.args(), Err: err, Took: time.Since(begin),
	})
	m.wake()
	if id := s.Spec.Template.Template; id != "" && err == nil {
		m.templates.count(id)
	}
	if err != nil {
		return sandpit.Sandbox{}, fmt.Errorf("create a sandbox: %w", err)
	}
	return s, nil
}

func (m *Manager) create(ctx context.Context, r CreateRequest) (sandpit.Sandbox, error) {
	now, err := m.now(ctx)
	if err != nil {
		return sandpit.Sandbox{}, err
	}
	if r.Lease.Deadline.IsZero() && m.o.Lifetime > 0 && !r.Endless {
		r.Lease.Deadline = now.Add(m.o.Lifetime)
	}
	if r, err = m.Expand(ctx, r); err != nil {
		return sandpit.Sandbox{}, err
	}
	if r, err = m.prepare(ctx, r, now); err != nil {
		return sandpit.Sandbox{}, err
	}
	r, now, release, err := m.prepareImage(ctx, r, now)
	if err != nil {
		return sandpit.Sandbox{}, err
	}
	defer release()
	if s, claimed, err := m.claim(ctx, r, now); claimed {
		return s, err
	}
	for {
		b, other, err := m.reserve(ctx, r, now)
		if err != nil {
			return sandpit.Sandbox{}, err
		}
		if other == nil {
			return m.make(ctx, b, r)
		}
		select {
		case <-other.made:
		case <-ctx.Done():
			return sandpit.Sandbox{}, context.Cause(ctx)
		}
		if err := other.take(ctx); err != nil { // it may be just being claimed
			return sandpit.Sandbox{}, err
		}
		other.yield()
		switch row := other.look(); {
		case row.Key != r.Key: // it could not be made, or is gone again
		case row.State == sandpit.StateCreating:
			return sandpit.Sandbox{}, stateError(row)
		default:
			return other.view(), nil
		}
	}
}

// reserve gives a sandbox its place and writes it down; who calls has its turn.
// If its key is taken by the same request, that one's sandbox is returned.
func (m *Manager) reserve(ctx context.Context, r CreateRequest, now time.Time) (b, other *box, err error) {
	row := store.Row{
		Sandbox:  sandpit.Sandbox{ID: sandpit.NewID(), Spec: m.withTempDirs(r.Spec), Lease: r.Lease, State: sandpit.StateCreating, CreatedAt: now},
		Provider: r.Provider, Term: cmp.Or(r.term, termOf(r.Lease, now)),
		Key: r.Key, Pool: r.pool, Prepared: r.prepared, Admin: r.isTrusted(),
	}
	row.Policy, row.LastUsedAt, row.ChangedAt = r.Policy, now, now
	if r.Key != "" {
		row.Digest = r.digest()
	}
	b = newBox(row, m.o.Providers[r.Provider])
	b.turn <- struct{}{}
	if other := m.boxes.add(b); other != nil {
		if other.look().Digest != row.Digest {
			return nil, nil, sandpit.Errorf(sandpit.Conflict, "the key %.100q was used for another request", r.Key)
		}
		return nil, other, nil
	}
	err = errorsOf(m.o.Disk.Check(), m.admitVolumes(ctx, row))
	for err == nil && (r.pool == "" || r.pool == poolBuilds) && m.room.full() && m.makeRoom(ctx) {
		// until there is room, or no more to be had
	}
	if err == nil {
		err = m.room.take(row.Sandbox)
	}
	if err == nil {
		err = m.insert(ctx, b)
	}
	if err == nil {
		return b, nil, nil
	}
	m.boxes.drop(b)
	m.room.give(b.id)
	m.fail(b, err.Error())
	close(b.made)
	b.yield()
	if ctx.Err() != nil {
		m.sweepRow(b) // it may have been written all the same
	}
	return nil, nil, err
}

// fail marks a sandbox that nobody can find any more, for those who have waited.
func (m *Manager) fail(b *box, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row.State, b.row.Reason, b.row.Key = sandpit.StateDeleted, reason, ""
}

// sweepRow removes a row that may have been written though nobody was told.
func (m *Manager) sweepRow(b *box) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.loops.ctx), storeLimit)
	defer cancel()
	if err := m.o.Store.DeleteSandbox(ctx, b.id); err != nil {
		m.o.Log.WarnContext(ctx, "a row that nobody needs may be left till the next start", slog.Any("error", err))
	}
}

// make makes a sandbox that has its place.
func (m *Manager) make(ctx context.Context, b *box, r CreateRequest) (sandpit.Sandbox, error) {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	stop := context.AfterFunc(m.ops.ctx, func() { abort(context.Cause(m.ops.ctx)) })
	defer stop()
	b.making(abort)
	i, err := m.build(ctx, b, r)
	b.making(nil)
	if err == nil {
		m.settleIn(b, i)
		close(b.made)
		b.yield()
		return b.view(), nil
	}
	m.rollBack(b, i, err)
	return sandpit.Sandbox{ID: b.id}, err
}

// build waits for a slot of the owner and makes the sandbox run. What programs inside
// decide the duration of is awaited without the slot.
func (m *Manager) build(ctx context.Context, b *box, r CreateRequest) (sandpit.Instance, error) {
	slot, err := acquire(ctx, m.slots.starts, r.Owner)
	if err != nil {
		return nil, err
	}
	defer slot.Release()
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout,
		sandpit.Errorf(sandpit.Timeout, "timed out after %v seconds", r.Timeout.Seconds()))
	defer cancel()
	i, err := m.startNew(ctx, b, r)
	if err != nil {
		return i, err
	}
	slot.Release()
	if err := m.setUp(ctx, i, r); err != nil {
		return i, err
	}
	if err := m.scheduleDeadline(ctx, b); err != nil {
		return i, err
	}
	if ctx.Err() != nil {
		return i, context.Cause(ctx)
	}
	return i, m.become(ctx, b, sandpit.StateRunning, func(row *store.Row) {
		row.LastUsedAt = m.o.Clock.Now()
		if r.image != nil { // what it was made of is there for its making only
			row.Spec.Image = *r.image
		}
	})
}

// startNew has the provider create the sandbox, and gives it what it needs before
// programs run in it.
func (m *Manager) startNew(ctx context.Context, b *box, r CreateRequest) (sandpit.Instance, error) {
	if err := m.keepSecrets(b.id, r.Secrets); err != nil {
		return nil, err
	}
	i, err := m.obtain(ctx, b)
	if err != nil {
		return nil, because(ctx, err)
	}
	if err := m.giveKept(ctx, i, r.Spec.Secrets); err != nil {
		return i, because(ctx, err)
	}
	policy, err := m.completePolicy(i, r.Policy)
	if err := errorsOf(able(i, r.Lease.Action), err); err != nil {
		return i, err
	}
	ports, err := m.publish(ctx, b, i, r.Spec.Ports)
	if err != nil {
		return i, err
	}
	return i, m.write(ctx, b, func(row *store.Row) { row.Handle, row.Spec.Ports, row.Policy = i.Handle(), ports, policy })
}

// setUp starts what the template of a new sandbox starts, waits until that is ready, and
// does what the request asks for.
func (m *Manager) setUp(ctx context.Context, i sandpit.Instance, r CreateRequest) error {
	if r.start != nil {
		bring := func(ctx context.Context) error { return bringUp(ctx, i, *r.start, nil) }
		if _, err := call(ctx, m.loops, remote{what: "start"}, none(bring), nil); err != nil {
			return because(ctx, err)
		}
	}
	if r.Setup == nil {
		return nil
	}
	_, err := call(ctx, m.loops, remote{what: "set-up"}, none(func(ctx context.Context) error { return r.Setup(ctx, i) }), nil)
	if err != nil {
		return fmt.Errorf("set it up: %w", because(ctx, err))
	}
	return nil
}

// marked returns a spec with the mark of this manager.
func (m *Manager) marked(s sandpit.Spec, owner string) sandpit.Spec {
	s = s.Clone()
	if s.Labels == nil {
		s.Labels = make(map[string]string, 2)
	}
	s.Labels[Label] = m.identity
	if owner != "" {
		s.Labels[sandpit.OwnerLabel] = owner
	}
	return s
}

// specFor is what a provider is told of a sandbox.
func (m *Manager) specFor(r store.Row) sandpit.Spec {
	spec := m.marked(r.Spec, r.Lease.Owner)
	if _, saved := spec.Image.Snapshot(); !saved && r.Prepared != "" {
		spec.Image = r.Prepared
	}
	for name, value := range m.o.Environ(r.Sandbox) {
		if spec.Env == nil {
			spec.Env = make(map[string]string)
		}
		spec.Env[name] = value
	}
	return spec
}

// obtain returns the instance of a sandbox that is being made.
func (m *Manager) obtain(ctx context.Context, b *box) (sandpit.Instance, error) {
	return m.obtainAs(ctx, b, b.look())
}

// obtainAs is obtain of a row that says more than the sandbox's own.
func (m *Manager) obtainAs(ctx context.Context, b *box, row store.Row) (sandpit.Instance, error) {
	spec, err := m.bound(ctx, row)
	if err != nil {
		return nil, err
	}
	if err := makeTempDirs(spec); err != nil {
		return nil, err
	}
	if id, ok := spec.Image.Snapshot(); ok {
		if !m.snapshots.hold(id) {
			return nil, sandpit.Errorf(sandpit.NotFound, "snapshot %s is being removed", id)
		}
		defer m.snapshots.release(id)
	}
	create := func(ctx context.Context) (sandpit.Instance, error) { return b.provider.Create(ctx, b.id, spec) }
	i, err := call(ctx, m.loops, remote{what: "create"}, create, func(i sandpit.Instance, err error) {
		if err == nil {
			m.destroyLate(i)
		}
	})
	if err == nil && i.ID() != b.id {
		m.destroyLate(i)
		return nil, sandpit.Errorf(sandpit.Internal, "the provider made %.64q instead", string(i.ID()))
	}
	if err == nil {
		m.observe(b, i)
	}
	return i, err
}

// destroyLate destroys what nobody waits for. If it cannot, the reconciler finds
// it.
func (m *Manager) destroyLate(i sandpit.Instance) {
	ctx, cancel := context.WithTimeout(m.loops.ctx, m.o.CallTimeout)
	defer cancel()
	err := i.Destroy(ctx)
	m.record(Report{Actor: actorManager, Action: "destroy late", Sandbox: i.ID(), Err: err})
}

// rollBack takes back what was made of a sandbox, as far as it can within a short
// while; the rest goes on without the caller. The turn is given back then.
func (m *Manager) rollBack(b *box, i sandpit.Instance, cause error) {
	done := make(chan struct{})
	m.ops.more()
	go func() {
		defer m.ops.end()
		defer close(done)
		defer b.yield()
		defer close(b.made)
		// When the manager closes, what is left is left to the next one.
		ctx, cancel := context.WithTimeout(m.ops.ctx, cleanupLimit)
		defer cancel()
		b.place(i)
		if err := m.undo(ctx, b, cause); err != nil {
			m.schedule(ctx, b, kindDelete, m.o.Clock.Now())
			m.o.Log.WarnContext(ctx, "what was made of a sandbox is left till later",
				slog.String("sandbox", string(b.id)), slog.Any("error", err))
		}
	}()
	timer := time.NewTimer(m.o.Drain)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// undo removes a sandbox that could not be made, and its row.
func (m *Manager) undo(ctx context.Context, b *box, cause error) error {
	k := keyOf(b.look())
	err := m.become(ctx, b, sandpit.StateDeleting, func(r *store.Row) {
		r.Reason, r.Key = cut("could not be made: "+cause.Error(), store.MaxReason), ""
	})
	if err == nil {
		m.boxes.freeKey(b, k)
	}
	err = errorsOf(m.clear(ctx, b), err)
	if err != nil {
		return err
	}
	m.cancelAll(ctx, b)
	if err := m.forget(ctx, b); err != nil {
		return err
	}
	b.place(nil)
	m.fail(b, "could not be made")
	return nil
}
