package agent

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit/agent/model"
)

const (
	maskText = "***"
	// minSecret is the length from which values are masked: shorter ones occur by chance.
	minSecret = 6
)

// masks replace secret values in texts. All methods may be called concurrently.
type masks struct {
	mu     sync.Mutex
	values []string // longest first, also as they are within JSON
}

func newMasks(values []string) *masks {
	m := &masks{}
	m.add(values...)
	return m
}

// add masks further values.
func (m *masks) add(values ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range values {
		if len(v) < minSecret {
			continue
		}
		forms := []string{v}
		if quoted, err := json.Marshal(v); err == nil { // a string never fails
			inner := string(quoted[1 : len(quoted)-1])
			twice, _ := json.Marshal(inner)
			forms = append(forms, inner, string(twice[1:len(twice)-1]))
		}
		for _, f := range forms {
			if !slices.Contains(m.values, f) {
				m.values = append(m.values, f)
			}
		}
	}
	slices.SortFunc(m.values, func(a, b string) int { return len(b) - len(a) })
}

// mask returns a text without secret values.
func (m *masks) mask(text string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.values {
		text = strings.ReplaceAll(text, v, maskText)
	}
	return text
}

// hold returns how many bytes at the end of a text may be the beginning of a secret value.
func (m *masks) hold(text string) (held int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.values {
		for n := min(len(v)-1, len(text)); n > held; n-- {
			if strings.HasSuffix(text, v[:n]) {
				held = n
			}
		}
	}
	return held
}

// deltaMask masks secret values in a text that arrives in parts.
type deltaMask struct {
	masks   *masks
	pending string
}

// add takes a part, and returns what can be shown of the text so far.
func (d *deltaMask) add(part string) string {
	text := d.masks.mask(d.pending + part)
	n := len(text) - d.masks.hold(text)
	d.pending = text[n:]
	return text[:n]
}

// rest returns the end of the text.
func (d *deltaMask) rest() string {
	text := d.pending
	d.pending = ""
	return text
}

// maskEntry returns a line of a transcript without secret values.
func (m *masks) maskEntry(e entry) entry {
	if e.Message != nil {
		message := *e.Message
		message.Text, message.Opaque = m.mask(message.Text), m.maskJSON(message.Opaque)
		message.Calls = slices.Clone(message.Calls)
		for i, c := range message.Calls {
			message.Calls[i].Arguments = m.mask(c.Arguments)
		}
		e.Message = &message
	}
	if e.Outcome != nil {
		outcome := *e.Outcome
		outcome.Text = m.mask(outcome.Text)
		e.Outcome = &outcome
	}
	if e.Compaction != nil {
		k := *e.Compaction
		k.Note = m.mask(k.Note)
		e.Compaction = &k
	}
	return e
}

// maskJSON masks the strings of a JSON text.
func (m *masks) maskJSON(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || m.mask(string(raw)) == string(raw) {
		return raw
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil {
		return nil // it was checked
	}
	masked, err := json.Marshal(m.maskValue(value))
	if err != nil {
		return nil
	}
	return masked
}

func (m *masks) maskValue(value any) any {
	switch v := value.(type) {
	case string:
		return m.mask(v)
	case []any:
		for i := range v {
			v[i] = m.maskValue(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = m.maskValue(v[key])
		}
	}
	return value
}

// maskCalls masks the values that calls of env_set declare to be secret.
func (m *masks) maskCalls(calls []model.ToolCall) {
	for _, c := range calls {
		var in struct {
			Value  string `json:"value"`
			Secret bool   `json:"secret"`
		}
		if c.Name == "env_set" && json.Unmarshal([]byte(c.Arguments), &in) == nil && in.Secret {
			m.add(in.Value)
		}
	}
}

// withoutTicket returns a URL without what lets its bearer in: query, fragment and password.
func withoutTicket(link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return ""
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return u.String()
}
