package tree

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

const (
	maxName       = 4095 // as in Linux
	maxPart       = 255  // bytes between two slashes
	maxQuotedName = 200  // bytes of a name that an error quotes
)

// cleanName returns a member's name without "./", doubled slashes and a trailing slash; "." is the tree itself.
// Invalid: the name could lead out of the tree.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", sandpit.Errorf(sandpit.Invalid, "a member without a name")
	case len(name) > maxName:
		return "", memberError(name, "its name is too long")
	case name[0] == '/':
		return "", memberError(name, "its name is absolute")
	case strings.IndexByte(name, 0) >= 0:
		return "", memberError(name, "its name has a zero byte")
	}
	plain := name != "." // needs no cleaning
	depth := 0
	for part := range strings.SplitSeq(strings.TrimSuffix(name, "/"), "/") {
		switch {
		case part == "..":
			return "", memberError(name, `its name has ".."`)
		case len(part) > maxPart:
			return "", memberError(name, "a part of its name is too long")
		case part == "" || part == ".":
			plain = false
		default:
			depth++
		}
	}
	switch {
	case depth > maxDepth+1: // the last level is a file in the deepest directory
		return "", memberError(name, fmt.Sprintf("it is more than %d directories deep", maxDepth))
	case plain:
		return strings.TrimSuffix(name, "/"), nil
	case depth == 0:
		return ".", nil
	}
	return joinParts(name), nil
}

func joinParts(name string) string {
	parts := make([]string, 0, strings.Count(name, "/")+1)
	for part := range strings.SplitSeq(name, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/")
}

// splitName splits a clean name into the directory and the base name.
func splitName(name string) (dir, base string) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i], name[i+1:]
	}
	return ".", name
}

// leadsOutside reports whether a symbolic link at depth levels below the top may lead out of the tree. The result
// must not depend on the current files, because the stream may replace them later. If target has ".." only at the
// beginning, and at most depth of them, the link leads to a directory of the tree and down from there; so any chain
// of such links stays inside.
func leadsOutside(target string, depth int) bool {
	if strings.HasPrefix(target, "/") {
		return true
	}
	ups, down := 0, false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			ups++
			if down || ups > depth {
				return true
			}
		default:
			down = true
		}
	}
	return false
}

// quoteName quotes a name from a stream for an error: printable and of bounded length.
func quoteName(name string) string {
	if len(name) > maxQuotedName {
		return strconv.QuoteToASCII(name[:maxQuotedName]) + "…"
	}
	return strconv.QuoteToASCII(name)
}

func memberError(name, why string) error {
	return sandpit.Errorf(sandpit.Invalid, "member %s: %s", quoteName(name), why)
}
