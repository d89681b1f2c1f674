package wire

import (
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Event is one line of the audit trail.
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
	Hash     string            `json:"hash" doc:"SHA-256 over the hash before and this event."`
}

// Verdict says whether the audit trail is whole.
type Verdict struct {
	OK     bool   `json:"ok"`
	Events int64  `json:"events" doc:"How many were looked at."`
	Reason string `json:"reason,omitempty" doc:"What is wrong, if something is."`
}

// Message is one operation that is to be done later, or that failed for good.
type Message struct {
	ID        string            `json:"id"`
	Sandbox   sandpit.ID        `json:"sandbox"`
	Kind      string            `json:"kind"`
	State     string            `json:"state" enum:"pending,dead" doc:"pending: to be done, or being done; dead: given up."`
	Due       time.Time         `json:"due"`
	Attempts  int               `json:"attempts"`
	LastError string            `json:"last_error,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}

// Key is an API key, without its secret.
type Key struct {
	ID    string `json:"id"`
	Name  string `json:"name,omitempty" doc:"For people."`
	Owner string `json:"owner" doc:"Whose sandboxes it reaches."`
	// Admin reaches everything, also what belongs to the server itself.
	Admin      bool      `json:"admin,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at,omitzero" doc:"Give or take a minute."`
}

// NewKey asks for an API key.
type NewKey struct {
	Name  string `json:"name,omitempty" maxLength:"100"`
	Owner string `json:"owner" minLength:"1" maxLength:"100" doc:"Whose sandboxes it reaches."`
	Admin bool   `json:"admin,omitempty" doc:"Reaches everything."`
	// TTL is how many seconds it is good for. Default: for ever.
	TTL float64 `json:"ttl_seconds,omitempty" minimum:"0" doc:"Seconds that it is good for. Default: for ever."`
}

// MadeKey is a new key with its secret, which is never told again.
type MadeKey struct {
	Key
	Secret string `json:"secret" doc:"e2b_ and 40 hexadecimal digits. It is not kept, and never told again."`
}

// Image is an image of the server's cache.
type Image struct {
	Name     string    `json:"name,omitempty"`
	Owner    string    `json:"owner,omitempty" doc:"The owner of the name. Default: the name is shared by all owners."`
	ID       string    `json:"id"`
	Kind     string    `json:"kind"`
	Digest   string    `json:"digest,omitempty"`
	Platform string    `json:"platform,omitempty"`
	Size     int64     `json:"size" doc:"Bytes on disk."`
	Created  time.Time `json:"created,omitzero"`
	Used     time.Time `json:"used,omitzero" doc:"For administrators."`
}

// The states of a PrePull.
const (
	PrePullWaiting  = "waiting"
	PrePullFetching = "fetching"
	PrePullReady    = "ready"
	PrePullFailed   = "failed"
)

// PrePull is an image that the server makes ready when it starts.
type PrePull struct {
	Image string `json:"image"`
	State string `json:"state" enum:"waiting,fetching,ready,failed" doc:"waiting: for its turn, or to be tried again; failed: given up."`
	Tries int    `json:"tries" doc:"How often it was tried."`
	Error string `json:"error,omitempty" doc:"Why the last try failed; for administrators."`
}

// Pull asks for an image to be fetched.
type Pull struct {
	Name string `json:"name" minLength:"1" doc:"A reference, such as python:3.12-slim."`
	// Always asks the registry even if the image is there.
	Always bool `json:"always,omitempty"`
	// Provider is whose sandboxes it is for: docker has images of its own.
	Provider string `json:"provider,omitempty" maxLength:"64" doc:"The provider whose sandboxes it is for. Default: the server's."`
}

// Progress is how far something has come, as the event "progress" has it.
type Progress struct {
	Done  int64 `json:"done" doc:"Bytes."`
	Total int64 `json:"total" doc:"Bytes; 0 if unknown."`
}
