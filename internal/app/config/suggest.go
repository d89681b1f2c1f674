package config

import (
	"fmt"
	"strings"
)

// unknownKey is the text of a problem about a key that does not exist, with the known key that
// was probably meant.
func unknownKey(name string, known []string) string {
	if near := suggestName(name, known); near != "" {
		return fmt.Sprintf("unknown key; did you mean %s?", near)
	}
	return "unknown key"
}

// suggestName returns the known name that the user probably meant by name, or "": one that differs
// by a few letters, otherwise one that begins with the same letters.
func suggestName(name string, known []string) string {
	name = strings.ToLower(name)
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := editDistance(name, strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return best
	}
	const longEnough = 3 // "cpus" for cpu_limit
	longest := longEnough - 1
	for _, k := range known {
		if n := commonPrefix(name, strings.ToLower(k)); n > longest {
			best, longest = k, n
		}
	}
	return best
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// editDistance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func editDistance(a, b string) int {
	const far = 64
	if len(a) > far || len(b) > far {
		return far
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			d := min(replace, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
