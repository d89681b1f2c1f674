package api

import (
	"regexp"
	"strings"
)

// internalPatterns are parts of error texts that tell how the server is set up: whom it connects
// to, which resolver it asks, and which sockets it has.
var internalPatterns = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\b(dial|read|write|accept|listen) (tcp|udp|unix|unixgram|unixpacket|ip)[46]?( [^:\s]+->\S+:?| @?/\S*?:| \S+:\d+:| @[^:\s]+:)?:?`), "network:"},
	{regexp.MustCompile(`(\blookup \S+) on \S+:\d+`), "$1"},
}

// Redactor takes out of texts for ordinary keys what only administrators may see. The zero
// value knows no directories.
type Redactor struct{ dirs []string }

// NewRedactor returns a redactor that knows the server's directories and sockets.
func NewRedactor(dirs ...string) Redactor {
	var r Redactor
	for _, dir := range dirs {
		if dir = strings.TrimRight(dir, "/"); strings.Count(dir, "/") > 1 { // else it is a directory that sandboxes have, too
			r.dirs = append(r.dirs, dir)
		}
	}
	return r
}

// Text returns text without the server's internals. Paths below the server's directories
// become "(server)", addresses that it connects to are left out.
func (r Redactor) Text(text string) string {
	for _, dir := range r.dirs {
		text = replacePaths(text, dir)
	}
	for _, i := range internalPatterns {
		text = i.pattern.ReplaceAllString(text, i.instead)
	}
	return text
}

// replacePaths takes out of text all paths that are dir or lie below it.
func replacePaths(text, dir string) string {
	var b strings.Builder
	for {
		at := strings.Index(text, dir)
		if at < 0 {
			return b.String() + text
		}
		rest := text[at+len(dir):]
		if rest != "" && !strings.ContainsAny(rest[:1], "/:;,\"') \t\n") { // another name that begins like it
			b.WriteString(text[:at+len(dir)])
			text = rest
			continue
		}
		b.WriteString(text[:at] + "(server)")
		end := strings.IndexAny(rest, ":;,\"') \t\n")
		if end < 0 {
			end = len(rest)
		}
		text = rest[end:]
	}
}
