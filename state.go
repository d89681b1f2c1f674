package sandpit

import "slices"

// State is where a sandbox is in its life. Those that end in -ing are on the
// way to another; everything else lasts until somebody asks for a change.
type State string

// The states.
const (
	StateCreating  State = "creating"
	StateRunning   State = "running"
	StatePausing   State = "pausing"
	StatePaused    State = "paused"   // memory and files kept
	StateResuming  State = "resuming" // from paused or stopped to running, or to what it was at a snapshot
	StateStopping  State = "stopping"
	StateStopped   State = "stopped" // files kept
	StateArchiving State = "archiving"
	StateArchived  State = "archived" // files kept, away from where sandboxes run
	StateRestoring State = "restoring"
	StateError     State = "error" // the reason tells why; it can be deleted, or recovered
	StateDeleting  State = "deleting"
	StateDeleted   State = "deleted" // kept a while to tell the reason
)

// successors is the whole state machine: what is not here does not happen. An
// operation that fails goes back to where it came from, or to error when nobody
// can tell where it is.
var successors = map[State][]State{
	StateCreating:  {StateRunning, StateError, StateDeleting},
	StateRunning:   {StatePausing, StateStopping, StateResuming, StateError, StateDeleting},
	StatePausing:   {StatePaused, StateRunning, StateError, StateDeleting},
	StatePaused:    {StateResuming, StatePausing, StateStopping, StateError, StateDeleting},
	StateResuming:  {StateRunning, StatePaused, StateStopped, StateError, StateDeleting},
	StateStopping:  {StateStopped, StateRunning, StatePaused, StateError, StateDeleting},
	StateStopped:   {StateResuming, StateArchiving, StateError, StateDeleting},
	StateArchiving: {StateArchived, StateStopped, StateError, StateDeleting},
	StateArchived:  {StateRestoring, StateError, StateDeleting},
	StateRestoring: {StateStopped, StateArchived, StateError, StateDeleting},
	StateError:     {StateCreating, StateDeleting},
	StateDeleting:  {StateDeleted},
	StateDeleted:   {},
}

// Valid reports whether s is one of the states.
func (s State) Valid() bool { _, ok := successors[s]; return ok }

// CanBecome reports whether next may follow s.
func (s State) CanBecome(next State) bool { return slices.Contains(successors[s], next) }

// Lasting reports whether s stays as it is until somebody asks for a change.
func (s State) Lasting() bool {
	switch s {
	case StateRunning, StatePaused, StateStopped, StateArchived, StateError, StateDeleted:
		return true
	default:
		return false
	}
}
