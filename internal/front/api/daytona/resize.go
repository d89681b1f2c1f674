package daytona

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
)

// resizeRequest is a request for other limits. Those that are left out do not change.
type resizeRequest struct {
	CPU    *float64 `json:"cpu"`
	Memory *float64 `json:"memory"`
	Disk   *float64 `json:"disk"`
}

// resizeSandbox changes the limits of a sandbox. As with Daytona, processors and memory of one that
// runs only grow; of a stopped one they change either way, and its disk grows.
func (h *sandboxHandlers) resizeSandbox(c *call) (int, any, error) {
	var in resizeRequest
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	b, err := h.findSandbox(c)
	if err == nil {
		err = checkState(b, "Sandbox must be started or stopped to be resized", sandpit.StateRunning, sandpit.StateStopped)
	}
	if err != nil {
		return 0, nil, err
	}
	now := h.describer.toItem("", b)
	changes, err := in.toChanges(now)
	if err != nil {
		return 0, nil, err
	}
	if err := in.checkGrowth(now, b.State == sandpit.StateRunning); err != nil {
		return 0, nil, err
	}
	return h.changeSandbox(c, b, func(ctx context.Context, id sandpit.ID) error {
		return describeUnsuitable(h.manager.Resize(ctx, id, changes))
	})
}

// toChanges returns the limits that differ from those of a sandbox.
func (in resizeRequest) toChanges(now sandboxItem) (sandpit.Resources, error) {
	wanted := func(asked *float64, has float64) float64 {
		if asked == nil || *asked == has {
			return 0
		}
		return *asked
	}
	for name, asked := range map[string]*float64{"cpu": in.CPU, "memory": in.Memory, "disk": in.Disk} {
		if asked != nil && !(*asked > 0) {
			return sandpit.Resources{}, sandpit.Errorf(sandpit.Invalid, "%s %v: want more than 0", name, *asked)
		}
	}
	changes, err := toResources(wanted(in.CPU, now.CPU), wanted(in.Memory, now.Memory), wanted(in.Disk, now.Disk))
	if err == nil && changes == (sandpit.Resources{}) {
		err = refuse(http.StatusBadRequest, sandpit.Invalid, "No resource changes specified")
	}
	return changes, err
}

// checkGrowth refuses limits that are lower than those of a sandbox, unless it is stopped and they
// are no disk's.
func (in resizeRequest) checkGrowth(now sandboxItem, running bool) error {
	isLower := func(asked *float64, has float64) bool { return asked != nil && *asked < has }
	switch {
	case running && isLower(in.CPU, now.CPU):
		return refuse(http.StatusBadRequest, sandpit.Conflict, "cpu %v: a started sandbox has %v and only grows; stop it first", *in.CPU, now.CPU)
	case running && isLower(in.Memory, now.Memory):
		return refuse(http.StatusBadRequest, sandpit.Conflict, "memory %v: a started sandbox has %v GiB and only grows; stop it first", *in.Memory, now.Memory)
	case running && in.Disk != nil && *in.Disk != now.Disk:
		return refuse(http.StatusBadRequest, sandpit.Conflict, "disk %v: the disk of a started sandbox cannot be changed; stop it first", *in.Disk)
	case isLower(in.Disk, now.Disk):
		return refuse(http.StatusBadRequest, sandpit.Invalid, "disk %v: the disk has %v GiB and only grows", *in.Disk, now.Disk)
	}
	return nil
}

// describeUnsuitable returns the error of a change that the present state of a sandbox does not
// permit with the status of Daytona's API, and other errors as they are.
func describeUnsuitable(err error) error {
	if sandpit.CodeOf(err) != sandpit.Conflict {
		return err
	}
	return &statusError{err, http.StatusBadRequest}
}
