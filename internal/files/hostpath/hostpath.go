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
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// refusedTrees are directories that are refused with all that is in them.
var refusedTrees = []string{"/etc", "/proc", "/sys", "/dev", "/boot"}

// refusedDirs are directories that are refused themselves; what is in them may be
// shown.
var refusedDirs = []string{"/", "/run", "/var", "/var/run", "/var/lib", "/root", "/home"}

// credentialPaths are what a home directory has that must not be shown, with all that is in it.
var credentialPaths = []string{
	".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".netrc", ".git-credentials", ".npmrc", ".pypirc",
	".password-store", ".local/share/keyrings", ".mozilla",
}

// Rules say which paths of this machine are refused besides those that are refused on
// every one.
type Rules struct {
	// Own are absolute paths of sandpit's own: directories with its state, and the socket
	// of Docker. They are refused with what is in them, and so is what they are in.
	Own []string
	// Homes are home directories besides those of the users in /etc/passwd. A home is
	// refused, and so are the credentials in it and what it is in.
	Homes []string
	// Allowed are resolved paths that may be shown all the same.
	Allowed []string
}

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

// Check refuses a resolved path that would give a sandbox the machine, a way to control
// it, a user's home directory or credentials, or files of sandpit's own, unless it is
// among the allowed ones.
//
// PermissionDenied: refused. Invalid: neither a directory nor a regular file.
func (r Rules) Check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "look at %s: %w", path, err)
	}
	isSocket := info.Mode()&fs.ModeSocket != 0
	if !info.IsDir() && !info.Mode().IsRegular() && !isSocket {
		return sandpit.Errorf(sandpit.Invalid, "%s is neither a directory nor a regular file", path)
	}
	reason := r.refusalOf(path)
	switch {
	case isSocket:
		reason = "a socket, and whoever listens on it takes orders"
	case reason == "" && isWithin(path, "/run") && info.IsDir() && holdsSocket(path):
		reason = "a directory of sockets, and whoever listens on them takes orders"
	}
	if reason == "" || slices.Contains(r.Allowed, path) {
		return nil
	}
	return sandpit.Errorf(sandpit.PermissionDenied, "%s is %s", path, reason)
}

// Reason says what is wrong with showing a path, "" for nothing. Unlike Check it does not
// require the path to exist on this machine, and resolves its symbolic links as far as it does.
func (r Rules) Reason(path string) string {
	real := resolveExisting(path)
	if slices.Contains(r.Allowed, real) {
		return ""
	}
	if info, err := os.Stat(real); err == nil && info.Mode()&fs.ModeSocket != 0 {
		return "a socket, and whoever listens on it takes orders"
	}
	return r.refusalOf(real)
}

// refusalOf says what is wrong with showing a path, "" for nothing.
func (r Rules) refusalOf(path string) string {
	const machine = "a part of the machine itself"
	if slices.ContainsFunc(refusedTrees, func(d string) bool { return isWithin(path, d) }) {
		return machine
	}
	for _, own := range r.Own {
		if overlaps(path, resolveExisting(own)) {
			return "a directory of sandpit's own or a socket of Docker, or part of one, or holds one"
		}
	}
	for _, home := range slices.Concat(r.Homes, systemHomes()) {
		if home = resolveExisting(home); isUnusualHome(home) {
			continue
		}
		if isWithin(home, path) && path != "/" {
			return "a home directory, or holds one"
		}
		for _, name := range credentialPaths {
			if overlaps(path, filepath.Join(home, name)) {
				return "credentials of a user, or holds them"
			}
		}
	}
	if filepath.Dir(path) == "/home" {
		return "a home directory, or holds one"
	}
	if slices.Contains(refusedDirs, path) {
		return machine
	}
	return ""
}

// isUnusualHome reports whether a home is a directory of the system, which is no reason to
// refuse it or what it is in: in containers some users live in / or /usr.
func isUnusualHome(home string) bool {
	return !filepath.IsAbs(home) || home == "/" || slices.ContainsFunc([]string{"/usr", "/opt", "/srv", "/bin", "/tmp"}, func(d string) bool {
		return isWithin(d, home)
	})
}

// isWithin reports whether a clean path is dir or in it.
func isWithin(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

func overlaps(a, b string) bool { return isWithin(a, b) || isWithin(b, a) }

// resolveExisting is Resolve as far as the path exists.
func resolveExisting(path string) string {
	path = filepath.Clean(path)
	for dir, rest := path, ""; ; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if dir == filepath.Dir(dir) {
			return path
		}
	}
}

// holdsSocket reports whether a socket is directly in a directory, as in a user's
// directory below /run.
func holdsSocket(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return true // what cannot be looked at is not shown
	}
	defer f.Close()
	const most = 10_000
	entries, err := f.ReadDir(most)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Type()&fs.ModeSocket != 0 })
}

// The user IDs of people, by the convention of Linux distributions.
const (
	firstUser = 1000
	lastUser  = 60_000
)

// systemHomes returns the home directories of root and of people who have an account.
func systemHomes() []string {
	homes := []string{"/root"}
	text, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return homes
	}
	for line := range strings.Lines(string(text)) {
		if home, ok := homeOf(line); ok {
			homes = append(homes, home)
		}
	}
	return homes
}

// homeOf returns the home directory in a line of /etc/passwd if it is that of root or of a
// person.
func homeOf(line string) (string, bool) {
	fields := strings.Split(strings.TrimSpace(line), ":")
	const fieldCount, uidField, homeField = 7, 2, 5
	if len(fields) < fieldCount || !filepath.IsAbs(fields[homeField]) {
		return "", false
	}
	uid, err := strconv.Atoi(fields[uidField])
	if err != nil || uid != 0 && (uid < firstUser || uid > lastUser) {
		return "", false
	}
	return filepath.Clean(fields[homeField]), true
}
