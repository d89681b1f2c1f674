// Package textlen bounds the length of texts for people: error texts, reasons, names in lists.
package textlen

import "unicode/utf8"

// ending is what Shorten appends.
const ending = "..."

// Cut returns s, or the longest beginning of s that has at most limit bytes and ends between two runes. Bytes that are
// not valid UTF-8 count as runes and stay as they are.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > 0 && end > limit-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	if !utf8.RuneStart(s[end]) {
		end = limit // no rune is that long: the bytes are not UTF-8
	}
	return s[:end]
}

// Shorten returns s, or what [Cut] returns with "..." after it, which is up to three bytes longer than limit.
func Shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return Cut(s, limit) + ending
}
