package e2b

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// The timeouts of requests without one.
const (
	defaultTimeoutV1 = 15 * time.Second
	defaultTimeout   = 300 * time.Second
	// resumeTime is how long a sandbox runs after a request has resumed it.
	resumeTime = 300 * time.Second
)

// parseSeconds converts a number of seconds, or returns the default.
func parseSeconds(name string, n *int64, usual time.Duration, least int64) (time.Duration, error) {
	if n == nil {
		return usual, nil
	}
	if *n < least || *n > math.MaxInt32 {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s %d: want %d to %d seconds", name, *n, least, math.MaxInt32)
	}
	return time.Duration(*n) * time.Second, nil
}

// timeoutRequest has what calls say about time and memory.
type timeoutRequest struct {
	Timeout  *int64 `json:"timeout"`
	Duration *int64 `json:"duration"`
	Memory   *bool  `json:"memory"`
}

// readTimed reads the body of a call on a sandbox and finds the sandbox.
func (h *sandboxHandlers) readTimed(c *call) (in timeoutRequest, b sandpit.Sandbox, err error) {
	if err = c.readBody(&in); err == nil {
		b, err = findSandbox(c, h.manager)
	}
	return in, b, err
}

// setLease sets the deadline of a sandbox to a time from now.
func setLease(ctx context.Context, m *manager.Manager, b sandpit.Sandbox, d time.Duration, action sandpit.Action) error {
	return m.SetDeadline(ctx, b.ID, sandpit.Lease{Deadline: time.Now().Add(d), Action: action})
}

// extendLease moves the deadline of a sandbox to a time from now, but not to an earlier time.
func (h *sandboxHandlers) extendLease(ctx context.Context, b sandpit.Sandbox, d time.Duration) error {
	if b.Lease.Deadline.IsZero() || b.Lease.Deadline.After(time.Now().Add(d)) {
		return nil
	}
	m, _ := markOf(b)
	return setLease(ctx, h.manager, b, d, m.Timeout)
}

func isRunning(b sandpit.Sandbox) bool {
	return b.State == sandpit.StateRunning || b.State == sandpit.StateCreating || b.State == sandpit.StateResuming
}

// setTimeout sets the deadline of a sandbox to a time from now; 0 ends it at once.
func (h *sandboxHandlers) setTimeout(c *call) (int, any, error) {
	in, b, err := h.readTimed(c)
	if err != nil {
		return 0, nil, err
	}
	if in.Timeout == nil {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "timeout is missing")
	}
	d, err := parseSeconds("timeout", in.Timeout, 0, 0)
	switch {
	case err != nil:
	case !isRunning(b):
		err = sandpit.Errorf(sandpit.Conflict, "sandbox %s is not running", b.ID)
	default:
		m, _ := markOf(b)
		err = setLease(c.r.Context(), h.manager, b, max(d, time.Millisecond*100), m.Timeout)
	}
	return http.StatusNoContent, nil, err
}

// extendTimeout moves the deadline of a sandbox to a later time.
func (h *sandboxHandlers) extendTimeout(c *call) (int, any, error) {
	in, b, err := h.readTimed(c)
	if err != nil {
		return 0, nil, err
	}
	d, err := parseSeconds("duration", in.Duration, defaultTimeoutV1, 0)
	switch {
	case err != nil:
	case !isRunning(b):
		err = sandpit.Errorf(sandpit.Conflict, "sandbox %s is not running", b.ID)
	default:
		err = h.extendLease(c.r.Context(), b, d)
	}
	return http.StatusNoContent, nil, err
}

// deleteSandbox deletes a sandbox.
func (h *sandboxHandlers) deleteSandbox(c *call) (int, any, error) {
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.manager.Delete(c.r.Context(), b.ID)
}

// pauseSandbox pauses a sandbox, or stops it if the client does not want to keep its memory.
func (h *sandboxHandlers) pauseSandbox(c *call) (int, any, error) {
	in, b, err := h.readTimed(c)
	if err != nil {
		return 0, nil, err
	}
	if b.State != sandpit.StateRunning {
		return 0, nil, sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", b.ID, b.State)
	}
	ctx := c.r.Context()
	action, do := sandpit.ActionPause, h.manager.Pause
	if in.Memory != nil && !*in.Memory {
		action, do = sandpit.ActionStop, h.manager.Stop
	}
	// A paused sandbox must not be killed at the deadline, even if pausing fails halfway.
	lease := sandpit.Lease{Deadline: b.Lease.Deadline, Action: action}
	if err := h.manager.SetDeadline(ctx, b.ID, lease); err != nil {
		return 0, nil, err
	}
	if err := do(ctx, b.ID); err != nil {
		return 0, nil, errors.Join(err, h.manager.SetDeadline(ctx, b.ID, b.Lease))
	}
	return http.StatusNoContent, nil, nil
}

// connectSandbox returns what a client needs to use a sandbox, and resumes it first if
// necessary. It does not move the deadline of a running sandbox to an earlier time.
func (h *sandboxHandlers) connectSandbox(c *call) (int, any, error) {
	in, b, err := h.readTimed(c)
	if err != nil {
		return 0, nil, err
	}
	d, err := parseSeconds("timeout", in.Timeout, defaultTimeout, 0)
	if err != nil {
		return 0, nil, err
	}
	if isRunning(b) {
		if err := h.extendLease(c.r.Context(), b, d); err != nil {
			return 0, nil, err
		}
		return h.respondWithSandbox(c, http.StatusOK, b)
	}
	if in.Memory != nil && !*in.Memory && b.State == sandpit.StatePaused {
		if err := h.manager.Stop(c.r.Context(), b.ID); err != nil {
			return 0, nil, err
		}
	}
	if err := h.resumeFor(c.r.Context(), b, d); err != nil {
		return 0, nil, err
	}
	return h.respondWithSandbox(c, http.StatusCreated, b)
}

// resumeSandbox resumes a paused sandbox.
func (h *sandboxHandlers) resumeSandbox(c *call) (int, any, error) {
	in, b, err := h.readTimed(c)
	if err != nil {
		return 0, nil, err
	}
	if isRunning(b) {
		return 0, nil, sandpit.Errorf(sandpit.Conflict, "sandbox %s is running", b.ID)
	}
	d, err := parseSeconds("timeout", in.Timeout, defaultTimeoutV1, 1)
	if err != nil {
		return 0, nil, err
	}
	if err := h.resumeFor(c.r.Context(), b, d); err != nil {
		return 0, nil, err
	}
	return h.respondWithSandbox(c, http.StatusCreated, b)
}

// Wake resumes a paused sandbox for a while, for a request to one of its ports. Errors are
// those of manager.Wake.
func (s *Server) Wake(ctx context.Context, id sandpit.ID) error {
	b, err := s.sandboxes.manager.Get(id)
	if err != nil {
		return err
	}
	return s.sandboxes.resumeFor(ctx, b, resumeTime)
}

// resumeFor resumes a paused sandbox for a time.
func (h *sandboxHandlers) resumeFor(ctx context.Context, b sandpit.Sandbox, d time.Duration) error {
	m, _ := markOf(b)
	// It must not be killed at its new deadline before it runs.
	if err := setLease(ctx, h.manager, b, max(d, time.Second), sandpit.ActionPause); err != nil {
		return err
	}
	held, err := h.manager.Wake(ctx, b.ID)
	if err != nil {
		return err
	}
	defer held.Release()
	if m.Timeout == sandpit.ActionPause {
		return nil
	}
	return setLease(ctx, h.manager, b, max(d, time.Second), m.Timeout)
}
