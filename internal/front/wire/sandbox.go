package wire

import (
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Prefix begins the path of every call except health, version and documentation.
const Prefix = "/v1"

// The headers of the API.
const (
	// HeaderIdempotencyKey makes the creation of a sandbox a request that can be repeated.
	HeaderIdempotencyKey = "Idempotency-Key"
	// HeaderRequestID is the ID of a request in responses and logs. A client can choose it.
	HeaderRequestID = "X-Request-Id"
	// HeaderCommandTimeout applies the server's own timeout to a command that is started through
	// the guest's protocol. The value is DefaultCommandTimeout.
	HeaderCommandTimeout  = "Sandpit-Command-Timeout"
	DefaultCommandTimeout = "default"
	// HeaderKey carries an API key. "Authorization: Bearer KEY" is an alternative.
	HeaderKey = "X-Api-Key"
)

// Lease is a request to replace the deadline of a sandbox.
type Lease struct {
	Timeout  float64        `json:"timeout_seconds,omitempty" doc:"Seconds from now; below zero: never."`
	Deadline time.Time      `json:"deadline,omitzero" doc:"The deadline. It takes precedence over timeout_seconds."`
	Action   sandpit.Action `json:"action,omitempty" enum:"kill,stop,pause,suspend" doc:"The action at the deadline. Default: the previous one, at first kill."`
}

// Name is a request to replace the name of a sandbox.
type Name struct {
	Name string `json:"name" doc:"The new name: at most 63 letters and digits, after the first one also - _ and dots. Empty for none."`
}

// Labels is a request to replace the labels of a sandbox.
type Labels struct {
	Labels map[string]string `json:"labels" doc:"All labels of the sandbox."`
}

// NewVolume is a request for a volume.
type NewVolume struct {
	Name     string `json:"name" minLength:"1" maxLength:"63" doc:"Letters and digits, in between also - _ and dots."`
	Provider string `json:"provider,omitempty" doc:"The provider that stores the volume; only its sandboxes can mount it. Default: the server's."`
}

// ContentTypeSnapshot is the media type of an exported snapshot.
const ContentTypeSnapshot = "application/octet-stream"

// NewSnapshot is a request for a snapshot.
type NewSnapshot struct {
	Sandbox sandpit.ID `json:"sandbox" doc:"The sandbox to save. It must be running or paused."`
	Name    string     `json:"name,omitempty" maxLength:"63" doc:"Name of the snapshot: letters and digits, in between also - _ and dots. Default: none."`
}

// Fork is a request for forks of a sandbox.
type Fork struct {
	Count   int               `json:"count,omitempty" minimum:"0" maximum:"100" doc:"Number of forks. Default: 1."`
	Labels  map[string]string `json:"labels,omitempty" doc:"Labels in addition to those of the sandbox."`
	Env     map[string]string `json:"env,omitempty" doc:"Environment variables in addition to those of the sandbox, for commands that start after the fork."`
	Secrets map[string]string `json:"secrets,omitempty" writeOnly:"true" doc:"Environment variables that no response contains. Forks do not have the secrets of the sandbox."`
}

// Rollback is a request to roll a sandbox back to one of its snapshots.
type Rollback struct {
	Snapshot string `json:"snapshot" minLength:"1" maxLength:"63" doc:"ID or name of the snapshot."`
}

// Page is one page of a list.
type Page[T any] struct {
	Items []T    `json:"items" nullable:"false" doc:"The items in order."`
	Next  string `json:"next_cursor,omitempty" doc:"The cursor of the next page; absent on the last one."`
}
