package wire

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

// Message is a scheduled action of the queue, or one that failed for good.
type Message struct {
	ID        string            `json:"id"`
	Sandbox   sandpit.ID        `json:"sandbox"`
	Kind      string            `json:"kind"`
	State     string            `json:"state" enum:"pending,dead" doc:"pending: waiting or running; dead: failed for good."`
	Due       time.Time         `json:"due"`
	Attempts  int               `json:"attempts"`
	LastError string            `json:"last_error,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}

// Key is an API key, without its secret.
type Key struct {
	ID         string    `json:"id"`
	Name       string    `json:"name,omitempty" doc:"A label for people."`
	Owner      string    `json:"owner" doc:"The owner whose sandboxes the key reaches."`
	Admin      bool      `json:"admin,omitempty" doc:"The key has the rights of an administrator."`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at,omitzero" doc:"Accurate to about a minute."`
}

// NewKey asks for an API key.
type NewKey struct {
	Name  string  `json:"name,omitempty" maxLength:"100"`
	Owner string  `json:"owner" minLength:"1" maxLength:"100" doc:"The owner whose sandboxes the key reaches."`
	Admin bool    `json:"admin,omitempty" doc:"Gives the rights of an administrator."`
	TTL   float64 `json:"ttl_seconds,omitempty" minimum:"0" doc:"Seconds until the key expires. Default: never."`
}

// MadeKey is a new key with its secret, which no other response contains.
type MadeKey struct {
	Key
	Secret string `json:"secret" doc:"e2b_ and 40 hexadecimal digits. The server does not keep it; no other response contains it."`
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

// PrePull is an image that the server fetches when it starts.
type PrePull struct {
	Image string `json:"image"`
	State string `json:"state" enum:"waiting,fetching,ready,failed" doc:"waiting: for its turn or the next attempt; failed: no more attempts."`
	Tries int    `json:"tries" doc:"Number of attempts."`
	Error string `json:"error,omitempty" doc:"Why the last attempt failed; for administrators."`
}

// Pull asks for an image to be fetched.
type Pull struct {
	Name     string `json:"name" minLength:"1" doc:"A reference, such as python:3.12-slim."`
	Always   bool   `json:"always,omitempty" doc:"Ask the registry even if the image is in the cache."`
	Provider string `json:"provider,omitempty" maxLength:"64" doc:"The provider whose sandboxes use the image; docker has images of its own. Default: the server's provider."`
}

// Progress is the content of the event "progress".
type Progress struct {
	Done  int64 `json:"done" doc:"Bytes."`
	Total int64 `json:"total" doc:"Bytes; 0 if unknown."`
}
