package api

import (
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Event is an entry of the audit trail.
type Event struct {
	Seq      int64             `json:"seq"`
	At       time.Time         `json:"at"`
	Actor    string            `json:"actor"`
	Action   string            `json:"action"`
	Sandbox  sandpit.ID        `json:"sandbox,omitempty"`
	Args     map[string]string `json:"args,omitempty"`
	Result   string            `json:"result" doc:"ok, or the code of the error."`
	Message  string            `json:"message,omitempty"`
	Duration float64           `json:"duration_seconds"`
	Hash     string            `json:"hash" doc:"SHA-256 of the previous hash and this event."`
}

// Verdict is the result of verifying the audit trail.
type Verdict struct {
	OK     bool   `json:"ok"`
	Events int64  `json:"events" doc:"Number of events that were checked."`
	Reason string `json:"reason,omitempty" doc:"What is wrong; absent if nothing is."`
}
