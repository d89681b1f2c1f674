package api

import "time"

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
