package manager

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Handle is the right to use a sandbox. While a handle is held, the sandbox is not idle. All
// methods may be called concurrently.
type Handle struct {
	manager  *Manager
	box      *sandboxRecord
	instance sandpit.Instance
	ctx      context.Context //nolint:containedctx // this is what a handle is about
	cancel   context.CancelCauseFunc
	once     sync.Once
}

// Use returns a handle of a running sandbox. It waits for a sandbox that is being created or
// resumed. If the sandbox's policy resumes it on use, Use is Wake. The caller must call Release.
//
// NotFound: no such sandbox. Gone: it was deleted, or is about to be; the error gives the reason.
// Conflict: it does not run. Unavailable: it cannot be reached.
func (m *Manager) Use(ctx context.Context, id sandpit.ID) (*Handle, error) {
	return m.useSandbox(ctx, id, false)
}

// Wake is Use, and first resumes a paused sandbox or starts a stopped one. Of several callers, one
// does it and the others wait. An archived sandbox is a Conflict.
//
// Unlike Use, it fails with Exhausted when there is no room for another running sandbox.
func (m *Manager) Wake(ctx context.Context, id sandpit.ID) (*Handle, error) {
	return m.useSandbox(ctx, id, true)
}

// OnEnd registers a function that is called, with the reason, whenever all processes of a sandbox
// are about to be ended or have ended: when it is deleted or stopped, and when it is lost. The
// function must return at once, and must not call the manager. It is called until Close.
func (m *Manager) OnEnd(f func(id sandpit.ID, why error)) {
	m.core.onEnd.mu.Lock()
	defer m.core.onEnd.mu.Unlock()
	m.core.onEnd.list = append(m.core.onEnd.list, f)
}

// OnState registers a function that is called after the state of a sandbox has changed, with the
// sandbox and its previous state. Spares of pools are left out. The function must return at once,
// and must not call the manager. It is called until Close.
func (m *Manager) OnState(f func(b sandpit.Sandbox, from sandpit.State)) {
	m.records.states.add(f)
}

// stateListeners are the functions of OnState. All methods may be called concurrently.
type stateListeners struct {
	mu   sync.Mutex
	list []func(b sandpit.Sandbox, from sandpit.State)
}

func (l *stateListeners) add(f func(b sandpit.Sandbox, from sandpit.State)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, f)
}

// notify calls the functions for a change of a sandbox.
func (l *stateListeners) notify(rec *sandboxRecord, from sandpit.State) {
	l.mu.Lock()
	list := l.list
	l.mu.Unlock()
	if len(list) == 0 || rec.currentRow().Pool != "" {
		return
	}
	b := rec.toSandbox()
	for _, f := range list {
		f(b, from)
	}
}

// notifyEnd calls the functions of OnEnd and takes a sandbox, in which nothing will run any more,
// from its users. It reports whether they released it in time.
func (c *core) notifyEnd(rec *sandboxRecord, why error) bool {
	c.onEnd.mu.Lock()
	list := c.onEnd.list
	c.onEnd.mu.Unlock()
	for _, f := range list {
		f(rec.id, why)
	}
	return rec.evictHandles(why, c.o.Drain)
}

func (m *Manager) useSandbox(ctx context.Context, id sandpit.ID, wake bool) (*Handle, error) {
	rec, err := m.sandboxes.findVisible(id)
	if err != nil {
		return nil, err
	}
	m.states.confirmForUse(ctx, rec)
	for {
		h, err := m.takeHandle(ctx, rec, wake)
		if err == nil && h == nil {
			err = m.resumeForUse(ctx, rec, wake, rec.countResumes())
		}
		if err != nil {
			return nil, addSubject(err, sandpit.Subject{Provider: rec.currentRow().Provider, Sandbox: id})
		}
		if h != nil {
			m.wall.noteUse(ctx, rec)
			return h, nil
		}
	}
}

// takeHandle returns a new handle. It returns neither a handle nor an error if the sandbox has to
// be resumed or waited for.
func (m *Manager) takeHandle(ctx context.Context, rec *sandboxRecord, wake bool) (*Handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if m.core.closing.Load() { // checked under the lock, so that Close finds all handles
		return nil, errClosed
	}
	wake = wake || resumesOnUse(rec.row)
	switch rec.row.State {
	case sandpit.StateRunning:
		if rec.refusal != nil && (wake || rec.refusedIdle || rec.row.Policy.AutoSuspend > 0) {
			return nil, nil // resumed after the current holder of the lock has ended it
		}
		if rec.refusal != nil {
			return nil, rec.refusal
		}
		if rec.instance == nil {
			return nil, nil
		}
	case sandpit.StateCreating, sandpit.StateResuming:
		return nil, nil
	case sandpit.StatePaused, sandpit.StateStopped, sandpit.StatePausing, sandpit.StateStopping:
		if wake {
			return nil, nil
		}
		return nil, stateError(rec.row)
	case sandpit.StateArchived, sandpit.StateArchiving, sandpit.StateRestoring:
		if rec.row.Idled { // its provider has archived it
			return nil, nil
		}
		return nil, stateError(rec.row)
	default:
		return nil, stateError(rec.row)
	}
	h := &Handle{manager: m, box: rec, instance: rec.instance}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	rec.handles[h] = struct{}{}
	return h, nil
}

// resumeForUse waits for the lock and makes a sandbox ready to be used.
func (m *Manager) resumeForUse(ctx context.Context, rec *sandboxRecord, wake bool, before int) error {
	return m.core.runLocked(ctx, rec, func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		switch row.State {
		case sandpit.StateRunning:
			_, err := m.instances.ensureAttached(ctx, rec)
			return err
		case sandpit.StatePaused, sandpit.StateStopped:
			if wake || resumesOnUse(row) {
				return m.lifecycle.resumeOnUse(ctx, rec, before)
			}
		case sandpit.StateArchived:
			if row.Idled {
				return m.lifecycle.resumeOnUse(ctx, rec, before)
			}
		default:
		}
		return stateError(row)
	})
}

// ID returns the sandbox's ID.
func (h *Handle) ID() sandpit.ID { return h.box.id }

// Provider returns the name of the sandbox's provider.
func (h *Handle) Provider() string { return h.box.currentRow().Provider }

// Context ends when the handle is released, when the context of Use ends, or when the sandbox is
// taken from its users; context.Cause gives the reason. The holder then stops using the sandbox at
// once and releases the handle.
func (h *Handle) Context() context.Context { return h.ctx }

// Guest returns the sandbox's guest.
func (h *Handle) Guest() sandpit.Guest { return h.instance.Guest() }

// HTTP returns a transport to a TCP port of the sandbox.
func (h *Handle) HTTP(port int) http.RoundTripper { return h.instance.HTTP(port) }

// Instance returns the provider's instance. Only the manager may change its state.
func (h *Handle) Instance() sandpit.Instance { return h.instance }

// Release releases the handle. It is idempotent.
func (h *Handle) Release() {
	h.once.Do(func() {
		h.manager.wall.noteUse(h.manager.core.loops.ctx, h.box)
		h.cancel(nil)
		h.box.releaseHandle(h)
		h.manager.core.triggerSweep()
	})
}

// resumesOnUse reports whether using a paused or stopped sandbox resumes it.
func resumesOnUse(r store.Row) bool {
	return r.Policy.WakeOnUse || r.Idled || r.Policy.AutoSuspend > 0 && r.Suspended
}

// isResumable reports whether a sandbox in this state can be resumed by using it.
func isResumable(s sandpit.State) bool {
	return s == sandpit.StatePaused || s == sandpit.StateStopped
}

// resumesNow reports whether the next use of a sandbox makes it run.
func resumesNow(r store.Row) bool {
	return isResumable(r.State) && resumesOnUse(r) || r.State == sandpit.StateArchived && r.Idled
}

// resumeOnUse resumes or starts a sandbox that is used. If an attempt by another caller failed
// while this caller waited, it returns that error and does not try again. before is the number of
// attempts that had ended when the wait began.
func (lc *lifecycle) resumeOnUse(ctx context.Context, rec *sandboxRecord, before int) error {
	rec.mu.Lock()
	tried, last := rec.resumeTries != before, rec.resumeErr
	rec.mu.Unlock()
	if tried && last != nil {
		return last
	}
	row := rec.currentRow()
	steps := []transition{starting}
	switch row.State {
	case sandpit.StatePaused:
		steps[0] = resuming
	case sandpit.StateArchived:
		back := restoring
		back.idle = true // until it runs
		steps = []transition{back, starting}
	default:
	}
	var err error
	for _, v := range steps {
		if err == nil {
			err = lc.core.withEvent(v.verb, nil, lc.newTransition(v, ""))(ctx, rec)
		}
	}
	if err != nil {
		err = fmt.Errorf("resume sandbox %s, which was %s: %w", rec.id, row.State, err)
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.resumeTries++
	rec.resumeErr = err
	return err
}

// countResumes returns how many attempts to resume the sandbox on use have ended.
func (rec *sandboxRecord) countResumes() int {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.resumeTries
}
