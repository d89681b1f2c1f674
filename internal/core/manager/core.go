package manager

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
)

// core is what the parts of a manager share: its tasks, the lock of a sandbox, and how operations
// run and are recorded.
type core struct {
	closing atomic.Bool // no operation begins any more
	events  *Events
	log     *slog.Logger
	loops   *tasks // background work until Close
	o       *Options
	onEnd   struct { // called before a sandbox ends
		mu   sync.Mutex
		list []func(sandpit.ID, error)
	}
	ops          *tasks // operations on sandboxes
	quota        *sandboxQuota
	sandboxes    *recordIndex
	sweepRequest chan struct{} // holds one request to sweep at once
}

// operation is what is done to a sandbox by the holder of its lock.
type operation func(ctx context.Context, b *sandboxRecord) error

// errNothingToDo is the error of an operation that found nothing to do.
var errNothingToDo = errors.New("nothing to do")

// runOperation runs one operation for a caller, as one event.
func (c *core) runOperation(ctx context.Context, id sandpit.ID, action string, args map[string]string, do operation) error {
	rec, err := c.sandboxes.findVisible(id)
	if err != nil {
		return err
	}
	if c.closing.Load() {
		return errClosed
	}
	err = c.runLocked(ctx, rec, c.withEvent(action, args, do))
	return addSubject(err, sandpit.Subject{Provider: rec.currentRow().Provider, Sandbox: id, Operation: action})
}

// addSubject adds to an error what it is about. An error without a code is the server's own,
// whatever it wraps: a missing file of the server is not NotFound for the caller.
func addSubject(err error, s sandpit.Subject) error {
	if err == nil {
		return nil
	}
	_, coded := errors.AsType[sandpit.Code](err)
	if _, explained := errors.AsType[*sandpit.Error](err); !coded && !explained && !isContextError(err) {
		err = sandpit.Errorf(sandpit.Internal, "%w", err)
	}
	return sandpit.WithSubject(err, s)
}

// isContextError reports whether an error says that a context has ended.
func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// runLocked locks a sandbox and runs an operation. If the caller's context ends, the operation
// continues and the caller gets an error that says so.
func (c *core) runLocked(ctx context.Context, rec *sandboxRecord, do operation) error {
	if !c.ops.begin() {
		return errClosed
	}
	if err := rec.lock(ctx); err != nil {
		c.ops.end()
		return err
	}
	result := make(chan error, 1)
	go func() {
		defer c.ops.end()
		defer rec.unlock()
		result <- c.runStep(ctx, rec, do)
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err
	default:
		return sandpit.Errorf(sandpit.CodeOf(ctx.Err()), "sandbox %s: the caller stopped waiting; the operation continues: %w", rec.id, context.Cause(ctx))
	}
}

// runIfUnlocked runs an operation unless the sandbox is locked.
func (c *core) runIfUnlocked(ctx context.Context, rec *sandboxRecord, do operation) error {
	if !c.ops.begin() {
		return nil
	}
	defer c.ops.end()
	if !rec.tryLock() {
		return nil
	}
	defer rec.unlock()
	return c.runStep(ctx, rec, do)
}

// runStep runs an operation with a context that only the manager ends. The caller holds the lock.
func (c *core) runStep(ctx context.Context, rec *sandboxRecord, do operation) error {
	ctx, cancel := c.ops.detach(ctx)
	defer cancel()
	defer c.triggerSweep()
	defer rec.allowHandles()
	if err := do(ctx, rec); !errors.Is(err, errNothingToDo) {
		return err
	}
	return nil
}

// withEvent returns an operation that also records an event, unless there was nothing to do.
func (c *core) withEvent(action string, args map[string]string, do operation) operation {
	return func(ctx context.Context, rec *sandboxRecord) error {
		begin := time.Now()
		err := do(ctx, rec)
		if errors.Is(err, errNothingToDo) {
			return err
		}
		c.events.Record(Report{
			Request: RequestIDOf(ctx), Actor: actorOf(ctx, rec.currentRow().Lease.Owner), Action: action, Sandbox: rec.id, Args: args,
			Err: err, Took: time.Since(begin),
		})
		return err
	}
}

// triggerSweep starts the next sweep at once.
func (c *core) triggerSweep() {
	select {
	case c.sweepRequest <- struct{}{}:
	default:
	}
}

// mustShare reports whether an owner has to leave room for other owners: it is not an
// administrator's, and others have keys or sandboxes. Administrators count only if they have
// sandboxes. The server itself leaves no room, because its pools give way.
func (c *core) mustShare(owner string) bool {
	if owner == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(c.loops.ctx, storeLimit)
	defer cancel()
	owners, err := c.o.KeyOwners(ctx)
	if err != nil {
		c.log.WarnContext(ctx, "manager: owners of keys not listed; several owners assumed", slog.Any("error", err))
		return true
	}
	if owners[owner] {
		return false
	}
	for other, admin := range owners {
		if other != owner && !admin {
			return true
		}
	}
	return c.quota.hasOtherOwners(owner)
}

// acquireSlot acquires a slot for an operation on a sandbox. The wait ends when the sandbox is
// deleted. The caller holds the lock, and calls release.
//
// Gone: the sandbox was deleted. Otherwise as awaitSlot.
func (c *core) acquireSlot(ctx context.Context, rec *sandboxRecord, p *fairshare.Pool) (release func(), err error) {
	if p == nil {
		return func() {}, nil
	}
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	rec.setAbort(abort)
	defer rec.setAbort(nil)
	slot, err := awaitSlot(ctx, p, rec.currentRow().Lease.Owner)
	switch {
	case err != nil && rec.isCreationAborted():
		return nil, sandpit.Errorf(sandpit.Gone, "sandbox %s was deleted while the request waited", rec.id)
	case err != nil:
		return nil, err
	}
	return slot.Release, nil
}
