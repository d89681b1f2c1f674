package e2b

import (
	"encoding/json"
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

// The names of the metadata by which the provider knows its sandboxes. Programs in a sandbox cannot change them.
const (
	markServer  = "sandpit-server"  // the identity of the server
	markID      = "sandpit-id"      // the sandbox's ID
	markAttempt = "sandpit-attempt" // a random text for each attempt to create a sandbox
	markSpec    = "sandpit-spec"    // the spec without secrets
)

// maxSpec bounds the spec in the metadata, in bytes.
const maxSpec = 16 << 10

// newMetadata returns the metadata of a new sandbox.
//
// Invalid: labels and other fields of the spec are too long together.
func (p *Provider) newMetadata(id sandpit.ID, attempt string, spec sandpit.Spec) (map[string]string, error) {
	stored := publicSpec(spec)
	data, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	if len(data) > maxSpec {
		return nil, sandpit.Errorf(sandpit.Invalid, "labels and other fields of the sandbox have %d bytes; E2B's metadata can have %d", len(data), maxSpec)
	}
	return map[string]string{markServer: p.o.Identity, markID: string(id), markAttempt: attempt, markSpec: string(data)}, nil
}

// publicSpec returns a spec without what may be secret.
func publicSpec(spec sandpit.Spec) sandpit.Spec {
	spec = spec.Clone()
	spec.Env, spec.Expiry = nil, sandpit.Expiry{}
	return spec
}

// specOf returns the spec in the metadata of a sandbox.
func specOf(one item) (spec sandpit.Spec, err error) {
	text := one.Metadata[markSpec]
	if len(text) > maxSpec {
		return spec, sandpit.Errorf(sandpit.Internal, "the metadata of sandbox %.100q have %d bytes", one.ID, len(text))
	}
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return spec, sandpit.Errorf(sandpit.Internal, "the metadata of sandbox %.100q have no spec: %w", one.ID, err)
	}
	return publicSpec(spec), nil
}

// handle is what finds a sandbox again.
type handle struct {
	ID    sandpit.ID `json:"id"`
	Cloud string     `json:"cloud"`
}

func (h handle) encode() []byte {
	data, _ := json.Marshal(h) // strings always encode
	return data
}

// parseHandle reads a handle. Invalid.
func parseHandle(data []byte) (handle, error) {
	var h handle
	if len(data) > 4<<10 || json.Unmarshal(data, &h) != nil || h.ID.Validate() != nil || !isCloudID(h.Cloud) {
		return h, sandpit.Errorf(sandpit.Invalid, "this is not a handle of provider e2b")
	}
	return h, nil
}

// isCloudID reports whether a text can be the cloud's ID of a sandbox. It becomes a part of host names.
func isCloudID(text string) bool {
	if text == "" || len(text) > 63 {
		return false
	}
	for _, r := range text {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && r != '-' {
			return false
		}
	}
	return true
}

// String returns the handle for messages.
func (h handle) String() string { return fmt.Sprintf("%s (%s)", h.ID, h.Cloud) }
