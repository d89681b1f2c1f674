// Package hostpath says which directories of the machine a client may mount into a sandbox. It protects against
// mistakes, not against a client that is allowed to name paths.
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

// refusedTrees are directories that are refused with everything in them.
var refusedTrees = []string{"/etc", "/proc", "/sys", "/dev", "/boot"}

// refusedDirs are directories that are refused themselves; files in them are allowed.
var refusedDirs = []string{"/", "/run", "/var", "/var/run", "/var/lib", "/root", "/home"}

// credentialPaths are paths in a home directory that are refused with everything in them.
var credentialPaths = []string{
	".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".netrc", ".git-credentials", ".npmrc", ".pypirc",
	".password-store", ".local/share/keyrings", ".mozilla",
}

// Rules configure refused paths of this machine, in addition to those that are refused on every machine.
type Rules struct {
	// Own are absolute paths of sandpit: directories with its state, and the socket of Docker. They are refused with
	// everything in them and every directory above them.
	Own []string
	// Homes are home directories in addition to those of the users in /etc/passwd. A home directory is refused, and
	// so are the credentials in it and every directory above it.
	Homes []string
	// Allowed are resolved paths that are allowed despite the rules.
	Allowed []string
}

// Resolve returns the absolute path without symbolic links. The result must be the path that is checked and mounted,
// because a link could change in between.
//
// NotFound: no such file.
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

// Check refuses a resolved path that would give a sandbox control over the machine, a user's home directory or
// credentials, or files of sandpit itself, unless it is in Allowed.
//
// PermissionDenied: refused. Invalid: neither a directory nor a regular file.
func (r Rules) Check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "check %s: %w", path, err)
	}
	isSocket := info.Mode()&fs.ModeSocket != 0
	if !info.IsDir() && !info.Mode().IsRegular() && !isSocket {
		return sandpit.Errorf(sandpit.Invalid, "%s is neither a directory nor a regular file", path)
	}
	reason := r.refusalOf(path)
	switch {
	case isSocket:
		reason = "a socket, whose server a sandbox could control"
	case reason == "" && isWithin(path, "/run") && info.IsDir() && holdsSocket(path):
		reason = "a directory of sockets, whose servers a sandbox could control"
	}
	if reason == "" || slices.Contains(r.Allowed, path) {
		return nil
	}
	return sandpit.Errorf(sandpit.PermissionDenied, "%s is %s", path, reason)
}

// Reason returns why a path is refused, "" if it is allowed. Unlike Check it does not require the path to exist; it
// resolves symbolic links in the part that exists.
func (r Rules) Reason(path string) string {
	real := resolveExisting(path)
	if slices.Contains(r.Allowed, real) {
		return ""
	}
	if info, err := os.Stat(real); err == nil && info.Mode()&fs.ModeSocket != 0 {
		return "a socket, whose server a sandbox could control"
	}
	return r.refusalOf(real)
}

// refusalOf returns why a resolved path is refused, "" if it is allowed.
func (r Rules) refusalOf(path string) string {
	const machine = "part of the machine itself"
	if slices.ContainsFunc(refusedTrees, func(d string) bool { return isWithin(path, d) }) {
		return machine
	}
	for _, own := range r.Own {
		if overlaps(path, resolveExisting(own)) {
			return "a directory of sandpit or a socket of Docker, or inside or above one"
		}
	}
	for _, home := range slices.Concat(r.Homes, systemHomes()) {
		if home = resolveExisting(home); isUnusualHome(home) {
			continue
		}
		if isWithin(home, path) && path != "/" {
			return "a home directory, or above one"
		}
		for _, name := range credentialPaths {
			if overlaps(path, filepath.Join(home, name)) {
				return "credentials of a user, or above them"
			}
		}
	}
	if filepath.Dir(path) == "/home" {
		return "a home directory, or above one"
	}
	if slices.Contains(refusedDirs, path) {
		return machine
	}
	return ""
}

// isUnusualHome reports whether a home directory is a directory of the system, which the rules for homes do not
// cover: in containers some users live in / or /usr.
func isUnusualHome(home string) bool {
	return !filepath.IsAbs(home) || home == "/" || slices.ContainsFunc([]string{"/usr", "/opt", "/srv", "/bin", "/tmp"}, func(d string) bool {
		return isWithin(d, home)
	})
}

// isWithin reports whether a clean path is dir or below it.
func isWithin(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

func overlaps(a, b string) bool { return isWithin(a, b) || isWithin(b, a) }

// resolveExisting resolves symbolic links in the part of a path that exists.
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

// holdsSocket reports whether a directory directly contains a socket, as a user's directory below /run does.
func holdsSocket(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return true // an unreadable directory is refused
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

// systemHomes returns the home directories of root and of accounts of people.
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

// homeOf returns the home directory in a line of /etc/passwd if the account is root's or a person's.
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
