package sandpit

import "slices"

// State is the state of a sandbox. The states that end in -ing, except running, are
// transitions to another state; the others last until a request or a policy changes them.
type State string

// The states.
const (
	StateCreating  State = "creating"
	StateRunning   State = "running"
	StatePausing   State = "pausing"
	StatePaused    State = "paused"   // memory and files kept
	StateResuming  State = "resuming" // from paused or stopped to running, or back to a snapshot
	StateStopping  State = "stopping"
	StateStopped   State = "stopped" // files kept
	StateArchiving State = "archiving"
	StateArchived  State = "archived" // files kept in other storage
	StateRestoring State = "restoring"
	StateError     State = "error" // the reason says why; the sandbox can be deleted or recovered
	StateDeleting  State = "deleting"
	StateDeleted   State = "deleted" // the record is kept for a while, with the reason
)

// successors is the complete state machine. An operation that fails returns the sandbox to
// its previous state, or to error if that is unknown.
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
	StateError:     {StateCreating, StateResuming, StateDeleting},
	StateDeleting:  {StateDeleted},
	StateDeleted:   {},
}

// Valid reports whether s is one of the states.
func (s State) Valid() bool { _, ok := successors[s]; return ok }

// CanBecome reports whether next may follow s.
func (s State) CanBecome(next State) bool { return slices.Contains(successors[s], next) }

// Lasting reports whether s is not a transition.
func (s State) Lasting() bool {
	switch s {
	case StateRunning, StatePaused, StateStopped, StateArchived, StateError, StateDeleted:
		return true
	default:
		return false
	}
}
