package tool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

const (
	mask = "***"
	// minSecret is how long a value must be to be looked for in outputs.
	minSecret = 6
	// minRest is how much of a secret must be left at the edge of a text that was cut to be looked for.
	minRest = 3
)

// hideSecret has a value taken out of all that a model gets from now on.
func (s *Session) hideSecret(value string) {
	if len(value) < minSecret {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets[value] = true
}

// secretValues are the secrets, the longest first: one can be the beginning of another.
func (s *Session) secretValues() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.secrets), func(a, b string) int {
		return cmp.Or(len(b)-len(a), strings.Compare(a, b))
	})
}

func (s *Session) maskSecrets(text string) string {
	for _, value := range s.secretValues() {
		text = strings.ReplaceAll(text, value, mask)
	}
	return text
}

// maskData is data without secrets.
func (s *Session) maskData(data any) any {
	secrets := s.secretValues()
	if data == nil || len(secrets) == 0 {
		return data
	}
	encoded, err := json.Marshal(data)
	if err != nil {
		return nil // what cannot be written as JSON nobody could have read
	}
	for _, value := range secrets {
		quoted, err := json.Marshal(value)
		if err == nil { // a string always can be
			encoded = bytes.ReplaceAll(encoded, quoted[1:len(quoted)-1], []byte(mask))
		}
	}
	return json.RawMessage(encoded)
}

// maskLines is a text without secrets, of which it may hold some lines only.
func (s *Session) maskLines(text string) string {
	text = s.maskSecrets(text)
	s.mu.Lock()
	defer s.mu.Unlock()
	for value := range s.secrets {
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= minSecret {
				text = strings.ReplaceAll(text, line, mask)
			}
		}
	}
	return text
}

// maskCut is masked for a text that was cut already, and takes out what the cuts have left of a secret: at the front
// of the text, at its back or at both.
func (s *Session) maskCut(text string, front, back bool) string {
	text = s.maskSecrets(text)
	for _, value := range s.secretValues() {
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

// truncateText is the beginning of a text for Result.Data, which is as long as Result.Text may be. Secrets are taken out
// first: a half of one would not be found.
func (s *Session) truncateText(text string) string {
	text = s.maskSecrets(text)
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "?")
}

// tailText is the end of a text, as bounded is its beginning.
func (s *Session) tailText(text string) string {
	text = s.maskSecrets(text)
	text = text[max(0, len(text)-maxText):]
	for i := 0; i < utf8.UTFMax && text != "" && !utf8.RuneStart(text[0]); i++ {
		text = text[1:]
	}
	return strings.ToValidUTF8(text, "?")
}

// shortenMiddle are the beginning and the end of a text, as bounded is its beginning.
func (s *Session) shortenMiddle(text string) string {
	window := workspace.NewWindow(maxText)
	_, _ = window.Write([]byte(s.maskSecrets(text))) // never fails
	return strings.ToValidUTF8(window.String(), "?")
}
