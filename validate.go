package sandpit

import (
	"path"
	"regexp"
	"strings"
	"sync"
)

// GuestDir is the directory of the guest inside a sandbox. No mount can be there or below.
const GuestDir = "/.sandpit"

// GuestProgram is the guest's own program. As the first argument of a Command it runs the
// applet that the next argument names, with the rights of the command's user, in every
// image.
const GuestProgram = GuestDir + "/sandpit-guest"

// FirstSessionUID and LastSessionUID bound the user and group IDs of sessions that share a
// sandbox. The guest starts programs of such a user without a way to gain rights
// (no_new_privs) and with umask 077.
const (
	FirstSessionUID = 40_000
	LastSessionUID  = 59_999
)

// newPattern returns a function that compiles an expression when it is first called: each process
// of a sandbox has this package, and uses few of the expressions.
func newPattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var hostnamePattern = newPattern(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

// Validate returns an Invalid error for a Spec that no provider can create. Images and
// networks are checked by the provider.
func (s Spec) Validate() error {
	if s.Hostname != "" && !hostnamePattern().MatchString(s.Hostname) {
		return Errorf(Invalid, "hostname %q: want letters, digits and inner dashes, at most 63", s.Hostname)
	}
	if s.WorkDir != "" && s.WorkDir != HomeDir && !cleanAbsolute(s.WorkDir) {
		return Errorf(Invalid, "working directory %q: want an absolute path", s.WorkDir)
	}
	if err := s.Resources.Validate(); err != nil {
		return err
	}
	if err := validateMounts(s.Mounts); err != nil {
		return err
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			return Errorf(Invalid, "environment variable %q: not a name, or a value with a zero byte", k)
		}
	}
	return nil
}

// The bounds of limits that a sandbox can run with.
const (
	minMemory = 32 << 20
	minDisk   = 1 << 20
	minCPUs   = 0.01
	minPIDs   = 1
	maxBytes  = 1 << 50 // of memory and disk: no machine has more, and sums stay below 1 << 63
	maxCPUs   = 1024
	maxPIDs   = 1 << 20
)

// Validate returns an Invalid error for limits that no sandbox can run with. Zero means the
// default.
func (r Resources) Validate() error {
	switch {
	case r.Memory != 0 && r.Memory < minMemory:
		return Errorf(Invalid, "memory limit %d: want at least %d bytes (32 MiB)", r.Memory, minMemory)
	case r.Memory > maxBytes:
		return Errorf(Invalid, "memory limit %d: want at most %d bytes (1 PiB)", r.Memory, int64(maxBytes))
	case r.CPUs != 0 && !(r.CPUs >= minCPUs && r.CPUs <= maxCPUs): // also refuses NaN
		return Errorf(Invalid, "CPU limit %g: want %g to %d", r.CPUs, minCPUs, maxCPUs)
	case r.Disk != 0 && r.Disk < minDisk:
		return Errorf(Invalid, "disk limit %d: want at least %d bytes (1 MiB)", r.Disk, minDisk)
	case r.Disk > maxBytes:
		return Errorf(Invalid, "disk limit %d: want at most %d bytes (1 PiB)", r.Disk, int64(maxBytes))
	case r.PIDs != 0 && (r.PIDs < minPIDs || r.PIDs > maxPIDs):
		return Errorf(Invalid, "limit of %d processes: want %d to %d", r.PIDs, minPIDs, maxPIDs)
	}
	return nil
}

func validateMounts(mounts []Mount) error {
	seen := make(map[string]bool)
	for _, m := range mounts {
		if err := m.CheckSource(); err != nil {
			return err
		}
		if m.Volume == "" && !path.IsAbs(m.Source) {
			return Errorf(Invalid, "mount source %q: want an absolute path", m.Source)
		}
		if err := validateTarget(m.Target); err != nil {
			return err
		}
		if seen[m.Target] {
			return Errorf(Invalid, "mount target %q is given twice", m.Target)
		}
		seen[m.Target] = true
	}
	return nil
}

// validateTarget refuses mounts on directories of the sandbox's kernel and guest.
func validateTarget(target string) error {
	if !cleanAbsolute(target) || target == "/" {
		return Errorf(Invalid, "mount target %q: want an absolute path other than /", target)
	}
	for _, reserved := range []string{"/proc", "/sys", "/dev", GuestDir} {
		if target == reserved || strings.HasPrefix(target, reserved+"/") {
			return Errorf(Invalid, "mount target %q: %s belongs to the sandbox itself", target, reserved)
		}
	}
	return nil
}

func cleanAbsolute(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.Contains(p, "\x00")
}
