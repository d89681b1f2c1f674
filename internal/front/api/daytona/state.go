package daytona

import (
	"net/http"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// The states of Daytona's API that sandboxes can have here.
const (
	stateCreating   = "creating"
	stateStarted    = "started"
	stateStarting   = "starting"
	stateStopping   = "stopping"
	stateStopped    = "stopped"
	statePausing    = "pausing"
	statePaused     = "paused"
	stateArchiving  = "archiving"
	stateArchived   = "archived"
	stateRestoring  = "restoring"
	stateError      = "error"
	stateDestroying = "destroying"
	stateDestroyed  = "destroyed"
	stateUnknown    = "unknown"

	// Of sandboxes that wait for the build of their image.
	statePendingBuild = "pending_build"
	stateBuilding     = "building_snapshot"
	stateBuildFailed  = "build_failed"
)

// stateName is a state of Daytona's API, and the state that the sandbox is to have.
type stateName struct{ now, desired string }

var stateNames = map[sandpit.State]stateName{
	sandpit.StateCreating:  {stateCreating, stateStarted},
	sandpit.StateRunning:   {stateStarted, stateStarted},
	sandpit.StatePausing:   {statePausing, statePaused},
	sandpit.StatePaused:    {statePaused, statePaused},
	sandpit.StateResuming:  {stateStarting, stateStarted},
	sandpit.StateStopping:  {stateStopping, stateStopped},
	sandpit.StateStopped:   {stateStopped, stateStopped},
	sandpit.StateArchiving: {stateArchiving, stateArchived},
	sandpit.StateArchived:  {stateArchived, stateArchived},
	sandpit.StateRestoring: {stateRestoring, stateStarted},
	sandpit.StateError:     {stateError, stateStarted},
	sandpit.StateDeleting:  {stateDestroying, stateDestroyed},
	sandpit.StateDeleted:   {stateDestroyed, stateDestroyed},
}

// toState returns the names of a state.
func toState(s sandpit.State) stateName {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return stateName{stateUnknown, stateStarted}
}

// checkLasting returns an error if the state of a sandbox is changing.
func checkLasting(b sandpit.Sandbox) error {
	if b.State.Lasting() {
		return nil
	}
	return refuse(http.StatusConflict, sandpit.Conflict, "Sandbox state change in progress: sandbox %s is %s", b.ID, toState(b.State).now)
}

// checkState returns an error, with the message of Daytona's API, unless a sandbox is in one of
// some states.
func checkState(b sandpit.Sandbox, message string, allowed ...sandpit.State) error {
	if err := checkLasting(b); err != nil {
		return err
	}
	if slices.Contains(allowed, b.State) {
		return nil
	}
	if b.State == sandpit.StateError {
		return refuse(http.StatusBadRequest, sandpit.Conflict, "Sandbox is in an errored state: %s", b.Reason)
	}
	return refuse(http.StatusBadRequest, sandpit.Conflict, "%s: sandbox %s is %s", message, b.ID, toState(b.State).now)
}
