package sandpit

import (
	"encoding/json"
	"time"
)

// Policy says what happens to a sandbox when it is idle or lost. In JSON,
// durations are numbers of seconds.
//
// In a request, an IdleTimeout of zero is the server's default, and below zero it is never.
// In what a server returns, it is below zero for never. Other durations of zero mean never.
type Policy struct {
	// IdleTimeout is the time without use until IdleAction.
	IdleTimeout time.Duration
	// IdleAction is the action at that time. Default: the server's, which is ActionSuspend, or
	// ActionStop, then ActionPause, where the sandbox cannot be suspended.
	IdleAction Action
	// AutoStop is the time without use until the sandbox is stopped.
	AutoStop time.Duration
	// AutoSuspend is the time without use, or paused in memory, until the sandbox is
	// suspended.
	AutoSuspend time.Duration
	// AutoArchive is the time stopped until the sandbox is archived.
	AutoArchive time.Duration
	// AutoDelete is the time stopped or archived until the sandbox is deleted.
	AutoDelete time.Duration
	// Recreate is how many times a lost sandbox is created again.
	Recreate int
	// CheckpointEvery is the time between two checkpoints of the files of a running sandbox.
	CheckpointEvery time.Duration
	// IgnoreBackground lets the sandbox be idle while programs run in it.
	IgnoreBackground bool
	// WakeOnUse resumes a paused or stopped sandbox when it is used, whatever paused or
	// stopped it. Without it, only a sandbox that was idle resumes on use.
	WakeOnUse bool
}

// policyJSON is a Policy in JSON.
type policyJSON struct {
	IdleTimeout      float64 `json:"idle_timeout_seconds,omitempty"`
	IdleAction       Action  `json:"idle_action,omitempty"`
	AutoStop         float64 `json:"auto_stop_seconds,omitempty"`
	AutoSuspend      float64 `json:"auto_suspend_seconds,omitempty"`
	AutoArchive      float64 `json:"auto_archive_seconds,omitempty"`
	AutoDelete       float64 `json:"auto_delete_seconds,omitempty"`
	CheckpointEvery  float64 `json:"checkpoint_every_seconds,omitempty"`
	WakeOnUse        bool    `json:"wake_on_use,omitempty"`
	Recreate         int     `json:"recreate,omitempty"`
	IgnoreBackground bool    `json:"ignore_background,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (p Policy) MarshalJSON() ([]byte, error) {
	return json.Marshal(policyJSON{
		IdleTimeout: p.IdleTimeout.Seconds(), IdleAction: p.IdleAction, AutoStop: p.AutoStop.Seconds(),
		AutoSuspend: p.AutoSuspend.Seconds(), AutoArchive: p.AutoArchive.Seconds(), AutoDelete: p.AutoDelete.Seconds(),
		CheckpointEvery: p.CheckpointEvery.Seconds(), WakeOnUse: p.WakeOnUse, Recreate: p.Recreate,
		IgnoreBackground: p.IgnoreBackground,
	})
}

// maxPolicySeconds bounds the durations of a policy: 100 years.
const maxPolicySeconds = 100 * 365 * 24 * 3600

// UnmarshalJSON implements json.Unmarshaler. Invalid: a duration of more than 100 years.
func (p *Policy) UnmarshalJSON(text []byte) error {
	var in policyJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*p = Policy{
		IdleAction: in.IdleAction, WakeOnUse: in.WakeOnUse, Recreate: in.Recreate, IgnoreBackground: in.IgnoreBackground,
	}
	for _, d := range []struct {
		name string
		to   *time.Duration
		from float64
	}{
		{"idle_timeout", &p.IdleTimeout, in.IdleTimeout},
		{"auto_stop", &p.AutoStop, in.AutoStop},
		{"auto_suspend", &p.AutoSuspend, in.AutoSuspend},
		{"auto_archive", &p.AutoArchive, in.AutoArchive},
		{"auto_delete", &p.AutoDelete, in.AutoDelete},
		{"checkpoint_every", &p.CheckpointEvery, in.CheckpointEvery},
	} {
		if d.from > maxPolicySeconds || d.from < -maxPolicySeconds {
			return Errorf(Invalid, "policy.%s_seconds: %g seconds are too many", d.name, d.from)
		}
		*d.to = time.Duration(d.from * float64(time.Second))
	}
	return nil
}

// Upcoming is the next action on a sandbox without a request. A use of the sandbox before
// that time postpones it.
type Upcoming struct {
	// Action is the action.
	Action Action `json:"action"`
	// At is the time of the action. A program that runs inside may delay it.
	At time.Time `json:"at"`
	// Cause is CauseDeadline, CauseIdle, or the state that the sandbox has been in for as long as
	// its policy allows.
	Cause string `json:"cause"`
}

// Causes of an Upcoming action.
const (
	CauseDeadline = "deadline"
	CauseIdle     = "idle"
)
