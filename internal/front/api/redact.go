package api

import (
	"regexp"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// internalPatterns match parts of error texts that show how the server is set up: addresses
// that it connects to, its resolvers and its sockets.
var internalPatterns = []struct {
	find    func() *regexp.Regexp
	instead string
}{
	{pattern.New(`\b(dial|read|write|accept|listen) (tcp|udp|unix|unixgram|unixpacket|ip)[46]?( [^:\s]+->\S+:?| @?/\S*?:| \S+:\d+:| @[^:\s]+:)?:?`), "network:"},
	{pattern.New(`(\blookup \S+) on \S+:\d+`), "$1"},
}

// Redactor removes what only administrators may see from texts for other clients. The zero
// value knows no directories.
type Redactor struct{ dirs []string }

// NewRedactor returns a redactor that knows the server's directories and sockets.
func NewRedactor(dirs ...string) Redactor {
	var r Redactor
	for _, dir := range dirs {
		if dir = strings.TrimRight(dir, "/"); strings.Count(dir, "/") > 1 { // otherwise sandboxes have the directory, too
			r.dirs = append(r.dirs, dir)
		}
	}
	return r
}

// Text returns text without the server's internals. Paths below the server's directories
// become "(server)"; addresses that the server connects to are left out.
func (r Redactor) Text(text string) string {
	for _, dir := range r.dirs {
		text = replacePaths(text, dir)
	}
	for _, i := range internalPatterns {
		text = i.find().ReplaceAllString(text, i.instead)
	}
	return text
}

// replacePaths replaces all paths in text that are dir or below it.
func replacePaths(text, dir string) string {
	var b strings.Builder
	for {
		at := strings.Index(text, dir)
		if at < 0 {
			return b.String() + text
		}
		rest := text[at+len(dir):]
		if rest != "" && !strings.ContainsAny(rest[:1], "/:;,\"') \t\n") { // another name with the same prefix
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
