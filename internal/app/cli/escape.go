package cli

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// escapeText makes visible what a terminal or an eye would take for something else:
// control characters, invisible and reordering ones, and what is not UTF-8.
func escapeText(text string) string { return escapeRunes(text, false) }

// escapeLines is safe for text of several lines.
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

// toPrintableLine is one line without what could move a terminal's cursor.
func toPrintableLine(text string) string {
	const longest = 200
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "..."
	}
	return text
}
