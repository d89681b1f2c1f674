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
	quota        *sandboxQuota
	records      *recordStore
	remover      *remover
	sandboxes    *recordIndex
	secrets      *secretFiles
	slots        slots
	snapshotUses *snapshotUses
	store        *store.Store
	volumes      *Volumes
	wall         *wallClock
}

// Create creates a sandbox and returns it when it runs. If it fails, or ctx ends, what was created
// is removed; what cannot be removed at once is retried later, and counts until then.
//
// Invalid: the request. Exhausted: no room, by the limits or the provider's. Unsupported: no such
// provider, or it cannot do what the request asks for, now or at the deadline. Conflict: the key
// was used for another request. Timeout: it took too long.
func (m *Manager) Create(ctx context.Context, r CreateRequest) (sandpit.Sandbox, error) {
	begin := time.Now()
	if m.core.closing.Load() || !m.core.ops.begin() {
		return sandpit.Sandbox{}, errClosed
	}
	defer m.core.ops.end()
	s, err := m.createOrClaim(ctx, r)
	err = addSubject(err, sandpit.Subject{Provider: cmp.Or(r.Provider, m.o.Provider), Sandbox: s.ID, Operation: "create"})
	args := r.eventArgs()
	if err == nil && s.Reason != "" {
		args["provider"], args["reason"] = s.Provider, s.Reason
	}
	m.events.Record(Report{
		Request: RequestIDOf(ctx), Actor: actorOf(ctx, r.Owner), Action: "create", Sandbox: s.ID, Args: args, Err: err, Took: time.Since(begin),
	})
	m.core.triggerSweep()
	if id := s.Spec.Template.Template; id != "" && err == nil {
		m.registry.countSpawned(id)
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
	if r, err = m.Expand(ctx, r); err != nil {
		return sandpit.Sandbox{}, err
	}
	return m.failover.createSandbox(ctx, r, now)
}

// createWith creates a sandbox with the provider that the request names, or claims a spare of it.
func (m *Manager) createWith(ctx context.Context, r CreateRequest, now time.Time) (sandpit.Sandbox, error) {
	r, err := m.creator.prepareRequest(ctx, r, now)
	if err != nil {
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
		rec, other, err := m.creator.reserveSandbox(ctx, r, now)
		if err != nil {
			return sandpit.Sandbox{}, err
		}
		if other == nil {
			return m.creator.createReserved(ctx, rec, r)
		}
		select {
		case <-other.created:
		case <-ctx.Done():
			return sandpit.Sandbox{}, context.Cause(ctx)
		}
		if err := other.lock(ctx); err != nil { // it may be being claimed
			return sandpit.Sandbox{}, err
		}
		other.unlock()
		switch row := other.currentRow(); {
		case row.Key != r.Key: // its creation failed, or it was deleted
		case row.State == sandpit.StateCreating:
			return sandpit.Sandbox{}, stateError(row)
		default:
			return other.toSandbox(), nil
		}
	}
}

// reserveSandbox reserves quota for a sandbox and writes its row; the caller gets it locked. If the
// request's key belongs to a sandbox of the same request, that one is returned instead.
func (cr *creator) reserveSandbox(ctx context.Context, r CreateRequest, now time.Time) (rec, other *sandboxRecord, err error) {
	row := store.Row{
		Sandbox:  sandpit.Sandbox{ID: cmp.Or(r.ID, sandpit.NewID()), Spec: cr.withTempDirs(r.Spec), Lease: r.Lease, State: sandpit.StateCreating, CreatedAt: now},
		Provider: r.Provider, Term: cmp.Or(r.term, leaseTermFrom(r.Lease, now)),
		Key: r.Key, Pool: r.pool, Prepared: r.prepared, Admin: r.isTrusted(),
	}
	row.Policy, row.LastUsedAt, row.ChangedAt = r.Policy, now, now
	if r.Key != "" {
		row.Digest = r.computeDigest()
	}
	rec = newSandboxRecord(row, cr.o.Providers[r.Provider])
	rec.locked <- struct{}{}
	if other := cr.sandboxes.add(rec); other != nil {
		if other.currentRow().Digest != row.Digest {
			return nil, nil, sandpit.Errorf(sandpit.Conflict, "the key %.100q was used for another request", r.Key)
		}
		return nil, other, nil
	}
	err = cmp.Or(cr.o.Disk.Check(), cr.volumes.checkVolumes(ctx, row))
	for err == nil && (r.pool == "" || r.pool == poolBuilds) && cr.quota.isFull(r.failed) && cr.evictSpare(ctx) {
		// until there is room, or no spare is left
	}
	if err == nil {
		err = cr.quota.reserve(rec.currentRow().Sandbox, r.failed)
	}
	if err == nil {
		err = cr.records.insertRow(ctx, rec)
	}
	if err == nil {
		return rec, nil, nil
	}
	cr.sandboxes.remove(rec)
	cr.quota.release(rec.id)
	cr.markFailed(rec, err.Error())
	close(rec.created)
	rec.unlock()
	if ctx.Err() != nil {
		cr.deleteStrayRow(rec) // the row may have been written
	}
	return nil, nil, err
}

// markFailed marks a sandbox that is no longer in the index, for callers that have waited for it.
func (cr *creator) markFailed(rec *sandboxRecord, reason string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.row.State, rec.row.Reason, rec.row.Key = sandpit.StateDeleted, reason, ""
}

// deleteStrayRow removes a row that may have been written although the write failed.
func (cr *creator) deleteStrayRow(rec *sandboxRecord) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cr.core.loops.ctx), storeLimit)
	defer cancel()
	if err := cr.store.Sandboxes().DeleteSandbox(ctx, rec.id); err != nil {
		cr.log.WarnContext(ctx, "manager: stray row not deleted", slog.Any("error", err))
	}
}

// createReserved creates a sandbox that reserveSandbox has returned, and unlocks it.
func (cr *creator) createReserved(ctx context.Context, rec *sandboxRecord, r CreateRequest) (sandpit.Sandbox, error) {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	stop := context.AfterFunc(cr.core.ops.ctx, func() { abort(context.Cause(cr.core.ops.ctx)) })
	defer stop()
	rec.setAbort(abort)
	i, err := cr.startWithSlot(ctx, rec, r)
	rec.setAbort(nil)
	if err == nil {
		cr.instances.recordInstance(rec, i)
		close(rec.created)
		rec.unlock()
		return rec.toSandbox(), nil
	}
	wait := cr.o.Drain
	if r.movesOn && isProviderError(err) {
		wait = 0 // the next provider does not wait for this one
	}
	cr.undoAndUnlock(rec, i, err, wait)
	return sandpit.Sandbox{ID: rec.id}, err
}

// startWithSlot waits for a slot of the owner and creates the sandbox. The slot is released before
// waiting for programs in the sandbox, which decide how long they take.
func (cr *creator) startWithSlot(ctx context.Context, rec *sandboxRecord, r CreateRequest) (sandpit.Instance, error) {
	slot, err := awaitSlot(ctx, cr.slots.starts, r.Owner)
	if err != nil {
		return nil, err
	}
	defer slot.Release()
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout,
		sandpit.Errorf(sandpit.Timeout, "timed out after %v seconds", r.Timeout.Seconds()))
	defer cancel()
	i, err := cr.createInstance(ctx, rec, r)
	if err != nil {
		return i, err
	}
	slot.Release()
	if err := cr.runSetup(ctx, i, r); err != nil {
		return i, err
	}
	if err := cr.messages.scheduleDeadline(ctx, rec); err != nil {
		return i, err
	}
	if ctx.Err() != nil {
		return i, context.Cause(ctx)
	}
	return i, cr.records.changeState(ctx, rec, sandpit.StateRunning, func(row *store.Row) {
		row.LastUsedAt, row.Reason = cr.clock.Now(), r.reason
		if r.visibleImage != nil { // the snapshot that it was created from is temporary
			row.Spec.Image = *r.visibleImage
		}
	})
}

// createInstance has the provider create the sandbox, and gives it what it needs before programs
// run in it.
func (cr *creator) createInstance(ctx context.Context, rec *sandboxRecord, r CreateRequest) (sandpit.Instance, error) {
	if err := cr.secrets.saveSecrets(rec.id, r.Secrets); err != nil {
		return nil, err
	}
	i, err := cr.requestInstance(ctx, rec, rec.currentRow())
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	if err := cr.secrets.giveSecrets(ctx, i, r.Spec.Secrets); err != nil {
		return i, blameProvider(causeOf(ctx, err))
	}
	policy, err := cr.core.completePolicy(i, r.Policy)
	if err := cmp.Or(checkAbility(i, r.Lease.Action), err); err != nil {
		return i, blameProvider(err)
	}
	ports, err := cr.ports.publishPorts(ctx, rec, i, r.Spec.Ports)
	if err != nil {
		return i, err
	}
	return i, cr.records.updateRow(ctx, rec, func(row *store.Row) { row.Handle, row.Spec.Ports, row.Policy = i.Handle(), ports, policy })
}

// runSetup starts the program of a new sandbox's template, waits until it is ready, and runs the
// request's Setup.
func (cr *creator) runSetup(ctx context.Context, i sandpit.Instance, r CreateRequest) error {
	if r.startRecipe != nil {
		bring := func(ctx context.Context) error { return runStartCommand(ctx, i, *r.startRecipe, nil) }
		if _, err := callProvider(ctx, cr.core.loops, providerCall{what: "start"}, withoutResult(bring), nil); err != nil {
			return causeOf(ctx, err)
		}
	}
	if r.Setup == nil {
		return nil
	}
	_, err := callProvider(ctx, cr.core.loops, providerCall{what: "set-up"}, withoutResult(func(ctx context.Context) error { return r.Setup(ctx, i, r.Spec) }), nil)
	if err != nil {
		return fmt.Errorf("run setup: %w", causeOf(ctx, err))
	}
	return nil
}

// addLabels returns a spec with the labels that identify the manager and the owner.
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

// newProviderSpec returns the spec that the provider gets.
func (cr *creator) newProviderSpec(r store.Row) sandpit.Spec {
	spec := cr.addLabels(r.Spec, r.Lease.Owner)
	spec.Expiry = cr.o.newExpiry(r.Provider, r.Lease, r.Policy)
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

// requestInstance has the provider create an instance of a sandbox as a row describes it.
func (cr *creator) requestInstance(ctx context.Context, rec *sandboxRecord, row store.Row) (sandpit.Instance, error) {
	spec, err := cr.volumes.resolveMounts(ctx, row, cr.newProviderSpec(row))
	if err != nil {
		return nil, err
	}
	if err := makeTempDirs(spec); err != nil {
		return nil, err
	}
	if id, ok := spec.Image.Snapshot(); ok {
		if !cr.snapshotUses.acquire(id) {
			return nil, sandpit.Errorf(sandpit.NotFound, "snapshot %s is being deleted", id)
		}
		defer cr.snapshotUses.release(id)
	}
	create := func(ctx context.Context) (sandpit.Instance, error) {
		return createWithin(ctx, rec.provider, rec.id, spec)
	}
	i, err := callProvider(ctx, cr.core.loops, providerCall{what: "create"}, create, func(i sandpit.Instance, err error) {
		if err == nil {
			cr.destroyLate(row.Provider, i)
		}
	})
	if err == nil && i.ID() != rec.id {
		cr.destroyLate(row.Provider, i)
		return nil, sandpit.Errorf(sandpit.Internal, "create sandbox: the provider returned %.64q instead", string(i.ID()))
	}
	if err == nil {
		cr.audit.observeGuest(rec, i)
	}
	return i, blameProvider(causeOf(ctx, err))
}

// createWithin has a provider create a sandbox. A deadline that is later than a cloud allows becomes
// its latest, and is renewed until the sandbox's own; if the server ends before that, the sandbox is
// kept. Other errors are returned at once.
func createWithin(ctx context.Context, p sandpit.Provider, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	i, err := p.Create(ctx, id, spec)
	_, cloud := sandpit.As[sandpit.AccountReader](p)
	if !cloud || spec.Expiry.Deadline.IsZero() || !errors.Is(err, sandpit.ErrDeadlineTooLate) {
		return i, err
	}
	spec.Expiry.Deadline, spec.Expiry.Action = time.Time{}, sandpit.ActionSuspend
	return p.Create(ctx, id, spec)
}

// destroyLate destroys an instance that was created after its caller had stopped waiting. If that
// fails, the reconciler finds the instance.
func (cr *creator) destroyLate(provider string, i sandpit.Instance) {
	ctx, cancel := context.WithTimeout(cr.core.loops.ctx, cr.o.callTimeout(provider))
	defer cancel()
	err := i.Destroy(ctx)
	cr.events.Record(Report{Actor: actorManager, Action: "destroy late", Sandbox: i.ID(), Err: err})
}

// undoAndUnlock undoes a creation and unlocks the sandbox. It waits for a time; after that the work
// continues in the background. The request's key and name are free in any case.
func (cr *creator) undoAndUnlock(rec *sandboxRecord, i sandpit.Instance, cause error, wait time.Duration) {
	done := make(chan struct{})
	cr.core.ops.addOne()
	// When the manager closes, the next one removes the rest.
	ctx, cancel := context.WithTimeout(cr.core.ops.ctx, cleanupLimit)
	rec.setInstance(i)
	begun := cr.beginUndo(ctx, rec, cause)
	go func() {
		defer cr.core.ops.end()
		defer close(done)
		defer rec.unlock()
		defer close(rec.created)
		defer cancel()
		if err := cr.finishUndo(ctx, rec, begun); err != nil {
			cr.messages.scheduleMessage(ctx, rec, kindDelete, cr.clock.Now())
			cr.log.WarnContext(ctx, "manager: undo of a creation failed; retried later",
				slog.String("sandbox", string(rec.id)), slog.Any("error", err))
		}
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// undoCreation removes what a failed creation left, and the row.
func (cr *creator) undoCreation(ctx context.Context, rec *sandboxRecord, cause error) error {
	return cr.finishUndo(ctx, rec, cr.beginUndo(ctx, rec, cause))
}

// beginUndo writes that what a failed creation left is being removed.
func (cr *creator) beginUndo(ctx context.Context, rec *sandboxRecord, cause error) error {
	k := keyOf(rec.currentRow())
	err := cr.records.changeState(ctx, rec, sandpit.StateDeleting, func(r *store.Row) {
		r.Reason, r.Key = cutText("creation failed: "+cause.Error(), store.MaxReason), ""
	})
	if err == nil {
		cr.sandboxes.freeKey(rec, k)
	}
	return err
}

// finishUndo removes what a failed creation left, and the row, unless begun is an error.
func (cr *creator) finishUndo(ctx context.Context, rec *sandboxRecord, begun error) error {
	err := cmp.Or(cr.remover.clearResources(ctx, rec), begun)
	if err != nil {
		return err
	}
	cr.messages.cancelMessages(ctx, rec)
	if err := cr.records.deleteRow(ctx, rec); err != nil {
		return err
	}
	rec.setInstance(nil)
	cr.markFailed(rec, "creation failed")
	return nil
}

// checkNewName refuses a request whose name is invalid or taken, before anything is done for it. A
// request that is repeated with its key has the name itself.
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

// checkName refuses an invalid name and one that another sandbox of the owner has, which is
// returned as well. Two concurrent calls with the same name may both pass: the store then refuses
// the second one.
func (cr *creator) checkName(ctx context.Context, owner, name string) (holder store.Row, err error) {
	if name == "" {
		return holder, nil
	}
	if err := sandpit.CheckName(name); err != nil {
		return holder, err
	}
	holder, err = cr.store.Sandboxes().SandboxByName(ctx, owner, name)
	switch {
	case errors.Is(err, sandpit.NotFound):
		return holder, nil
	case err != nil:
		return holder, err
	}
	return holder, store.NameTaken(name, holder.ID)
}
