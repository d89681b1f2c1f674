package gvisor

import (
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

var hostnamePattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

// validateSpec refuses what can never work, before anything is made.
func validateSpec(s sandpit.Spec) error {
	if s.Hostname != "" && !hostnamePattern.MatchString(s.Hostname) {
		return sandpit.Errorf(sandpit.Invalid, "hostname %q: want letters, digits and inner dashes, at most 63", s.Hostname)
	}
	if s.WorkDir != "" && !cleanAbsolute(s.WorkDir) {
		return sandpit.Errorf(sandpit.Invalid, "working directory %q: want an absolute path", s.WorkDir)
	}
	if err := validateResources(s.Resources); err != nil {
		return err
	}
	if err := validateNetwork(s.Network); err != nil {
		return err
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

// The least that a sandbox can live with.
const (
	minMemory = 32 << 20
	minDisk   = 1 << 20
	minCPUs   = 0.01
	minPIDs   = 1
	maxCPUs   = 1024
	maxPIDs   = 1 << 20
)

func validateResources(r sandpit.Resources) error {
	switch {
	case r.Memory != 0 && r.Memory < minMemory:
		return sandpit.Errorf(sandpit.Invalid, "memory limit %d: want at least %d bytes (32 MiB)", r.Memory, minMemory)
	case r.CPUs != 0 && !(r.CPUs >= minCPUs && r.CPUs <= maxCPUs): // not a number is neither
		return sandpit.Errorf(sandpit.Invalid, "CPU limit %g: want %g to %d", r.CPUs, minCPUs, maxCPUs)
	case r.Disk != 0 && r.Disk < minDisk:
		return sandpit.Errorf(sandpit.Invalid, "disk limit %d: want at least %d bytes (1 MiB)", r.Disk, minDisk)
	case r.PIDs != 0 && (r.PIDs < minPIDs || r.PIDs > maxPIDs):
		return sandpit.Errorf(sandpit.Invalid, "limit of %d processes: want %d to %d", r.PIDs, minPIDs, maxPIDs)
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
