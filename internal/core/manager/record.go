package manager

import (
	"context"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// sandboxRecord is one sandbox in memory.
//
// Whoever has the turn may change what the sandbox is; mu guards the fields and
// is held for moments only.
type sandboxRecord struct {
	id       sandpit.ID
	provider sandpit.Provider // nil if it is not configured any more
	locked   chan struct{}    // full while an operation is under way
	created  chan struct{}    // closed when it has been made, or has not

	mu          sync.Mutex
	row         store.Row // as the store has it; LastUsedAt may be ahead
	instance    sandpit.Instance
	stats       sandpit.Stats // of instance, when it was measured last
	handles     map[*Handle]struct{}
	refusal     error                   // why there are no new handles, if there are none
	refusedIdle bool                    // it is refused because it is idle, and resumes on use
	drained     chan struct{}           // closed when the last handle is released; nil if nobody waits
	abort       context.CancelCauseFunc // ends the making; nil if it is not being made
	abortCause  error                   // why the making is to be ended
	failures    int                     // of what it does by itself, in a row
	retryAt     time.Time               // not by itself before; zero: at any time
	hasDueRun   bool                    // something is about to be done by itself
	resumeTries int                     // tries to wake it that have ended
	resumeErr   error                   // how the last one has
}

func newSandboxRecord(row store.Row, p sandpit.Provider) *sandboxRecord {
	return &sandboxRecord{
		id: row.ID, provider: p, row: row,
		locked: make(chan struct{}, 1), created: make(chan struct{}), handles: make(map[*Handle]struct{}),
	}
}

// lock waits for the turn.
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

// tryLock takes the turn if it is free.
func (rec *sandboxRecord) tryLock() bool {
	select {
	case rec.locked <- struct{}{}:
		return true
	default:
		return false
	}
}

func (rec *sandboxRecord) unlock() { <-rec.locked }

// currentRow returns the row as it is now. It shares maps with rec, which nobody changes.
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

// toSandbox returns what callers see.
func (rec *sandboxRecord) toSandbox() sandpit.Sandbox {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	s := rec.row.Sandbox
	s.Spec, s.Provider = s.Spec.Clone(), rec.row.Provider
	s.Next, s.ResumesOnUse = rec.nextAction(), isResumable(rec.row.State) && resumesOnUse(rec.row)
	if s.Policy.IdleTimeout == 0 {
		s.Policy.IdleTimeout = -time.Second // zero would be the server's default
	}
	return s
}

// setRequestKey says which request a sandbox answers.
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

// setInstance sets the instance and reports whether it is another than before.
func (rec *sandboxRecord) setInstance(i sandpit.Instance) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	changed := rec.instance != i
	rec.instance = i
	if changed {
		rec.stats = sandpit.Stats{}
	}
	return changed
}

// refuseHandles lets nobody take a new handle until allow.
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

// refuseIfUnused reports whether nobody has a handle, and then refuses new ones: from here
// on nothing comes between the decision to end a sandbox and its end. With resumes, a caller
// waits instead of being refused, and has the sandbox resumed.
func (rec *sandboxRecord) refuseIfUnused(why error, resumes bool, still func(store.Row) bool) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if len(rec.handles) > 0 || !still(rec.row) {
		return false
	}
	rec.refusal, rec.refusedIdle = why, resumes
	return true
}

// evictHandles tells all who have a handle why it ends, and waits until they have
// released it, at most for d. It reports whether they did.
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

// releaseHandle takes a handle back.
func (rec *sandboxRecord) releaseHandle(h *Handle) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	delete(rec.handles, h)
	if len(rec.handles) == 0 && rec.drained != nil {
		close(rec.drained)
		rec.drained = nil
	}
}

// abortCreation ends the making of the sandbox, if it is being made.
func (rec *sandboxRecord) abortCreation(cause error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.abortCause = cause
	if rec.abort != nil {
		rec.abort(cause)
	}
}

// allowCreation undoes abortCreation: what waits for a slot from now on is wanted again.
func (rec *sandboxRecord) allowCreation() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.abortCause = nil
}

// isCreationAborted reports whether the sandbox is being deleted.
func (rec *sandboxRecord) isCreationAborted() bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.abortCause != nil
}

// setAbort keeps how the making can be ended; nil when it is over.
func (rec *sandboxRecord) setAbort(abort context.CancelCauseFunc) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.abort = abort
	if abort != nil && rec.abortCause != nil {
		abort(rec.abortCause)
	}
}

// noteUse notes that the sandbox is used.
func (rec *sandboxRecord) noteUse(now time.Time) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if now.After(rec.row.LastUsedAt) {
		rec.row.LastUsedAt = now
	}
}

// shiftTimes moves the times of a row as store.ShiftDeadlines does.
func (rec *sandboxRecord) shiftTimes(by time.Duration) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for _, t := range []*time.Time{&rec.row.Lease.Deadline, &rec.row.LastUsedAt, &rec.row.ChangedAt, &rec.row.CheckpointedAt, &rec.retryAt} {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
}

// stateError says why a sandbox in this state cannot be used, nil if it can.
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
