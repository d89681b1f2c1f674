package gvisor

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// simulated is a machine made of a few files.
func simulated(root bool, files map[string]string) machine {
	return machine{
		root: root,
		self: "/home/me/sandpit",
		read: func(path string) string { return files[path] },
		stat: func(path string) bool { _, ok := files[path]; return ok },
	}
}

// TestExplanations holds the one clear sentence for each machine on which a
// first command may fail.
func TestExplanations(t *testing.T) {
	t.Parallel()
	const (
		appArmor = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
		clone    = "/proc/sys/kernel/unprivileged_userns_clone"
		most     = "/proc/sys/user/max_user_namespaces"
	)
	for name, tc := range map[string]struct {
		machine    machine
		err        error
		mount      bool
		text, hint string
	}{
		"Ubuntu's AppArmor at the namespace": {
			machine: simulated(false, map[string]string{appArmor: "1"}), err: unix.EPERM,
			text: "AppArmor forbids user namespaces", hint: "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
		},
		"Ubuntu's AppArmor at the first mount": {
			machine: simulated(false, map[string]string{appArmor: "1"}), err: unix.EACCES, mount: true,
			text: "AppArmor forbids user namespaces", hint: "sandpit doctor",
		},
		"Debian's old switch": {
			machine: simulated(false, map[string]string{clone: "0"}), err: unix.EPERM,
			text: "forbids user namespaces for ordinary users", hint: "sysctl -w kernel.unprivileged_userns_clone=1",
		},
		"none allowed": {
			machine: simulated(false, map[string]string{most: "0"}), err: unix.ENOSPC,
			text: "no more user namespaces", hint: "sysctl -w user.max_user_namespaces=",
		},
		"all used up": {
			machine: simulated(false, map[string]string{most: "100"}), err: unix.ENOSPC,
			text: "no more user namespaces", hint: "sysctl -w user.max_user_namespaces=",
		},
		"a default Docker container": {
			machine: simulated(true, map[string]string{"/.dockerenv": ""}), err: unix.EPERM,
			text: "this container forbids", hint: "--security-opt seccomp=unconfined",
		},
		"a container with masked /proc": {
			machine: simulated(true, map[string]string{"/run/.containerenv": ""}), err: unix.EPERM, mount: true,
			text: "this container forbids", hint: "--security-opt systempaths=unconfined",
		},
		"a kernel without user namespaces": {
			machine: simulated(false, nil), err: unix.EINVAL,
			text: "kernel has no user namespaces", hint: "CONFIG_USER_NS",
		},
		"a chroot": {
			machine: simulated(true, nil), err: fmt.Errorf("change the root directory: %w", unix.EINVAL), mount: true,
			text: "not a mount of its own", hint: "outside of the chroot",
		},
		"no reason to be found": {
			machine: simulated(true, nil), err: unix.EPERM,
			text: "forbids user namespaces", hint: "sandpit doctor",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.machine.explainNamespace(tc.err)
			if tc.mount {
				err = tc.machine.explainMount(tc.err)
			}
			if sandpit.CodeOf(err) != sandpit.Unsupported {
				t.Errorf("code %q, want %q", sandpit.CodeOf(err), sandpit.Unsupported)
			}
			if !strings.Contains(err.Error(), tc.text) {
				t.Errorf("it says %q, want %q in it", err, tc.text)
			}
			if !strings.Contains(sandpit.HintOf(err), tc.hint) {
				t.Errorf("it advises %q, want %q in it", sandpit.HintOf(err), tc.hint)
			}
		})
	}
}

// TestFindings looks at simulated machines before anything has failed.
func TestFindings(t *testing.T) {
	t.Parallel()
	const release = "/proc/sys/kernel/osrelease"
	for name, tc := range map[string]struct {
		finding Finding
		failed  bool
		text    string
		hint    string
	}{
		"kernel":          {simulated(true, map[string]string{release: "6.18.44-x"}).examineKernel(), false, "Linux 6.18.44-x", ""},
		"old kernel":      {simulated(false, map[string]string{release: "4.19.0-27-amd64"}).examineKernel(), true, "too old", "5.10"},
		"old for root":    {simulated(true, map[string]string{release: "5.10.0-8"}).examineKernel(), false, "5.10", "5.12"},
		"short release":   {simulated(true, map[string]string{release: "6.1-rc3"}).examineKernel(), false, "6.1-rc3", ""},
		"strange release": {simulated(true, map[string]string{release: "x"}).examineKernel(), false, "unknown", ""},
		"namespaces":      {simulated(false, nil).examineNamespaces(), false, "allowed", ""},
		"no namespaces": {
			simulated(false, map[string]string{"/proc/sys/kernel/unprivileged_userns_clone": "0"}).examineNamespaces(),
			true, "forbids", "unprivileged_userns_clone=1",
		},
		"root without the capability": {
			machine{root: true, weak: true, read: func(string) string { return "" }, stat: func(string) bool { return false }}.examineNamespaces(),
			true, "no CAP_SETFCAP", "ordinary user",
		},
		"no namespaces, but root": {
			simulated(true, map[string]string{"/proc/sys/kernel/unprivileged_userns_clone": "0"}).examineNamespaces(),
			false, "allowed", "",
		},
		"AppArmor": {
			simulated(false, map[string]string{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}).examineAppArmor(),
			false, "without a profile", "profile sandpit /home/me/sandpit flags=(unconfined)",
		},
		"IDs of a pool":           {machine{root: true, pool: true}.examineUserIDs(), false, "its own", ""},
		"root of a container":     {machine{root: true}.examineUserIDs(), false, "no other IDs are available", "outside of a container"},
		"IDs of an ordinary user": {machine{}.examineUserIDs(), false, "this user's", "as root"},
		"container":               {simulated(true, map[string]string{"/.dockerenv": ""}).examineContainer(), false, "inside one", ContainerOptions},
		"pod": {
			simulated(true, map[string]string{"/proc/1/cgroup": "0::/kubepods/x"}).examineContainer(), false, "inside one", ContainerOptions,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tc.finding
			if f.Failed != tc.failed || !strings.Contains(f.Text, tc.text) || !strings.Contains(f.Hint, tc.hint) || tc.hint == "" && f.Hint != "" {
				t.Errorf("got %+v, want failed %v, text with %q, hint with %q", f, tc.failed, tc.text, tc.hint)
			}
		})
	}
}
