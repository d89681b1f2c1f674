package gvisor

import (
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

var hostnamePattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

func baseName(p string) string { return filepath.Base(p) }

// validateSpec refuses what can never work, before anything is made.
func validateSpec(s sandpit.Spec) error {
	if s.Hostname != "" && !hostnamePattern.MatchString(s.Hostname) {
		return sandpit.Errorf(sandpit.Invalid, "hostname %q: want letters, digits and inner dashes, at most 63", s.Hostname)
	}
	if s.WorkDir != "" && !cleanAbsolute(s.WorkDir) {
		return sandpit.Errorf(sandpit.Invalid, "working directory %q: want an absolute path", s.WorkDir)
	}
	seen := make(map[string]bool)
	for _, m := range s.Mounts {
		if !filepath.IsAbs(m.Source) {
			return sandpit.Errorf(sandpit.Invalid, "mount source %q: want an absolute path", m.Source)
		}
		if err := validateTarget(m.Target); err != nil {
			return err
		}
		if seen[m.Target] {
			return sandpit.Errorf(sandpit.Invalid, "mount target %q is given twice", m.Target)
		}
		seen[m.Target] = true
	}
	for k := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return sandpit.Errorf(sandpit.Invalid, "environment variable %q: not a name", k)
		}
	}
	return nil
}

// validateTarget keeps mounts away from what the sandbox's kernel and guest
// need for themselves.
func validateTarget(target string) error {
	if !cleanAbsolute(target) || target == "/" {
		return sandpit.Errorf(sandpit.Invalid, "mount target %q: want an absolute path other than /", target)
	}
	for _, reserved := range []string{"/proc", "/sys", "/dev", guestDir} {
		if target == reserved || strings.HasPrefix(target, reserved+"/") {
			return sandpit.Errorf(sandpit.Invalid, "mount target %q: %s belongs to the sandbox itself", target, reserved)
		}
	}
	return nil
}

func cleanAbsolute(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.Contains(p, "\x00")
}
