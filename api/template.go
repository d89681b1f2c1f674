package api

import "github.com/sandpit-dev/sandpit"

// Builtin is a template that is part of the program, and is built when it is first requested.
type Builtin struct {
	Name     string              `json:"name"`
	Status   sandpit.BuildStatus `json:"status" doc:"The status of its build; waiting: it has not been requested yet."`
	Progress string              `json:"progress,omitempty" doc:"The current activity of the build."`
	Reason   string              `json:"reason,omitempty" doc:"Why the build failed; for administrators."`
}
