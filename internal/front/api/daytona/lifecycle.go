package daytona

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// changeSandbox makes a change of a sandbox and responds with the sandbox.
func (h *sandboxHandlers) changeSandbox(c *call, b sandpit.Sandbox, do func(context.Context, sandpit.ID) error) (int, any, error) {
	err := h.changes.run(c.r.Context(), func(ctx context.Context) error { return do(ctx, b.ID) })
	if err != nil {
		return 0, nil, h.describeConflict(b.ID, err)
	}
	return h.describer.respond(c, b.ID)
}

// describeConflict returns the error of a change that another one has overtaken, or that a quota does
// not permit, in the form of Daytona's API, and other errors as they are.
func (h *sandboxHandlers) describeConflict(id sandpit.ID, err error) error {
	if code := sandpit.CodeOf(err); code != sandpit.Conflict && code != sandpit.Unavailable {
		return describeQuota(err)
	}
	if b, missing := h.manager.Get(id); missing == nil {
		if changing := checkLasting(b); changing != nil {
			return changing
		}
	}
	return err
}

// startSandbox starts a stopped or archived sandbox, or resumes a paused one.
func (h *sandboxHandlers) startSandbox(c *call) (int, any, error) {
	b, err := h.findSandbox(c)
	if err == nil {
		err = checkState(b, "Sandbox is not in valid state", sandpit.StateStopped, sandpit.StateArchived, sandpit.StatePaused)
	}
	if err != nil {
		return 0, nil, err
	}
	do := h.manager.Start
	switch b.State {
	case sandpit.StatePaused:
		do = h.manager.Resume
	case sandpit.StateArchived:
		do = h.restoreAndStart
	default:
	}
	return h.changeSandbox(c, b, do)
}

func (h *sandboxHandlers) restoreAndStart(ctx context.Context, id sandpit.ID) error {
	if err := h.manager.Restore(ctx, id); err != nil {
		return err
	}
	return h.manager.Start(ctx, id)
}

// stopSandbox stops a sandbox, or deletes an ephemeral one.
func (h *sandboxHandlers) stopSandbox(c *call) (int, any, error) {
	b, err := h.findSandbox(c)
	if err == nil {
		err = checkState(b, "Sandbox is not in a stoppable state", sandpit.StateRunning, sandpit.StatePaused)
	}
	if err != nil {
		return 0, nil, err
	}
	do := h.manager.Stop
	if toIntervals(b.Policy).ephemeral() {
		do = h.manager.Delete
	}
	return h.changeSandbox(c, b, do)
}

// pauseSandbox pauses a sandbox: on disk, or in memory where sandboxes cannot be suspended.
func (h *sandboxHandlers) pauseSandbox(c *call) (int, any, error) {
	b, err := h.findSandbox(c)
	if err == nil {
		err = checkState(b, "Sandbox is not started", sandpit.StateRunning)
	}
	if err != nil {
		return 0, nil, err
	}
	return h.changeSandbox(c, b, func(ctx context.Context, id sandpit.ID) error {
		err := h.manager.Suspend(ctx, id)
		if sandpit.CodeOf(err) == sandpit.Unsupported {
			err = h.manager.Pause(ctx, id)
		}
		return err
	})
}

// archiveSandbox moves the files of a stopped sandbox to the archive.
func (h *sandboxHandlers) archiveSandbox(c *call) (int, any, error) {
	b, err := h.findSandbox(c)
	if err == nil && toIntervals(b.Policy).ephemeral() {
		err = refuse(http.StatusBadRequest, sandpit.Conflict, "Ephemeral sandboxes cannot be archived")
	}
	if err == nil {
		err = checkState(b, "Sandbox is not stopped", sandpit.StateStopped)
	}
	if err != nil {
		return 0, nil, err
	}
	return h.changeSandbox(c, b, h.manager.Archive)
}

// deleteSandbox deletes a sandbox, or cancels its creation while its image is being built.
func (h *sandboxHandlers) deleteSandbox(c *call) (int, any, error) {
	b, err := findSandbox(c, h.manager)
	if p, ok := h.findPending(c, err); ok {
		return h.deletePending(c, p)
	}
	if err != nil {
		return 0, nil, err
	}
	return h.changeSandbox(c, b, h.manager.Delete)
}

// forkSandbox creates a copy of a sandbox.
func (h *sandboxHandlers) forkSandbox(c *call) (int, any, error) {
	var in struct {
		Name string `json:"name"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	b, err := h.findSandbox(c)
	if err == nil {
		err = checkState(b, "Sandbox is not started", sandpit.StateRunning, sandpit.StatePaused)
	}
	if err == nil && in.Name != "" {
		err = sandpit.CheckName(in.Name)
	}
	if err != nil {
		return 0, nil, err
	}
	ctx := c.r.Context()
	all, err := h.manager.Snapshots().Fork(ctx, manager.ForkRequest{Sandbox: b.ID})
	if err != nil {
		return 0, nil, describeQuota(err)
	}
	if in.Name != "" {
		if err := h.manager.Rename(ctx, all[0].ID, in.Name); err != nil {
			return 0, nil, errors.Join(err, h.manager.Delete(context.WithoutCancel(ctx), all[0].ID))
		}
	}
	return h.describer.respond(c, all[0].ID)
}

// saveSandbox creates a snapshot of a sandbox, which keeps running.
func (h *sandboxHandlers) saveSandbox(c *call) (int, any, error) {
	var in struct {
		Name string `json:"name"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	b, err := h.findSandbox(c)
	if err == nil {
		err = checkState(b, "Sandbox is not started", sandpit.StateRunning, sandpit.StatePaused)
	}
	if err == nil && in.Name == "" {
		err = sandpit.Errorf(sandpit.Invalid, "name is missing")
	}
	if err != nil {
		return 0, nil, err
	}
	if _, err := h.manager.Snapshots().Create(c.r.Context(), b.ID, in.Name); err != nil {
		return 0, nil, describeQuota(err)
	}
	return h.describer.respond(c, b.ID)
}

// setLabels replaces the labels of a sandbox.
func (h *sandboxHandlers) setLabels(c *call) (int, any, error) {
	var in struct {
		Labels map[string]string `json:"labels"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	b, err := h.findSandbox(c)
	if err == nil && in.Labels == nil {
		err = sandpit.Errorf(sandpit.Invalid, "labels is missing")
	}
	if err != nil {
		return 0, nil, err
	}
	m, _ := markOf(b)
	labels, err := m.toLabels(in.Labels, b.Spec.Labels)
	if err != nil {
		return 0, nil, err
	}
	if err := h.manager.SetLabels(c.r.Context(), b.ID, labels); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, in, nil
}

// setPublic opens the ports of a sandbox to everyone, or closes them.
func (h *sandboxHandlers) setPublic(c *call) (int, any, error) {
	public, err := strconv.ParseBool(c.r.PathValue("public"))
	if err != nil {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "public %.40q: want true or false", c.r.PathValue("public"))
	}
	b, err := h.findSandbox(c)
	if err != nil {
		return 0, nil, err
	}
	m, _ := markOf(b)
	m.Public = public
	labels, err := m.toLabels(clientLabels(b), b.Spec.Labels)
	if err != nil {
		return 0, nil, err
	}
	if err := h.manager.SetLabels(c.r.Context(), b.ID, labels); err != nil {
		return 0, nil, err
	}
	return h.describer.respond(c, b.ID)
}

// recordActivity counts as a use of a running sandbox.
func (h *sandboxHandlers) recordActivity(c *call) (int, any, error) {
	b, err := h.findSandbox(c)
	if err == nil {
		err = checkState(b, "Sandbox is not started", sandpit.StateRunning)
	}
	if err != nil {
		return 0, nil, err
	}
	held, err := h.manager.Use(c.r.Context(), b.ID)
	if err != nil {
		return 0, nil, err
	}
	held.Release()
	return http.StatusCreated, nil, nil
}

// getToolboxURL returns the address of the toolbox API.
func (h *sandboxHandlers) getToolboxURL(c *call) (int, any, error) {
	_, err := findSandbox(c, h.manager)
	if _, ok := h.findPending(c, err); ok {
		err = nil // the address does not depend on the state
	}
	return http.StatusOK, urlAnswer{externalURL(c.r) + PathToolbox}, err
}

// urlAnswer is a response with a URL.
type urlAnswer struct {
	URL string `json:"url"`
}
