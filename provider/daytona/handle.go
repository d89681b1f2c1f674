package daytona

import (
	"encoding/json"
	"strings"
	"unicode"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// refPattern is the form of a sandbox's ID at Daytona.
var refPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)

// handle identifies a sandbox for Attach.
type handle struct {
	ID  sandpit.ID `json:"id"`
	Box string     `json:"box"` // the ID at Daytona
}

func (h handle) encodeHandle() []byte {
	data, _ := json.Marshal(h) // two strings always encode
	return data
}

func decodeHandle(data []byte) (handle, error) {
	var h handle
	if err := json.Unmarshal(data, &h); err != nil {
		return h, sandpit.Errorf(sandpit.Invalid, "handle: %w", err)
	}
	if err := h.ID.Validate(); err != nil {
		return h, err
	}
	if !refPattern().MatchString(h.Box) {
		return h, sandpit.Errorf(sandpit.Invalid, "handle: invalid ID at Daytona %.100q", h.Box)
	}
	return h, nil
}

// maxText bounds a text of the cloud in an error, in bytes.
const maxText = 500

// cleanText returns a text of the cloud for people: printable and bounded.
func cleanText(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, ""))
	return textlen.Shorten(strings.TrimSpace(text), maxText)
}
