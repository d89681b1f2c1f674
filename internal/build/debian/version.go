package debian

import (
	"cmp"
	"strings"
)

// compareVersions orders versions as Debian's policy does: epoch, upstream version,
// revision.
func compareVersions(a, b string) int {
	epochA, a := splitEpoch(a)
	epochB, b := splitEpoch(b)
	upstreamA, revisionA := splitRevision(a)
	upstreamB, revisionB := splitRevision(b)
	return cmp.Or(compareParts(epochA, epochB), compareParts(upstreamA, upstreamB), compareParts(revisionA, revisionB))
}

func splitEpoch(v string) (epoch, rest string) {
	if before, after, found := strings.Cut(v, ":"); found {
		return before, after
	}
	return "0", v
}

func splitRevision(v string) (upstream, revision string) {
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		return v[:i], v[i+1:]
	}
	return v, "0"
}

// compareParts compares text and numbers in turn.
func compareParts(a, b string) int {
	for a != "" || b != "" {
		textA, restA := splitBefore(a, isDigit)
		textB, restB := splitBefore(b, isDigit)
		if c := compareText(textA, textB); c != 0 {
			return c
		}
		numberA, restA := splitBefore(restA, isNotDigit)
		numberB, restB := splitBefore(restB, isNotDigit)
		numberA, numberB = strings.TrimLeft(numberA, "0"), strings.TrimLeft(numberB, "0")
		if c := cmp.Or(cmp.Compare(len(numberA), len(numberB)), strings.Compare(numberA, numberB)); c != 0 {
			return c
		}
		a, b = restA, restB
	}
	return 0
}

func isDigit(r rune) bool    { return r >= '0' && r <= '9' }
func isNotDigit(r rune) bool { return !isDigit(r) }

// splitBefore splits s before the first rune for which ends is true.
func splitBefore(s string, ends func(rune) bool) (before, rest string) {
	if i := strings.IndexFunc(s, ends); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// compareText orders a tilde before the end, the end before letters, and letters before
// other runes.
func compareText(a, b string) int {
	for i := range max(len(a), len(b)) {
		if c := cmp.Compare(runeWeight(a, i), runeWeight(b, i)); c != 0 {
			return c
		}
	}
	return 0
}

func runeWeight(s string, i int) int {
	switch {
	case i >= len(s):
		return 0
	case s[i] == '~':
		return -1
	case s[i] >= 'A' && s[i] <= 'Z', s[i] >= 'a' && s[i] <= 'z':
		return int(s[i])
	}
	return int(s[i]) + 256
}
