package tool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

const (
	mask = "***"
	// minSecret is the length from which a value is searched for in output.
	minSecret = 6
	// minRest is the length from which a part of a secret is searched for at the edge of a truncated
	// text.
	minRest = 3
)

// secretSet has the values that results of a session must not contain. A nil set is empty. All
// methods may be called concurrently.
type secretSet struct {
	mu     sync.Mutex
	values map[string]bool
}

// secretSet returns the secrets of a session, nil for a tool that needs no sandbox.
func (s *Session) secretSet() *secretSet {
	if s == nil {
		return nil
	}
	return s.secrets
}

// hide masks a value in all later results.
func (s *secretSet) hide(value string) {
	if len(value) < minSecret {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[value] = true
}

// list returns the secrets, longest first, because one may be the beginning of another.
func (s *secretSet) list() []string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.values), func(a, b string) int {
		return cmp.Or(len(b)-len(a), strings.Compare(a, b))
	})
}

// has reports whether a value is a secret.
func (s *secretSet) has(value string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[value]
}

// maskText masks secrets in a text.
func (s *secretSet) maskText(text string) string {
	for _, value := range s.list() {
		text = strings.ReplaceAll(text, value, mask)
	}
	return text
}

// maskData masks secrets in data.
func (s *secretSet) maskData(data any) any {
	secrets := s.list()
	if data == nil || len(secrets) == 0 {
		return data
	}
	encoded, err := json.Marshal(data)
	if err != nil {
		return nil // data that JSON cannot represent is left out
	}
	for _, value := range secrets {
		quoted, err := json.Marshal(value)
		if err == nil { // a string never fails
			encoded = bytes.ReplaceAll(encoded, quoted[1:len(quoted)-1], []byte(mask))
		}
	}
	return json.RawMessage(encoded)
}

// maskLines masks secrets, also single lines of a secret with several lines.
func (s *secretSet) maskLines(text string) string {
	text = s.maskText(text)
	for _, value := range s.list() {
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= minSecret {
				text = strings.ReplaceAll(text, line, mask)
			}
		}
	}
	return text
}

// maskCut masks secrets in a text that was truncated, including parts of secrets at its front or
// back.
func (s *secretSet) maskCut(text string, front, back bool) string {
	text = s.maskText(text)
	for _, value := range s.list() {
		for n := min(len(value)-1, len(text)); front && n >= minRest; n-- {
			if strings.HasPrefix(text, value[len(value)-n:]) {
				text = mask + text[n:]
				break
			}
		}
		for n := min(len(value)-1, len(text)); back && n >= minRest; n-- {
			if strings.HasSuffix(text, value[:n]) {
				text = text[:len(text)-n] + mask
				break
			}
		}
	}
	return text
}

// truncateText masks secrets and returns the beginning of a text for Result.Data, with the limit of
// Result.Text.
func (s *secretSet) truncateText(text string) string {
	text = s.maskText(text)
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "?")
}

// tailText masks secrets and returns the end of a text, with the limit of Result.Text.
func (s *secretSet) tailText(text string) string {
	text = s.maskText(text)
	text = text[max(0, len(text)-maxText):]
	for i := 0; i < utf8.UTFMax && text != "" && !utf8.RuneStart(text[0]); i++ {
		text = text[1:]
	}
	return strings.ToValidUTF8(text, "?")
}

// shortenMiddle masks secrets and returns the beginning and the end of a text, with the limit of
// Result.Text.
func (s *secretSet) shortenMiddle(text string) string {
	window := workspace.NewWindow(maxText)
	_, _ = window.Write([]byte(s.maskText(text))) // never fails
	return strings.ToValidUTF8(window.String(), "?")
}
