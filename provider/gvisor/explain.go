package gvisor

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/confine"
)

// machine is what explanations depend on. It is a parameter so that each case can be tested on any
// machine.
type machine struct {
	root bool                     // this process is root
	weak bool                     // root without CAP_SETFCAP, which may not map root
	pool bool                     // this process may assign IDs of the pool
	self string                   // the running program
	read func(path string) string // a file's content without white space around it, or ""
	stat func(path string) bool   // whether something is there
}

func thisMachine() machine {
	root := os.Geteuid() == 0
	return machine{
		root: root,
		weak: root && !confine.HasCapabilities(unix.CAP_SETFCAP),
		pool: hasIDPool(),
		self: executablePath(),
		read: func(path string) string {
			data, err := os.ReadFile(path)
			if err != nil {
				return ""
			}
			return strings.TrimSpace(string(data))
		},
		stat: func(path string) bool {
			_, err := os.Stat(path)
			return err == nil
		},
	}
}

func explainNamespaceError(err error) error { return thisMachine().explainNamespace(err) }

func explainMountError(err error) error { return thisMachine().explainMount(err) }

// explainNamespace returns why the machine refused new namespaces, and what to do.
func (m machine) explainNamespace(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC) || m.read("/proc/sys/user/max_user_namespaces") == "0":
		return m.newRefusal(err, "this machine allows no more user namespaces",
			"raise the limit as root: sysctl -w user.max_user_namespaces=15000")
	case m.read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return m.newRefusal(err, "this machine forbids user namespaces for ordinary users",
			"allow them as root: sysctl -w kernel.unprivileged_userns_clone=1")
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return m.explainPermission(err)
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS):
		return m.newRefusal(err, "this machine's kernel has no user namespaces",
			"sandpit needs Linux 5.10 or newer with CONFIG_USER_NS")
	}
	return sandpit.Errorf(sandpit.Internal, "start the engine: %w", err)
}

// explainMount returns why the machine refused the engine's own mounts.
func (m machine) explainMount(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		m.root = false // in its own namespaces every user is root
		return m.explainPermission(err)
	}
	if errors.Is(err, unix.EINVAL) && strings.Contains(err.Error(), "change the root directory") {
		return m.newRefusal(err, "this machine's root directory is not a mount of its own (a chroot or an initramfs)",
			"run sandpit outside of the chroot")
	}
	return sandpit.Errorf(sandpit.Internal, "start the engine: %w", err)
}

func (m machine) explainPermission(err error) error {
	switch {
	case m.weak:
		return m.newRefusal(err, "root has no CAP_SETFCAP here, and may not create user namespaces without it",
			"give it that capability, or run sandpit as an ordinary user")
	case m.inContainer():
		return m.newRefusal(err, "this container forbids what a sandbox needs (user namespaces and mounts)",
			"start the container with: "+ContainerOptions)
	case m.read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" && !m.root:
		return m.newRefusal(err, "AppArmor forbids user namespaces for unknown programs",
			"allow them as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; "+
				"or give this program alone a profile: sandpit doctor prints it")
	}
	return m.newRefusal(err, "this machine forbids user namespaces or mounts in them",
		"run sandpit doctor for details")
}

func (machine) newRefusal(err error, text, hint string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "%s: %w", text, err), hint)
}

// ContainerOptions are the options that a Docker container needs to run sandpit.
const ContainerOptions = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"

func (m machine) inContainer() bool {
	return m.stat("/.dockerenv") || m.stat("/run/.containerenv") ||
		strings.Contains(m.read("/proc/1/cgroup"), "/docker") || strings.Contains(m.read("/proc/1/cgroup"), "/kubepods")
}
