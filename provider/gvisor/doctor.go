package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// Finding is the result of one check of the machine.
type Finding struct {
	// Name names the check in a word or two.
	Name string
	// Text is the result.
	Text string
	// Hint is what to do about it, or "".
	Hint string
	// Failed means that no sandbox can start.
	Failed bool
}

// Examine checks the machine and the engine's binary (the running program if path is empty)
// without starting anything.
func Examine(path string) []Finding {
	m := thisMachine()
	return []Finding{
		m.examineKernel(),
		examineBinary(path),
		m.examineNamespaces(),
		m.examineUserIDs(),
		m.examineAppArmor(),
		m.examineContainer(),
		m.examineLimits(),
		m.examineServerGroup(),
	}
}

func examineBinary(path string) Finding {
	f := Finding{Name: "program", Text: "statically linked"}
	if _, err := readBinary(path); err != nil {
		f.Text, f.Hint, f.Failed = err.Error(), sandpit.HintOf(err), true
	}
	return f
}

// examineKernel requires Linux 5.10; root needs 5.12 for mounts that map owners.
func (m machine) examineKernel() Finding {
	release := m.read("/proc/sys/kernel/osrelease")
	f := Finding{Name: "kernel", Text: "Linux " + release}
	major, minor, ok := parseRelease(release)
	switch {
	case !ok:
		f.Text = "unknown"
	case major < 5 || major == 5 && minor < 10:
		f.Text += " is too old"
		f.Hint, f.Failed = "sandpit needs Linux 5.10 or newer", true
	case m.root && major == 5 && minor < 12:
		f.Hint = "showing directories with -v as root needs Linux 5.12 or newer"
	}
	return f
}

func parseRelease(release string) (major, minor int, ok bool) {
	first, rest, _ := strings.Cut(release, ".")
	second, _, _ := strings.Cut(rest, ".")
	second, _, _ = strings.Cut(second, "-")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, err1 == nil && err2 == nil
}

func (m machine) examineNamespaces() Finding {
	f := Finding{Name: "user namespaces", Text: "allowed"}
	switch {
	case m.weak:
		f = failedBy(f.Name, m.explainNamespace(unix.EPERM))
	case m.read("/proc/sys/user/max_user_namespaces") == "0":
		f = failedBy(f.Name, m.explainNamespace(unix.ENOSPC))
	case m.read("/proc/sys/kernel/unprivileged_userns_clone") == "0" && !m.root:
		f = failedBy(f.Name, m.explainNamespace(unix.EPERM))
	}
	return f
}

// examineUserIDs reports whether sandboxes have IDs of their own on the machine.
func (m machine) examineUserIDs() Finding {
	f := Finding{Name: "user IDs", Text: "each sandbox has its own IDs"}
	switch {
	case m.pool:
	case m.root:
		f.Text = "all sandboxes have this user's ID: no other IDs are available here"
		f.Hint = "outside of a container with a user namespace of its own, each sandbox of root has its own ID"
	default:
		f.Text = "all sandboxes have this user's ID"
		f.Hint = "run the server as root to give each sandbox its own ID"
	}
	return f
}

func failedBy(name string, err error) Finding {
	return Finding{Name: name, Text: err.Error(), Hint: sandpit.HintOf(err), Failed: true}
}

func (m machine) examineAppArmor() Finding {
	f := Finding{Name: "AppArmor", Text: "allows user namespaces"}
	if m.read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" && !m.root {
		f.Text = "forbids user namespaces for programs without a profile"
		f.Hint = "put this into /etc/apparmor.d/sandpit and run apparmor_parser -r on it, as root:\n" + appArmorProfile(m.self)
	}
	return f
}

func appArmorProfile(program string) string {
	return fmt.Sprintf(`abi <abi/4.0>,
profile sandpit %s flags=(unconfined) {
  userns,
}`, program)
}

func (m machine) examineContainer() Finding {
	f := Finding{Name: "container", Text: "not in one"}
	if m.inContainer() {
		f.Text = "inside one, which must allow user namespaces and mounts"
		f.Hint = "if no sandbox starts, start the container with: " + ContainerOptions
	}
	return f
}

// examineLimits reports which limits can be enforced. The sandbox's own kernel always enforces
// those of disk and processes.
func (machine) examineLimits() Finding {
	f := Finding{Name: "limits", Text: "of memory, CPU, disk and processes are enforced"}
	plan, err := cgroup.Plan("doctor")
	if err != nil {
		return Finding{Name: f.Name, Text: err.Error()}
	}
	var missing []string
	for what, c := range map[string]cgroup.Controller{"memory": cgroup.Memory, "CPU": cgroup.CPU} {
		if plan.Dir(c) == "" {
			missing = append(missing, what+" ("+plan.Missing[c]+")")
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		f.Text = "of disk and processes are enforced, but not of " + strings.Join(missing, " and ")
		f.Hint = limitsHint
	}
	return f
}

// executablePath returns the running program's path, for users.
func executablePath() string {
	path, err := os.Executable()
	if err != nil {
		return "sandpit"
	}
	return filepath.Clean(path)
}

// examineServerGroup reports whether a server that is started here gets a control group of its own.
func (machine) examineServerGroup() Finding {
	f := Finding{Name: "server", Text: "gets a control group of its own, which outweighs sandboxes"}
	if err := cgroup.CheckServerGroup(); err != nil {
		f.Text = "a server started here gets no control group of its own: " + err.Error()
		f.Hint = "run it as a systemd service with CPUWeight= and MemoryLow=, as deploy/sandpit.service does"
	}
	return f
}
