package native

import (
	"context"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

type leaseIn struct {
	One

	Body wire.Lease
}

type policyIn struct {
	One

	Body wire.Policy
}

type pauseIn struct {
	One

	Disk bool `query:"disk" doc:"Keep its memory on disk."`
}

type nameIn struct {
	One

	Body wire.Name
}

type labelsIn struct {
	One

	Body wire.Labels
}

// changes registers what changes sandboxes that are there.
func (s *server) changes() {
	for _, c := range []struct {
		verb, id, summary string
		do                func(context.Context, sandpit.ID) error
	}{
		{"stop", "stopSandbox", "End the processes of a sandbox, its files kept", s.Manager.Stop},
		{"start", "startSandbox", "Start a stopped sandbox", s.Manager.Start},
		{"resume", "resumeSandbox", "Let a paused sandbox go on", s.Manager.Resume},
		{"checkpoint", "checkpointSandbox", "Save the files of a running sandbox, for when it breaks down", s.Manager.Checkpoint},
		{"archive", "archiveSandbox", "Move the files of a stopped sandbox to where they cost little", s.Manager.Archive},
		{"restore", "restoreSandbox", "Move the files of an archived sandbox back", s.Manager.Restore},
	} {
		op := operation(http.MethodPost, pathSandbox+"/"+c.verb, c.id, c.summary)
		op.DefaultStatus = http.StatusOK
		add(s, op, func(ctx context.Context, in *One) (*sandboxOut, error) { return s.change(ctx, in.ID, c.do) })
	}
	op := operation(http.MethodPost, pathSandbox+"/pause", "pauseSandbox", "Hold a sandbox still, its memory kept")
	op.Description = "On disk its memory takes up none of the machine's, and it survives the machine. " +
		"One that is paused in memory may be paused on disk, too."
	op.DefaultStatus = http.StatusOK
	add(s, op, s.pause)
	op = operation(http.MethodPut, pathSandbox+"/lease", "setLease", "Replace the deadline of a sandbox")
	op.Description = "Either timeout_seconds or deadline is given. Without an action, the sandbox keeps the one it has."
	add(s, op, s.setLease)
	op = operation(http.MethodPut, pathSandbox+"/policy", "setPolicy", "Replace the policy of a sandbox")
	op.Description = "The policy of a sandbox is in each answer about it. What is left out gets the default of a new sandbox. It counts as a use."
	add(s, op, s.setPolicy)
	op = operation(http.MethodPut, pathSandbox+"/name", "renameSandbox", "Replace the name of a sandbox")
	op.Description = "No other sandbox of the owner may have it. A sandbox in any state can be renamed."
	add(s, op, func(ctx context.Context, in *nameIn) (*sandboxOut, error) {
		return s.change(ctx, in.ID, func(ctx context.Context, id sandpit.ID) error {
			return s.Manager.Rename(ctx, id, in.Body.Name)
		})
	})
	add(s, operation(http.MethodPut, pathSandbox+"/labels", "setLabels", "Replace the labels of a sandbox"),
		func(ctx context.Context, in *labelsIn) (*sandboxOut, error) {
			return s.change(ctx, in.ID, func(ctx context.Context, id sandpit.ID) error {
				return s.Manager.SetLabels(ctx, id, in.Body.Labels)
			})
		})
}

// change does something to a sandbox that the maker of the request may touch, and
// returns it as it is then.
func (s *server) change(ctx context.Context, id sandpit.ID, do func(context.Context, sandpit.ID) error) (*sandboxOut, error) {
	if _, err := api.Find(ctx, s.Manager, id); err != nil {
		return nil, err
	}
	if err := do(ctx, id); err != nil {
		return nil, err
	}
	return s.look(ctx, id)
}

func (s *server) pause(ctx context.Context, in *pauseIn) (*sandboxOut, error) {
	if in.Disk {
		return s.change(ctx, in.ID, s.Manager.Suspend)
	}
	return s.change(ctx, in.ID, s.Manager.Pause)
}

func (s *server) setPolicy(ctx context.Context, in *policyIn) (*sandboxOut, error) {
	p, err := policy(in.Body)
	if err != nil {
		return nil, err
	}
	return s.change(ctx, in.ID, func(ctx context.Context, id sandpit.ID) error {
		return s.Manager.SetPolicy(ctx, id, p)
	})
}

func (s *server) setLease(ctx context.Context, in *leaseIn) (*sandboxOut, error) {
	lease := sandpit.Lease{Deadline: in.Body.Deadline, Action: in.Body.Action}
	switch {
	case !lease.Deadline.IsZero():
	case in.Body.Timeout == 0:
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "a lease without timeout_seconds and deadline"),
			"for no deadline send a timeout_seconds below zero")
	case in.Body.Timeout > 0:
		d, err := seconds("timeout_seconds", in.Body.Timeout)
		if err != nil {
			return nil, err
		}
		lease.Deadline = time.Now().Add(d)
	}
	return s.change(ctx, in.ID, func(ctx context.Context, id sandpit.ID) error {
		return s.Manager.SetDeadline(ctx, id, lease)
	})
}
