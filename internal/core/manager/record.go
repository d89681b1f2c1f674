package manager

import (
	"context"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// box is one sandbox in memory.
//
// Whoever has the turn may change what the sandbox is; mu guards the fields and
// is held for moments only.
type box struct {
	id       sandpit.ID
	provider sandpit.Provider // nil if it is not configured any more
	turn     chan struct{}    // full while an operation is under way
	made     chan struct{}    // closed when it has been made, or has not

	mu       sync.Mutex
	row      store.Row // as the store has it; LastUsedAt may be ahead
	instance sandpit.Instance
	stats    sandpit.Stats // of instance, when it was measured last
	handles  map[*Handle]struct{}
	refusal  error                   // why there are no new handles, if there are none
	idling   bool                    // it is refused because it is idle, and resumes on use
	drained  chan struct{}           // closed when the last handle is released; nil if nobody waits
	abort    context.CancelCauseFunc // ends the making; nil if it is not being made
	unwanted error                   // why the making is to be ended
	failures int                     // of what it does by itself, in a row
	retryAt  time.Time               // not by itself before; zero: at any time
	tended   bool                    // something is about to be done by itself
	wakings  int                     // tries to wake it that have ended
	wakeErr  error                   // how the last one has
}

func newBox(row store.Row, p sandpit.Provider) *box {
	return &box{
		id: row.ID, provider: p, row: row,
		turn: make(chan struct{}, 1), made: make(chan struct{}), handles: make(map[*Handle]struct{}),
	}
}

// take waits for the turn.
func (b *box) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tryTake takes the turn if it is free.
func (b *box) tryTake() bool {
	select {
	case b.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (b *box) yield() { <-b.turn }

// look returns the row as it is now. It shares maps with b, which nobody changes.
func (b *box) look() store.Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.row
}

func (b *box) state() sandpit.State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.row.State
}

// view returns what callers see.
func (b *box) view() sandpit.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.row.Sandbox
	s.Spec, s.Provider = s.Spec.Clone(), b.row.Provider
	s.Next, s.ResumesOnUse = b.upcoming(), isAsleep(b.row.State) && wakes(b.row)
	if s.Policy.IdleTimeout == 0 {
		s.Policy.IdleTimeout = -time.Second // zero would be the server's default
	}
	return s
}

// identify says which request a sandbox answers.
func (b *box) identify(key, digest string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row.Key, b.row.Digest = key, digest
}

func (b *box) placed() sandpit.Instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.instance
}

// place sets the instance and reports whether it is another than before.
func (b *box) place(i sandpit.Instance) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed := b.instance != i
	b.instance = i
	if changed {
		b.stats = sandpit.Stats{}
	}
	return changed
}

// refuse lets nobody take a new handle until allow.
func (b *box) refuse(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refusal = why
}

func (b *box) allow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refusal, b.idling = nil, false
}

// free reports whether nobody has a handle, and then refuses new ones: from here
// on nothing comes between the decision to end a sandbox and its end. With resumes, a caller
// waits instead of being refused, and has the sandbox resumed.
func (b *box) free(why error, resumes bool, still func(store.Row) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.handles) > 0 || !still(b.row) {
		return false
	}
	b.refusal, b.idling = why, resumes
	return true
}

// evict tells all who have a handle why it ends, and waits until they have
// released it, at most for d. It reports whether they did.
func (b *box) evict(cause error, d time.Duration) bool {
	b.mu.Lock()
	if len(b.handles) == 0 {
		b.mu.Unlock()
		return true
	}
	for h := range b.handles {
		h.cancel(cause)
	}
	drained := make(chan struct{})
	b.drained = drained
	b.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-drained:
		return true
	case <-timer.C:
		return false
	}
}

// release takes a handle back.
func (b *box) release(h *Handle) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.handles, h)
	if len(b.handles) == 0 && b.drained != nil {
		close(b.drained)
		b.drained = nil
	}
}

// giveUp ends the making of the sandbox, if it is being made.
func (b *box) giveUp(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unwanted = cause
	if b.abort != nil {
		b.abort(cause)
	}
}

// resumeMaking undoes giveUp: what waits for a slot from now on is wanted again.
func (b *box) resumeMaking() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unwanted = nil
}

// isUnwanted reports whether the sandbox is being deleted.
func (b *box) isUnwanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unwanted != nil
}

// making keeps how the making can be ended; nil when it is over.
func (b *box) making(abort context.CancelCauseFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abort = abort
	if abort != nil && b.unwanted != nil {
		abort(b.unwanted)
	}
}

// touch notes that the sandbox is used.
func (b *box) touch(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.After(b.row.LastUsedAt) {
		b.row.LastUsedAt = now
	}
}

// shift moves the times of a row as store.ShiftDeadlines does.
func (b *box) shift(by time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range []*time.Time{&b.row.Lease.Deadline, &b.row.LastUsedAt, &b.row.ChangedAt, &b.row.CheckpointedAt, &b.retryAt} {
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
		return gone(r.ID, r.Reason)
	case sandpit.StateError:
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is broken: %s", r.ID, r.Reason)
	case sandpit.StatePaused:
		return sandpit.WithHint(explained(r), "first: sandpit resume "+string(r.ID))
	case sandpit.StateStopped:
		return sandpit.WithHint(explained(r), "first: sandpit start "+string(r.ID))
	case sandpit.StateArchived:
		return sandpit.WithHint(explained(r), "first: sandpit restore "+string(r.ID)+" && sandpit start "+string(r.ID))
	case sandpit.StateCreating, sandpit.StateResuming:
		return sandpit.Errorf(sandpit.Unavailable, "sandbox %s is %s", r.ID, r.State)
	default:
		return explained(r)
	}
}

func explained(r store.Row) error {
	if r.Reason == "" {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", r.ID, r.State)
	}
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s: %s", r.ID, r.State, r.Reason)
}

func gone(id sandpit.ID, reason string) error {
	return sandpit.Errorf(sandpit.Gone, "sandbox %s is gone: %s", id, reason)
}

func notFound(id sandpit.ID) error {
	return sandpit.Errorf(sandpit.NotFound, "Sandbox %.64s not found", string(id))
}
