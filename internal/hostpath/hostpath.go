// Package hostpath says which directories of the machine a sandbox may be
// shown on request. It is a guard rail against a slip of the pen: whoever may
// name paths at all can still insist.
package hostpath

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// whole are directories that are refused with all that is in them.
var whole = []string{"/etc", "/proc", "/sys", "/dev", "/boot"}

// alone are directories that are refused themselves; what is in them may be
// shown.
var alone = []string{"/", "/run", "/var", "/var/run", "/var/lib"}

// Resolve returns the absolute path without symbolic links, which is what must
// be shown and checked: a link could be turned around between the two.
//
// NotFound: nothing is there.
func Resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", path, err)
	}
	resolved, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", sandpit.Errorf(sandpit.CodeOf(err), "resolve %s: %w", path, err)
	}
	return resolved, nil
}

// Check refuses a resolved path that would give a sandbox the machine or a way
// to control it, unless it is among the allowed ones, which are resolved paths
// as well.
//
// PermissionDenied: refused. Invalid: neither a directory nor a regular file.
func Check(path string, allowed []string) error {
	info, err := os.Stat(path)
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "look at %s: %w", path, err)
	}
	isSocket := info.Mode()&fs.ModeSocket != 0
	if !info.IsDir() && !info.Mode().IsRegular() && !isSocket {
		return sandpit.Errorf(sandpit.Invalid, "%s is neither a directory nor a regular file", path)
	}
	if !isSocket && !denied(path) {
		return nil
	}
	if slices.Contains(allowed, path) {
		return nil
	}
	what := "a part of the machine itself"
	if isSocket {
		what = "a socket, and whoever listens on it takes orders"
	}
	return sandpit.Errorf(sandpit.PermissionDenied, "%s is %s", path, what)
}

func denied(path string) bool {
	return slices.Contains(alone, path) || slices.ContainsFunc(whole, func(d string) bool {
		return path == d || strings.HasPrefix(path, d+"/")
	})
}
