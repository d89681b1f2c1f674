package cli

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// escapeText escapes what a terminal would interpret or a reader would misread: control
// characters, invisible and reordering characters, and invalid UTF-8.
func escapeText(text string) string { return escapeRunes(text, false) }

// escapeLines is escapeText for several lines.
func escapeLines(text string) string { return escapeRunes(text, true) }

func escapeRunes(text string, lines bool) string {
	harmless := func(r rune) bool { return strconv.IsPrint(r) || lines && (r == '\n' || r == '\t') }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !harmless(r) }) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case harmless(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[n:]
	}
	return b.String()
}

// toPrintableLine returns one line without control characters, shortened.
func toPrintableLine(text string) string {
	const maxLength = 200
	return textlen.Shorten(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text), maxLength)
}
