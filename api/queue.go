package api

import (
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Message is a scheduled action of the queue, or one that failed permanently.
type Message struct {
	ID        string            `json:"id"`
	Sandbox   sandpit.ID        `json:"sandbox"`
	Kind      string            `json:"kind"`
	State     string            `json:"state" enum:"pending,dead" doc:"pending: waiting or running; dead: failed permanently."`
	Due       time.Time         `json:"due"`
	Attempts  int               `json:"attempts"`
	LastError string            `json:"last_error,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}
