package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// creator creates sandboxes, and undoes a creation that failed.
type creator struct {
	audit        *guestAudit
	clock        clock.Clock
	core         *core
	events       *Events
	evictSpare   func(context.Context) bool // deletes a spare of a pool, and reports whether there was one
	identity     string
	instances    *instances
	log          *slog.Logger
	messages     *Messages
	o            *Options
	ports        *portPublisher
	quota        *ledger
	records      *recordStore
	remover      *remover
	sandboxes    *index
	secrets      *secretFiles
	slots        slots
	snapshotUses *snapshots
	store        *store.Store
	volumes      *Volumes
	wall         *wallClock
}

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
	if m.core.closing.Load() || !m.core.ops.begin() {
		return sandpit.Sandbox{}, errClosed
	}
	defer m.core.ops.end()
	s, err := m.createOrClaim(ctx, r)
	err = about(err, sandpit.Subject{Provider: cmp.Or(r.Provider, m.o.Provider), Sandbox: s.ID, Operation: "create"})
	m.events.Record(Report{
		Request: RequestIDOf(ctx), Actor: actorOf(ctx, r.Owner), Action: "create", Sandbox: s.ID, Args: r.args(), Err: err, Took: time.Since(begin),
	})
	m.core.triggerSweep()
	if id := s.Spec.Template.Template; id != "" && err == nil {
		m.registry.count(id)
	}
	if err != nil {
		return sandpit.Sandbox{}, fmt.Errorf("create a sandbox: %w", err)
	}
	return s, nil
}

func (m *Manager) createOrClaim(ctx context.Context, r CreateRequest) (sandpit.Sandbox, error) {
	now, err := m.wall.now(ctx)
	if err != nil {
		return sandpit.Sandbox{}, err
	}
	if r.Lease.Deadline.IsZero() && m.o.Lifetime > 0 && !r.Endless {
		r.Lease.Deadline = now.Add(m.o.Lifetime)
	}
	if r, err = m.expander.expandRequest(ctx, r); err != nil {
		return sandpit.Sandbox{}, err
	}
	if r, err = m.creator.prepareRequest(ctx, r, now); err != nil {
		return sandpit.Sandbox{}, err
	}
	r, now, release, err := m.creator.prepareImage(ctx, r, now)
	if err != nil {
		return sandpit.Sandbox{}, err
	}
	defer release()
	if s, claimed, err := m.pools.claimSpare(ctx, r, now); claimed {
		return s, err
	}
	for {
		b, other, err := m.creator.reserveSandbox(ctx, r, now)
		if err != nil {
			return sandpit.Sandbox{}, err
		}
		if other == nil {
			return m.creator.createReserved(ctx, b, r)
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

// reserveSandbox gives a sandbox its place and writes it down; who calls has its turn.
// If its key is taken by the same request, that one's sandbox is returned.
func (cr *creator) reserveSandbox(ctx context.Context, r CreateRequest, now time.Time) (b, other *box, err error) {
	row := store.Row{
		Sandbox:  sandpit.Sandbox{ID: sandpit.NewID(), Spec: cr.withTempDirs(r.Spec), Lease: r.Lease, State: sandpit.StateCreating, CreatedAt: now},
		Provider: r.Provider, Term: cmp.Or(r.term, termOf(r.Lease, now)),
		Key: r.Key, Pool: r.pool, Prepared: r.prepared, Admin: r.isTrusted(),
	}
	row.Policy, row.LastUsedAt, row.ChangedAt = r.Policy, now, now
	if r.Key != "" {
		row.Digest = r.digest()
	}
	b = newBox(row, cr.o.Providers[r.Provider])
	b.turn <- struct{}{}
	if other := cr.sandboxes.add(b); other != nil {
		if other.look().Digest != row.Digest {
			return nil, nil, sandpit.Errorf(sandpit.Conflict, "the key %.100q was used for another request", r.Key)
		}
		return nil, other, nil
	}
	err = errorsOf(cr.o.Disk.Check(), cr.volumes.checkVolumes(ctx, row))
	for err == nil && (r.pool == "" || r.pool == poolBuilds) && cr.quota.full() && cr.evictSpare(ctx) {
		// until there is room, or no more to be had
	}
	if err == nil {
		err = cr.quota.take(row.Sandbox)
	}
	if err == nil {
		err = cr.records.insertRow(ctx, b)
	}
	if err == nil {
		return b, nil, nil
	}
	cr.sandboxes.drop(b)
	cr.quota.give(b.id)
	cr.markFailed(b, err.Error())
	close(b.made)
	b.yield()
	if ctx.Err() != nil {
		cr.deleteStrayRow(b) // it may have been written all the same
	}
	return nil, nil, err
}

// markFailed marks a sandbox that nobody can find any more, for those who have waited.
func (cr *creator) markFailed(b *box, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row.State, b.row.Reason, b.row.Key = sandpit.StateDeleted, reason, ""
}

// deleteStrayRow removes a row that may have been written though nobody was told.
func (cr *creator) deleteStrayRow(b *box) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cr.core.loops.ctx), storeLimit)
	defer cancel()
	if err := cr.store.DeleteSandbox(ctx, b.id); err != nil {
		cr.log.WarnContext(ctx, "a row that nobody needs may be left till the next start", slog.Any("error", err))
	}
}

// createReserved makes a sandbox that has its place.
func (cr *creator) createReserved(ctx context.Context, b *box, r CreateRequest) (sandpit.Sandbox, error) {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	stop := context.AfterFunc(cr.core.ops.ctx, func() { abort(context.Cause(cr.core.ops.ctx)) })
	defer stop()
	b.making(abort)
	i, err := cr.startWithSlot(ctx, b, r)
	b.making(nil)
	if err == nil {
		cr.instances.recordInstance(b, i)
		close(b.made)
		b.yield()
		return b.view(), nil
	}
	cr.undoAndUnlock(b, i, err)
	return sandpit.Sandbox{ID: b.id}, err
}

// startWithSlot waits for a slot of the owner and makes the sandbox run. What programs inside
// decide the duration of is awaited without the slot.
func (cr *creator) startWithSlot(ctx context.Context, b *box, r CreateRequest) (sandpit.Instance, error) {
	slot, err := acquire(ctx, cr.slots.starts, r.Owner)
	if err != nil {
		return nil, err
	}
	defer slot.Release()
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout,
		sandpit.Errorf(sandpit.Timeout, "timed out after %v seconds", r.Timeout.Seconds()))
	defer cancel()
	i, err := cr.createInstance(ctx, b, r)
	if err != nil {
		return i, err
	}
	slot.Release()
	if err := cr.runSetup(ctx, i, r); err != nil {
		return i, err
	}
	if err := cr.messages.scheduleDeadline(ctx, b); err != nil {
		return i, err
	}
	if ctx.Err() != nil {
		return i, context.Cause(ctx)
	}
	return i, cr.records.changeState(ctx, b, sandpit.StateRunning, func(row *store.Row) {
		row.LastUsedAt = cr.clock.Now()
		if r.image != nil { // what it was made of is there for its making only
			row.Spec.Image = *r.image
		}
	})
}

// createInstance has the provider create the sandbox, and gives it what it needs before
// programs run in it.
func (cr *creator) createInstance(ctx context.Context, b *box, r CreateRequest) (sandpit.Instance, error) {
	if err := cr.secrets.saveSecrets(b.id, r.Secrets); err != nil {
		return nil, err
	}
	i, err := cr.requestInstance(ctx, b)
	if err != nil {
		return nil, because(ctx, err)
	}
	if err := cr.secrets.giveSecrets(ctx, i, r.Spec.Secrets); err != nil {
		return i, because(ctx, err)
	}
	policy, err := cr.core.completePolicy(i, r.Policy)
	if err := errorsOf(able(i, r.Lease.Action), err); err != nil {
		return i, err
	}
	ports, err := cr.ports.publishPorts(ctx, b, i, r.Spec.Ports)
	if err != nil {
		return i, err
	}
	return i, cr.records.updateRow(ctx, b, func(row *store.Row) { row.Handle, row.Spec.Ports, row.Policy = i.Handle(), ports, policy })
}

// runSetup starts what the template of a new sandbox starts, waits until that is ready, and
// does what the request asks for.
func (cr *creator) runSetup(ctx context.Context, i sandpit.Instance, r CreateRequest) error {
	if r.start != nil {
		bring := func(ctx context.Context) error { return bringUp(ctx, i, *r.start, nil) }
		if _, err := call(ctx, cr.core.loops, remote{what: "start"}, none(bring), nil); err != nil {
			return because(ctx, err)
		}
	}
	if r.Setup == nil {
		return nil
	}
	_, err := call(ctx, cr.core.loops, remote{what: "set-up"}, none(func(ctx context.Context) error { return r.Setup(ctx, i) }), nil)
	if err != nil {
		return fmt.Errorf("set it up: %w", because(ctx, err))
	}
	return nil
}

// addLabels returns a spec with the mark of this manager.
func (cr *creator) addLabels(s sandpit.Spec, owner string) sandpit.Spec {
	s = s.Clone()
	if s.Labels == nil {
		s.Labels = make(map[string]string, 2)
	}
	s.Labels[Label] = cr.identity
	if owner != "" {
		s.Labels[sandpit.OwnerLabel] = owner
	}
	return s
}

// newProviderSpec is what a provider is told of a sandbox.
func (cr *creator) newProviderSpec(r store.Row) sandpit.Spec {
	spec := cr.addLabels(r.Spec, r.Lease.Owner)
	if _, saved := spec.Image.Snapshot(); !saved && r.Prepared != "" {
		spec.Image = r.Prepared
	}
	for name, value := range cr.o.Environ(r.Sandbox) {
		if spec.Env == nil {
			spec.Env = make(map[string]string)
		}
		spec.Env[name] = value
	}
	return spec
}

// requestInstance returns the instance of a sandbox that is being made.
func (cr *creator) requestInstance(ctx context.Context, b *box) (sandpit.Instance, error) {
	return cr.requestInstanceAs(ctx, b, b.look())
}

// requestInstanceAs is obtain of a row that says more than the sandbox's own.
func (cr *creator) requestInstanceAs(ctx context.Context, b *box, row store.Row) (sandpit.Instance, error) {
	spec, err := cr.volumes.resolveMounts(ctx, row, cr.newProviderSpec(row))
	if err != nil {
		return nil, err
	}
	if err := makeTempDirs(spec); err != nil {
		return nil, err
	}
	if id, ok := spec.Image.Snapshot(); ok {
		if !cr.snapshotUses.hold(id) {
			return nil, sandpit.Errorf(sandpit.NotFound, "snapshot %s is being removed", id)
		}
		defer cr.snapshotUses.release(id)
	}
	create := func(ctx context.Context) (sandpit.Instance, error) { return b.provider.Create(ctx, b.id, spec) }
	i, err := call(ctx, cr.core.loops, remote{what: "create"}, create, func(i sandpit.Instance, err error) {
		if err == nil {
			cr.destroyLate(i)
		}
	})
	if err == nil && i.ID() != b.id {
		cr.destroyLate(i)
		return nil, sandpit.Errorf(sandpit.Internal, "the provider made %.64q instead", string(i.ID()))
	}
	if err == nil {
		cr.audit.observeGuest(b, i)
	}
	return i, err
}

// destroyLate destroys what nobody waits for. If it cannot, the reconciler finds
// it.
func (cr *creator) destroyLate(i sandpit.Instance) {
	ctx, cancel := context.WithTimeout(cr.core.loops.ctx, cr.o.CallTimeout)
	defer cancel()
	err := i.Destroy(ctx)
	cr.events.Record(Report{Actor: actorManager, Action: "destroy late", Sandbox: i.ID(), Err: err})
}

// undoAndUnlock takes back what was made of a sandbox, as far as it can within a short
// while; the rest goes on without the caller. The turn is given back then.
func (cr *creator) undoAndUnlock(b *box, i sandpit.Instance, cause error) {
	done := make(chan struct{})
	cr.core.ops.more()
	go func() {
		defer cr.core.ops.end()
		defer close(done)
		defer b.yield()
		defer close(b.made)
		// When the manager closes, what is left is left to the next one.
		ctx, cancel := context.WithTimeout(cr.core.ops.ctx, cleanupLimit)
		defer cancel()
		b.place(i)
		if err := cr.undoCreation(ctx, b, cause); err != nil {
			cr.messages.scheduleMessage(ctx, b, kindDelete, cr.clock.Now())
			cr.log.WarnContext(ctx, "what was made of a sandbox is left till later",
				slog.String("sandbox", string(b.id)), slog.Any("error", err))
		}
	}()
	timer := time.NewTimer(cr.o.Drain)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// undoCreation removes a sandbox that could not be made, and its row.
func (cr *creator) undoCreation(ctx context.Context, b *box, cause error) error {
	k := keyOf(b.look())
	err := cr.records.changeState(ctx, b, sandpit.StateDeleting, func(r *store.Row) {
		r.Reason, r.Key = cut("could not be made: "+cause.Error(), store.MaxReason), ""
	})
	if err == nil {
		cr.sandboxes.freeKey(b, k)
	}
	err = errorsOf(cr.remover.clearResources(ctx, b), err)
	if err != nil {
		return err
	}
	cr.messages.cancelMessages(ctx, b)
	if err := cr.records.deleteRow(ctx, b); err != nil {
		return err
	}
	b.place(nil)
	cr.markFailed(b, "could not be made")
	return nil
}

// checkNewName refuses a request for a sandbox whose name is invalid or taken, before anything
// is done for it. A request that is repeated by its key is the one that has the name.
func (cr *creator) checkNewName(ctx context.Context, r CreateRequest) error {
	if r.pool != "" {
		return nil
	}
	holder, err := cr.checkName(ctx, r.Owner, r.Spec.Name)
	if r.Key != "" && holder.Key == r.Key {
		return nil
	}
	return err
}

// checkName refuses an invalid name and one that a sandbox of the owner has, which is returned
// as well. Of two calls at the same time with the same name both may pass: the store refuses
// the second one.
func (cr *creator) checkName(ctx context.Context, owner, name string) (holder store.Row, err error) {
	if name == "" {
		return holder, nil
	}
	if err := sandpit.CheckName(name); err != nil {
		return holder, err
	}
	holder, err = cr.store.SandboxByName(ctx, owner, name)
	switch {
	case errors.Is(err, sandpit.NotFound):
		return holder, nil
	case err != nil:
		return holder, err
	}
	return holder, store.NameTaken(name, holder.ID)
}
