package native

import (
	"context"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

type leaseIn struct {
	SandboxPath

	Body wire.Lease
}

type policyIn struct {
	SandboxPath

	Body sandpit.Policy
}

type pauseIn struct {
	SandboxPath

	Disk bool `query:"disk" doc:"Suspend: save the memory to disk."`
}

type resizeIn struct {
	SandboxPath

	Body sandpit.Resources
}

type nameIn struct {
	SandboxPath

	Body wire.Name
}

type labelsIn struct {
	SandboxPath

	Body wire.Labels
}

// registerLifecycle adds the operations that change existing sandboxes.
func (h *sandboxHandlers) registerLifecycle(r *registrar) {
	for _, c := range []struct {
		verb, id, summary string
		do                func(context.Context, sandpit.ID) error
	}{
		{"stop", "stopSandbox", "Stop a sandbox: end its processes and keep its files", h.manager.Stop},
		{"start", "startSandbox", "Start a stopped sandbox", h.manager.Start},
		{"resume", "resumeSandbox", "Resume a paused sandbox", h.manager.Resume},
		{"checkpoint", "checkpointSandbox", "Save the files of a running sandbox for recovery", h.manager.Checkpoint},
		{"archive", "archiveSandbox", "Move the files of a stopped sandbox to cheaper storage", h.manager.Archive},
		{"restore", "restoreSandbox", "Move the files of an archived sandbox back", h.manager.Restore},
	} {
		op := newOperation(http.MethodPost, pathSandbox+"/"+c.verb, c.id, c.summary)
		op.DefaultStatus = http.StatusOK
		addOperation(r, op, func(ctx context.Context, in *SandboxPath) (*sandboxOut, error) {
			return changeSandbox(ctx, h.manager, in.ID, c.do)
		})
	}
	op := newOperation(http.MethodPost, pathSandbox+"/pause", "pauseSandbox", "Pause a sandbox in memory or on disk")
	op.Description = "Paused on disk (suspended), a sandbox uses no memory and survives a restart of the machine. " +
		"A sandbox that is paused in memory can also be paused on disk."
	op.DefaultStatus = http.StatusOK
	addOperation(r, op, h.pauseSandbox)
	op = newOperation(http.MethodPut, pathSandbox+"/lease", "setLease", "Replace the deadline of a sandbox")
	op.Description = "Give either timeout_seconds or deadline. Without an action, the sandbox keeps its action."
	addOperation(r, op, h.setLease)
	op = newOperation(http.MethodPut, pathSandbox+"/policy", "setPolicy", "Replace the policy of a sandbox")
	op.Description = "Missing fields get the defaults of a new sandbox. The request counts as a use of the sandbox. Responses about a sandbox contain its policy."
	addOperation(r, op, h.setPolicy)
	op = newOperation(http.MethodPost, pathSandbox+"/resize", "resizeSandbox", "Change the limits of a sandbox")
	op.Description = "Limits that are missing or 0 do not change. A running sandbox gets more memory and CPU time at once, but no more CPUs than it was started with. " +
		"Less of both, and another size of the disk or number of processes, need a stopped sandbox, which has them from its next start."
	op.DefaultStatus = http.StatusOK
	addOperation(r, op, h.resizeSandbox)
	op = newOperation(http.MethodPut, pathSandbox+"/name", "renameSandbox", "Replace the name of a sandbox")
	op.Description = "No other sandbox of the owner may have the same name. A sandbox in any state can be renamed."
	addOperation(r, op, func(ctx context.Context, in *nameIn) (*sandboxOut, error) {
		return changeSandbox(ctx, h.manager, in.ID, func(ctx context.Context, id sandpit.ID) error {
			return h.manager.Rename(ctx, id, in.Body.Name)
		})
	})
	addOperation(r, newOperation(http.MethodPut, pathSandbox+"/labels", "setLabels", "Replace the labels of a sandbox"),
		func(ctx context.Context, in *labelsIn) (*sandboxOut, error) {
			return changeSandbox(ctx, h.manager, in.ID, func(ctx context.Context, id sandpit.ID) error {
				return h.manager.SetLabels(ctx, id, in.Body.Labels)
			})
		})
}

// changeSandbox calls do for a sandbox that the client may use, and returns the sandbox as
// it is afterwards.
func changeSandbox(ctx context.Context, m *manager.Manager, id sandpit.ID, do func(context.Context, sandpit.ID) error) (*sandboxOut, error) {
	if _, err := api.Find(ctx, m, id); err != nil {
		return nil, err
	}
	if err := do(ctx, id); err != nil {
		return nil, err
	}
	return getSandbox(ctx, m, id)
}

func (h *sandboxHandlers) pauseSandbox(ctx context.Context, in *pauseIn) (*sandboxOut, error) {
	if in.Disk {
		return changeSandbox(ctx, h.manager, in.ID, h.manager.Suspend)
	}
	return changeSandbox(ctx, h.manager, in.ID, h.manager.Pause)
}

func (h *sandboxHandlers) setPolicy(ctx context.Context, in *policyIn) (*sandboxOut, error) {
	return changeSandbox(ctx, h.manager, in.ID, func(ctx context.Context, id sandpit.ID) error {
		return h.manager.SetPolicy(ctx, id, in.Body)
	})
}

func (h *sandboxHandlers) resizeSandbox(ctx context.Context, in *resizeIn) (*sandboxOut, error) {
	return changeSandbox(ctx, h.manager, in.ID, func(ctx context.Context, id sandpit.ID) error {
		if in.Body == (sandpit.Resources{}) {
			return sandpit.Errorf(sandpit.Invalid, "a resize without a limit")
		}
		return h.manager.Resize(ctx, id, in.Body)
	})
}

func (h *sandboxHandlers) setLease(ctx context.Context, in *leaseIn) (*sandboxOut, error) {
	lease := sandpit.Lease{Deadline: in.Body.Deadline, Action: in.Body.Action}
	switch {
	case !lease.Deadline.IsZero():
	case in.Body.Timeout == 0:
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "a lease without timeout_seconds and deadline"),
			"for no deadline send a timeout_seconds below zero")
	case in.Body.Timeout > 0:
		d, err := toDuration("timeout_seconds", in.Body.Timeout)
		if err != nil {
			return nil, err
		}
		lease.Deadline = time.Now().Add(d)
	}
	return changeSandbox(ctx, h.manager, in.ID, func(ctx context.Context, id sandpit.ID) error {
		return h.manager.SetDeadline(ctx, id, lease)
	})
}
