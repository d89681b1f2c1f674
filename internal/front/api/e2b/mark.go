package e2b

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// markLabel is the label of a sandbox that was made by this API; clients do not see it.
const markLabel = "sandpit.e2b"

// mark is what the API wants to know of a sandbox later. It is kept in a label, so the
// sandbox's owner may change it: it says nothing about what an owner may do.
type mark struct {
	Template string `json:"template"`
	// Private: ports need a token.
	Private bool `json:"private,omitempty"`
	// Wakes: requests resume it.
	Wakes bool `json:"wakes,omitempty"`
	// Host and HTTPS as in Ingress.
	Host  string `json:"host,omitempty"`
	HTTPS []int  `json:"https,omitempty"`
	// Timeout is what happens at the deadline.
	Timeout sandpit.Action `json:"timeout"`
}

// markOf returns the mark of a sandbox, and whether it has one.
func markOf(s sandpit.Sandbox) (mark, bool) {
	var m mark
	text, ok := s.Spec.Labels[markLabel]
	if !ok || json.Unmarshal([]byte(text), &m) != nil {
		return mark{Template: string(s.Spec.Image), Timeout: s.Lease.Action}, false
	}
	return m, true
}

// Environ is what E2B tells the programs of a sandbox of where they are, if it was made
// by this API.
func Environ(s sandpit.Sandbox) map[string]string {
	m, made := markOf(s)
	if !made {
		return nil
	}
	return map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": string(s.ID), "E2B_TEMPLATE_ID": m.Template}
}

// toLabels are those of a sandbox with this metadata and mark.
func (m mark) toLabels(metadata map[string]string) (map[string]string, error) {
	all := make(map[string]string, len(metadata)+1)
	for key, value := range metadata {
		if strings.HasPrefix(key, "sandpit.") {
			return nil, sandpit.Errorf(sandpit.Invalid, "metadata %.100q: names that begin with \"sandpit.\" are the server's", key)
		}
		all[key] = value
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	all[markLabel] = string(text)
	return all, nil
}

// toMetadata is what a client has said of a sandbox.
func toMetadata(s sandpit.Sandbox) map[string]string {
	all := maps.Clone(s.Spec.Labels)
	if all == nil {
		all = map[string]string{}
	}
	delete(all, markLabel)
	return all
}
