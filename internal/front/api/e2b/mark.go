package e2b

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// markLabel is the label of sandboxes that were created by this API. Clients do not see it.
const markLabel = "sandpit.e2b"

// mark is what the API stores about a sandbox in one of its labels. The sandbox's owner can
// change the label, so it must not give any rights.
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

// Environ returns the environment variables by which E2B identifies a sandbox to its programs,
// or nil if the sandbox was not created by this API.
func Environ(s sandpit.Sandbox) map[string]string {
	m, made := markOf(s)
	if !made {
		return nil
	}
	return map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": string(s.ID), "E2B_TEMPLATE_ID": m.Template}
}

// toLabels returns the labels of a sandbox with this metadata and mark.
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

// toMetadata returns the metadata that a client gave for a sandbox.
func toMetadata(s sandpit.Sandbox) map[string]string {
	all := maps.Clone(s.Spec.Labels)
	if all == nil {
		all = map[string]string{}
	}
	delete(all, markLabel)
	return all
}
