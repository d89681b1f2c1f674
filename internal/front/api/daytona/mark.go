package daytona

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

const (
	// markLabel is the label of sandboxes that were created by this API. Clients do not see it.
	markLabel = "sandpit.daytona"
	// serverLabels is the prefix of labels that clients neither see nor set.
	serverLabels = "sandpit."
)

// mark is what the API stores about a sandbox in one of its labels. The sandbox's owner can
// change the label, so it must not give any rights to others.
type mark struct {
	// Snapshot is the snapshot in the request.
	Snapshot string `json:"snapshot,omitempty"`
	// Image is the image or build that the request described by a Dockerfile.
	Image string `json:"image,omitempty"`
	// Build is the build of that Dockerfile, for its log.
	Build sandpit.BuildID `json:"build,omitempty"`
	// Public: ports need no token.
	Public bool `json:"public,omitempty"`
}

// markOf returns the mark of a sandbox, and whether it has one.
func markOf(s sandpit.Sandbox) (mark, bool) {
	var m mark
	text, ok := s.Spec.Labels[markLabel]
	if !ok || json.Unmarshal([]byte(text), &m) != nil {
		return mark{}, false
	}
	return m, true
}

// Ingress says how the ports of a sandbox can be reached.
type Ingress struct {
	// Made says that the sandbox was created by this API.
	Made bool
	// Public ports need no token.
	Public bool
}

// Ports returns how the ports of a sandbox can be reached.
func Ports(s sandpit.Sandbox) Ingress {
	m, made := markOf(s)
	return Ingress{Made: made, Public: m.Public}
}

// toLabels returns the labels of a sandbox with a client's labels and this mark. It keeps the
// labels in previous that clients do not see.
func (m mark) toLabels(labels, previous map[string]string) (map[string]string, error) {
	all := make(map[string]string, len(labels)+1)
	for key, value := range previous {
		if strings.HasPrefix(key, serverLabels) {
			all[key] = value
		}
	}
	for key, value := range labels {
		if strings.HasPrefix(key, serverLabels) {
			return nil, sandpit.Errorf(sandpit.Invalid, "label %.100q: names that begin with %q are the server's", key, serverLabels)
		}
		all[key] = value
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "encode the label of a sandbox: %w", err)
	}
	all[markLabel] = string(text)
	return all, nil
}

// clientLabels returns the labels that a client gave a sandbox.
func clientLabels(s sandpit.Sandbox) map[string]string {
	all := make(map[string]string, len(s.Spec.Labels))
	maps.Copy(all, s.Spec.Labels)
	maps.DeleteFunc(all, func(key, _ string) bool { return strings.HasPrefix(key, serverLabels) })
	return all
}
