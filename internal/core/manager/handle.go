package manager

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Handle is the right to use a sandbox for a while. While it is held the sandbox
// is not idle. All methods may be called concurrently.
type Handle struct {
	manager  *Manager
	box      *sandboxRecord
	instance sandpit.Instance
	ctx      context.Context //nolint:containedctx // this is what a handle is about
	cancel   context.CancelCauseFunc
	once     sync.Once
}

// Use returns a handle of a running sandbox, whose making or resuming it waits
// for. The caller must Release it. Where the sandbox's policy says so it is Wake.
//
// NotFound: no such sandbox. Gone: it was deleted, or is about to be; the error
// tells why. Conflict: it does not run. Unavailable: it cannot be reached.
func (m *Manager) Use(ctx context.Context, id sandpit.ID) (*Handle, error) {
	return m.useSandbox(ctx, id, false)
}

// Wake is Use that first resumes a paused sandbox or starts a stopped one; of
// several callers one does. An archived one is a Conflict.
//
// Unlike Use, it fails with Exhausted when there is no room for one more that
// runs.
func (m *Manager) Wake(ctx context.Context, id sandpit.ID) (*Handle, error) {
	return m.useSandbox(ctx, id, true)
}

// OnEnd has f called whenever all that runs in a sandbox is about to be ended, or has
// ended by itself, with the reason: when it is deleted or stopped, and when it is lost.
// f must return at once, and not call the manager. It is called until Close.
func (m *Manager) OnEnd(f func(id sandpit.ID, why error)) {
	m.core.onEnd.mu.Lock()
	defer m.core.onEnd.mu.Unlock()
	m.core.onEnd.list = append(m.core.onEnd.list, f)
}

// notifyEnd takes a sandbox, in which nothing will run any more, from its users. It
// reports whether they let go of it in time.
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

// takeHandle takes a handle. It returns none and no error if the sandbox has to be
// roused, or waited for.
func (m *Manager) takeHandle(ctx context.Context, rec *sandboxRecord, wake bool) (*Handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if m.core.closing.Load() { // asked under the lock, so that Close finds all handles
		return nil, errClosed
	}
	wake = wake || resumesOnUse(rec.row)
	switch rec.row.State {
	case sandpit.StateRunning:
		if rec.refusal != nil && (wake || rec.refusedIdle || rec.row.Policy.AutoSuspend > 0) {
			return nil, nil // whoever has the turn now, it comes afterwards
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
	default:
		return nil, stateError(rec.row)
	}
	h := &Handle{manager: m, box: rec, instance: rec.instance}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	rec.handles[h] = struct{}{}
	return h, nil
}

// resumeForUse waits for the turn and makes a sandbox ready to be used.
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
		default:
		}
		return stateError(row)
	})
}

// ID names the sandbox.
func (h *Handle) ID() sandpit.ID { return h.box.id }

// Provider is the name of the sandbox's provider.
func (h *Handle) Provider() string { return h.box.currentRow().Provider }

// Context ends when the handle is released, when the context of Use ends, or when
// the sandbox is taken from its users; context.Cause tells why then. Who uses the
// sandbox stops at once and releases the handle.
func (h *Handle) Context() context.Context { return h.ctx }

// Guest is the program inside.
func (h *Handle) Guest() sandpit.Guest { return h.instance.Guest() }

// HTTP reaches a TCP port inside.
func (h *Handle) HTTP(port int) http.RoundTripper { return h.instance.HTTP(port) }

// Instance is the sandbox as its provider has it. What changes its state is the
// Manager's business.
func (h *Handle) Instance() sandpit.Instance { return h.instance }

// Release gives the handle back. It is idempotent.
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

// resumeOnUse has a sandbox go on. Of all who have waited while somebody tried in vain, nobody
// tries again: they hear why it was in vain. before is how many tries had ended when the
// waiting began.
func (lc *lifecycle) resumeOnUse(ctx context.Context, rec *sandboxRecord, before int) error {
	rec.mu.Lock()
	tried, last := rec.resumeTries != before, rec.resumeErr
	rec.mu.Unlock()
	if tried && last != nil {
		return last
	}
	row := rec.currentRow()
	var err error
	if row.State == sandpit.StatePaused {
		err = lc.core.withEvent(resuming.verb, nil, lc.newTransition(resuming, ""))(ctx, rec)
	} else {
		err = lc.core.withEvent(starting.verb, nil, lc.newTransition(starting, ""))(ctx, rec)
	}
	if err != nil {
		err = fmt.Errorf("wake sandbox %s, which was %s: %w", rec.id, row.State, err)
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.resumeTries++
	rec.resumeErr = err
	return err
}

// countResumes is how many tries to wake a sandbox have ended.
func (rec *sandboxRecord) countResumes() int {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.resumeTries
}
