package daytona

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// recoverSandbox lets a sandbox in the state error run again. With skipStart it is stopped afterwards.
//
// A sandbox gets into this state if the server ended while its state changed and its provider then
// refused to finish the change, if it was lost and could not be recreated yet, or if it could not be
// created after the build of its image.
func (h *sandboxHandlers) recoverSandbox(c *call) (int, any, error) {
	skip, err := parseBool(c.r.URL.Query(), "skipStart")
	if err != nil {
		return 0, nil, err
	}
	b, err := findSandbox(c, h.manager)
	if p, ok := h.findPending(c, err); ok {
		return h.recoverPending(c, p, skip != nil && *skip)
	}
	if err == nil {
		err = h.checkRecoverable(b)
	}
	if err != nil {
		return 0, nil, err
	}
	return h.changeSandbox(c, b, func(ctx context.Context, id sandpit.ID) error {
		err := h.manager.Recover(ctx, id)
		if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.Gone {
			return refuse(http.StatusBadRequest, sandpit.Conflict, "Sandbox is not recoverable: %w", err)
		}
		if err == nil && skip != nil && *skip {
			err = h.manager.Stop(ctx, id)
		}
		return err
	})
}

// checkRecoverable returns an error unless a sandbox is in the state error and can be recovered.
func (h *sandboxHandlers) checkRecoverable(b sandpit.Sandbox) error {
	if err := checkLasting(b); err != nil {
		return err
	}
	switch {
	case b.State != sandpit.StateError:
		return refuse(http.StatusBadRequest, sandpit.Conflict, "Sandbox must be in error state to recover: sandbox %s is %s", b.ID, toState(b.State).now)
	case !h.manager.IsRecoverable(b.ID):
		return refuse(http.StatusBadRequest, sandpit.Conflict, "Sandbox is not recoverable: %s", b.Reason)
	}
	return nil
}

// isRecoverable reports whether the sandbox could not be created although its image was built.
func (p pendingSandbox) isRecoverable() bool { return p.state == stateError }

// recoverPending creates a sandbox that could not be created after the build of its image.
func (h *sandboxHandlers) recoverPending(c *call, p pendingSandbox, skipStart bool) (int, any, error) {
	switch {
	case p.failure == "":
		return 0, nil, p.refuse()
	case !p.isRecoverable():
		return 0, nil, refuse(http.StatusBadRequest, sandpit.Conflict, "Sandbox is not recoverable: %s", p.failure)
	case skipStart:
		return 0, nil, refuse(http.StatusBadRequest, sandpit.Conflict, "Sandbox cannot be recovered without a start: it was never created")
	}
	var stored pendingRequest
	if err := json.Unmarshal(p.row.Request, &stored); err != nil {
		return 0, nil, sandpit.Errorf(sandpit.Internal, "decode a request: %w", err)
	}
	ctx := context.WithoutCancel(c.r.Context())
	again, err := h.pending.retry(ctx, p.about.ID)
	if err != nil {
		return 0, nil, err
	}
	begun := *again // which changes in the background
	if err := h.repeatRequest(ctx, again, stored.Request); err != nil {
		h.pending.fail(ctx, p.about.ID, stateError, err)
		return 0, nil, describeQuota(err)
	}
	out, err := h.describePending(c, begun)
	return http.StatusOK, out, err
}

// retry has a sandbox that failed wait again. Conflict: it was deleted or does so already.
func (s *pendingSet) retry(ctx context.Context, id sandpit.ID) (*pendingSandbox, error) {
	s.mu.Lock()
	p := s.all[id]
	if p == nil || !p.isRecoverable() {
		s.mu.Unlock()
		return nil, refuse(http.StatusConflict, sandpit.Conflict, "Sandbox state change in progress: sandbox %s", id)
	}
	reason := p.failure
	p.state, p.failure, p.ended = stateBuilding, "", time.Time{}
	p.row.State, p.row.Reason, p.row.EndedAt = "", "", time.Time{}
	row := p.row
	s.mu.Unlock()
	if s.store == nil {
		return p, nil
	}
	if err := s.store.Save(ctx, row); err != nil {
		s.fail(ctx, id, stateError, sandpit.Errorf(sandpit.Unavailable, "%s", reason))
		return nil, err
	}
	return p, nil
}
