package native

import "github.com/sandpit-dev/sandpit"

// policySchema describes the JSON form of a sandpit.Policy, which it is used for in the
// description of the API.
type policySchema struct {
	IdleTimeout      float64        `json:"idle_timeout_seconds,omitempty" doc:"Seconds without use until idle_action. Default: the server's; below zero: never."`
	IdleAction       sandpit.Action `json:"idle_action,omitempty" enum:"kill,stop,pause,suspend" doc:"What happens to an idle sandbox; all but kill keep its files, and its next use resumes it. Default: the server's, which is suspend (paused on disk), or stop or pause where it cannot be suspended."`
	AutoStop         float64        `json:"auto_stop_seconds,omitempty" minimum:"0" doc:"Seconds without use until the sandbox is stopped. Default: never."`
	AutoSuspend      float64        `json:"auto_suspend_seconds,omitempty" minimum:"0" doc:"Seconds without use, or paused in memory, until the sandbox is suspended (paused on disk). The next use resumes it. Default: never."`
	AutoArchive      float64        `json:"auto_archive_seconds,omitempty" minimum:"0" doc:"Seconds stopped until the sandbox is archived. Default: never."`
	AutoDelete       float64        `json:"auto_delete_seconds,omitempty" minimum:"0" doc:"Seconds stopped or archived until the sandbox is deleted. Default: never."`
	CheckpointEvery  float64        `json:"checkpoint_every_seconds,omitempty" minimum:"0" doc:"Seconds between checkpoints of the files while the sandbox runs. A recreated sandbox starts with the latest. Default: never."`
	WakeOnUse        bool           `json:"wake_on_use,omitempty" doc:"Using a paused or stopped sandbox resumes it, whatever paused or stopped it. Without this, only use of a sandbox that was idle resumes it."`
	Recreate         int            `json:"recreate,omitempty" minimum:"0" maximum:"100" doc:"How often the sandbox is recreated after it ended unexpectedly, with its files if the provider still has them. Default: never."`
	IgnoreBackground bool           `json:"ignore_background,omitempty" doc:"Let the sandbox count as idle while programs run in it."`
}
