package manager

import (
	"context"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// sandboxRecord is one sandbox in memory. The holder of the lock may change what the sandbox is; mu
// guards the fields and is held only briefly.
type sandboxRecord struct {
	id       sandpit.ID
	provider sandpit.Provider // nil if it is no longer configured
	locked   chan struct{}    // full while the sandbox is locked
	created  chan struct{}    // closed when the creation has succeeded or failed

	mu          sync.Mutex
	row         store.Row // as in the store; LastUsedAt may be newer
	instance    sandpit.Instance
	stats       sandpit.Stats // the last measurement of instance
	handles     map[*Handle]struct{}
	refusal     error                   // the error for new handles; nil: they are allowed
	refusedIdle bool                    // handles are refused because the sandbox is idle; it resumes on use
	drained     chan struct{}           // closed when the last handle is released; nil: evictHandles does not wait
	abort       context.CancelCauseFunc // ends the creation or the wait for a slot; or nil
	abortCause  error                   // the cause of abortCreation
	failures    int                     // consecutive failures of due actions
	retryAt     time.Time               // no due action before; zero: at any time
	hasDueRun   bool                    // a due action is about to run
	resumeTries int                     // attempts to resume it on use that have ended
	resumeErr   error                   // the error of the last attempt
	confirmedAt time.Time               // when the provider last said that it runs
	renewedAt   time.Time               // when its expiry was last renewed; zero: it must be
}

func newSandboxRecord(row store.Row, p sandpit.Provider) *sandboxRecord {
	row.Sandbox.Provider = row.Provider
	return &sandboxRecord{
		id: row.ID, provider: p, row: row,
		locked: make(chan struct{}, 1), created: make(chan struct{}), handles: make(map[*Handle]struct{}),
	}
}

// lock waits for exclusive use of the sandbox. It returns the context's cause if that ends first.
func (rec *sandboxRecord) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case rec.locked <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tryLock locks the sandbox if it is not locked.
func (rec *sandboxRecord) tryLock() bool {
	select {
	case rec.locked <- struct{}{}:
		return true
	default:
		return false
	}
}

func (rec *sandboxRecord) unlock() { <-rec.locked }

// currentRow returns a copy of the row. It shares maps with the record, which never change.
func (rec *sandboxRecord) currentRow() store.Row {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.row
}

func (rec *sandboxRecord) state() sandpit.State {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.row.State
}

// toSandbox returns the sandbox as callers see it.
func (rec *sandboxRecord) toSandbox() sandpit.Sandbox {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	s := rec.row.Sandbox
	s.Spec, s.Provider = s.Spec.Clone(), rec.row.Provider
	s.Next, s.ResumesOnUse = rec.nextAction(), resumesNow(rec.row)
	if s.Policy.IdleTimeout == 0 {
		s.Policy.IdleTimeout = -time.Second // zero would be the server's default
	}
	return s
}

// setRequestKey sets the idempotency key and digest of the request that the sandbox was created
// for.
func (rec *sandboxRecord) setRequestKey(key, digest string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.row.Key, rec.row.Digest = key, digest
}

func (rec *sandboxRecord) currentInstance() sandpit.Instance {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.instance
}

// setInstance sets the instance and reports whether it differs from the one before.
func (rec *sandboxRecord) setInstance(i sandpit.Instance) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	changed := rec.instance != i
	rec.instance = i
	if changed {
		rec.stats, rec.confirmedAt = sandpit.Stats{}, time.Now()
	}
	return changed
}

// confirmRunning records that the provider has said that the sandbox runs, or cannot be asked now.
func (rec *sandboxRecord) confirmRunning() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.confirmedAt = time.Now()
}

// requestRenewal has the expiry renewed soon.
func (rec *sandboxRecord) requestRenewal() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.renewedAt = time.Time{}
}

// refuseHandles refuses new handles until allowHandles.
func (rec *sandboxRecord) refuseHandles(why error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.refusal = why
}

func (rec *sandboxRecord) allowHandles() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.refusal, rec.refusedIdle = nil, false
}

// refuseIfUnused reports whether the sandbox has no handle and its row still fulfills a condition,
// and then refuses new handles, so that no use begins between the decision to end a sandbox and its
// end. With resumes, a caller that wants a handle waits and resumes the sandbox instead of getting
// the error.
func (rec *sandboxRecord) refuseIfUnused(why error, resumes bool, still func(store.Row) bool) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if len(rec.handles) > 0 || !still(rec.row) {
		return false
	}
	rec.refusal, rec.refusedIdle = why, resumes
	return true
}

// evictHandles cancels all handles with a cause and waits until they are released, at most for d.
// It reports whether they were.
func (rec *sandboxRecord) evictHandles(cause error, d time.Duration) bool {
	rec.mu.Lock()
	if len(rec.handles) == 0 {
		rec.mu.Unlock()
		return true
	}
	for h := range rec.handles {
		h.cancel(cause)
	}
	drained := make(chan struct{})
	rec.drained = drained
	rec.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-drained:
		return true
	case <-timer.C:
		return false
	}
}

// releaseHandle removes a handle.
func (rec *sandboxRecord) releaseHandle(h *Handle) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	delete(rec.handles, h)
	if len(rec.handles) == 0 && rec.drained != nil {
		close(rec.drained)
		rec.drained = nil
	}
}

// abortCreation ends the creation of the sandbox, if it is being created, and waits for slots,
// until allowCreation.
func (rec *sandboxRecord) abortCreation(cause error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.abortCause = cause
	if rec.abort != nil {
		rec.abort(cause)
	}
}

// allowCreation undoes abortCreation for what waits for a slot from now on.
func (rec *sandboxRecord) allowCreation() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.abortCause = nil
}

// isCreationAborted reports whether abortCreation is in force: the sandbox is being deleted.
func (rec *sandboxRecord) isCreationAborted() bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.abortCause != nil
}

// setAbort sets the function that ends the creation or the wait for a slot; nil when that is over.
func (rec *sandboxRecord) setAbort(abort context.CancelCauseFunc) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.abort = abort
	if abort != nil && rec.abortCause != nil {
		abort(rec.abortCause)
	}
}

// noteUse sets the time of last use, unless it is later already.
func (rec *sandboxRecord) noteUse(now time.Time) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if now.After(rec.row.LastUsedAt) {
		rec.row.LastUsedAt = now
	}
}

// shiftTimes shifts the times of the row as store.ShiftDeadlines does.
func (rec *sandboxRecord) shiftTimes(by time.Duration) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for _, t := range []*time.Time{&rec.row.Lease.Deadline, &rec.row.LastUsedAt, &rec.row.ChangedAt, &rec.row.CheckpointedAt, &rec.retryAt} {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
}

// stateError returns why a sandbox in this state cannot be used, nil if it can.
func stateError(r store.Row) error {
	switch r.State {
	case sandpit.StateRunning:
		return nil
	case sandpit.StateDeleting, sandpit.StateDeleted:
		return newGoneError(r.ID, r.Reason)
	case sandpit.StateError:
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is broken: %s", r.ID, r.Reason)
	case sandpit.StatePaused:
		return sandpit.WithHint(newStateConflict(r), "first: sandpit resume "+string(r.ID))
	case sandpit.StateStopped:
		return sandpit.WithHint(newStateConflict(r), "first: sandpit start "+string(r.ID))
	case sandpit.StateArchived:
		return sandpit.WithHint(newStateConflict(r), "first: sandpit restore "+string(r.ID)+" && sandpit start "+string(r.ID))
	case sandpit.StateCreating, sandpit.StateResuming:
		return sandpit.Errorf(sandpit.Unavailable, "sandbox %s is %s", r.ID, r.State)
	default:
		return newStateConflict(r)
	}
}

func newStateConflict(r store.Row) error {
	if r.Reason == "" {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", r.ID, r.State)
	}
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s: %s", r.ID, r.State, r.Reason)
}

func newGoneError(id sandpit.ID, reason string) error {
	return sandpit.Errorf(sandpit.Gone, "sandbox %s is gone: %s", id, reason)
}

func newNotFoundError(id sandpit.ID) error {
	return sandpit.Errorf(sandpit.NotFound, "Sandbox %.64s not found", string(id))
}
