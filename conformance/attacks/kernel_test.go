package attacks_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func mountAttacks() []attack {
	return []attack{
		{
			name: "kernel-file-systems", as: anybody, in: everybox, judge: judgeKinds,
			proves: "File systems that lead into a kernel (debugfs, tracefs, bpf and the like) cannot be mounted, and the others show the sandbox alone.",
		},
		{
			name: "block-mounts", as: anybody, in: everybox, judge: refused(),
			proves: "No disk, no file, no network share and no descriptor of the kernel process can be mounted.",
		},
		{name: "mount-over", as: anybody, in: everybox, mortal: true, proves: "Mounts over the guest's directories are the sandbox's own affair."},
		{name: "remount", as: anybody, in: hostBox, mortal: true, judge: judgeRemount, proves: "A read-only mount does not become writable by mounting it again."},
		{name: "bind", as: anybody, in: hostBox, judge: judgeBind, proves: "A second mount of a directory shows no more, and allows no more, than the first."},
		{name: "pivot-root", as: anybody, in: everybox, mortal: true, proves: "Another root directory leads no further than the first."},
		{name: "chroot-dance", as: anybody, in: everybox, proves: "The way out of a chroot ends at the sandbox's own root."},
		{name: "new-mount-calls", as: anybody, in: everybox, judge: judgeNewMounts, proves: "The newer calls for mounts give no more than the old ones."},
		{name: "release-agent", as: anybody, in: everybox, judge: judgeAgent, proves: "No program is run on the machine by way of control groups or of settings of the kernel."},
		{name: "user-namespaces", as: anybody, in: everybox, proves: "Root of a namespace inside has no more than before."},
		{name: "join-namespaces", as: anybody, in: everybox, proves: "No namespace of the machine can be entered."},
	}
}

// judgeKinds allows the file systems that the sandbox's kernel makes up itself.
func judgeKinds(t *testing.T, s scene) {
	t.Helper()
	if s.who == user {
		refused()(t, s)
		return
	}
	refused("look at ", "mount proc", "mount sysfs", "mount tmpfs", "mount ramfs", "mount devpts", "mount devtmpfs", "mount cgroup", "mount mqueue",
		"overlay with upper", "mount overlay", "mount fuse")(t, s)
}

// judgeRemount allows root to say what it likes of its own mounts; what they
// are of is looked at outside.
func judgeRemount(t *testing.T, s scene) {
	t.Helper()
	refused("remount", "unmount", "set attributes", "create after", "write after", "write to /usr after", "create in /usr after")(t, s)
}

func judgeNewMounts(t *testing.T, s scene) {
	t.Helper()
	if s.who == root {
		refused("open_tree", "look", "write to the tree of /proc")(t, s)
		return
	}
	refused()(t, s)
}

func judgeBind(t *testing.T, s scene) {
	t.Helper()
	if s.who == user {
		refused()(t, s)
	}
}

func judgeAgent(t *testing.T, s scene) {
	t.Helper()
	if found, err := os.ReadDir(filepath.Join(s.lab.dir, "secret")); err != nil || len(found) != 1 {
		t.Errorf("in the secret directory: %v, %v", found, err)
	}
}

func machineAttacks() []attack {
	return []attack{
		{name: "sysctl", as: anybody, in: everybox, proves: "Settings of the machine's kernel cannot be changed."},
		{name: "sysrq", as: anybody, in: everybox, judge: refused(), proves: "The machine's kernel takes no orders from the sandbox."},
		{
			name: "kernel-memory", as: anybody, in: everybox, judge: refused("read /proc/timer_list", "read /sys/kernel/notes"),
			proves: "Memory, addresses and tables of the machine's kernel cannot be read.",
		},
		{
			name: "identity-leaks", as: anybody, in: everybox, judge: judgeIdentity,
			proves: "Nothing inside tells which machine it is: not its name, boot, kernel, disks, or where sandpit keeps its files.",
		},
		{name: "device-nodes", as: anybody, in: everybox, judge: refused(), proves: "Device nodes that are made inside open no device."},
		{name: "device-files", as: anybody, in: everybox, judge: judgeDeviceFiles, proves: "There are no devices but those the sandbox's own kernel makes up."},
		{name: "sys-files", as: anybody, in: everybox, judge: refused(), proves: "Nothing below /sys can be written."},
		{name: "clock", as: anybody, in: everybox, judge: refused("adjtimex"), proves: "The machine's clock cannot be set."},
		{name: "host-name", as: anybody, in: everybox, judge: refusedToUser(), proves: "A new name of the host is the sandbox's own only."},
		{name: "power", as: anybody, in: everybox, mortal: true, judge: refused("cad"), proves: "The machine cannot be stopped, restarted, or given another kernel."},
		{name: "modules", as: anybody, in: everybox, judge: refused(), proves: "No module of the machine's kernel can be loaded or removed."},
		{name: "hardware", as: anybody, in: everybox, judge: refused(), proves: "Ports of devices, and descriptors of memory, are out of reach."},
		{name: "kernel-log", as: anybody, in: everybox, judge: judgeKernelLog, proves: "The log that can be read is not that of the machine's kernel."},
		{name: "old-calls", as: anybody, in: everybox, judge: refused(), proves: "Accounting, swap space, quotas and forgotten calls are not there."},
		{name: "core-dump", as: anybody, in: everybox, judge: judgeCore, proves: "A program that crashes leaves no core on the machine."},
		{name: "environment", as: anybody, in: everybox, judge: judgeEnvironment, proves: "Environments and arguments of the processes inside hold nothing of the machine's, nor any token."},
		{name: "descriptors", as: anybody, in: everybox, judge: judgeDescriptors, proves: "A fresh command has its three descriptors and no other, and the first process has none that leads outside but the conduit, which cannot be opened."},
	}
}

// judgeIdentity looks for what the test knows of the machine.
func judgeIdentity(t *testing.T, s scene) {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	marks := map[string]string{
		"kernel": unix.ByteSliceToString(u.Release[:]), "build": unix.ByteSliceToString(u.Version[:]), "directory": s.lab.dir,
	}
	if name := unix.ByteSliceToString(u.Nodename[:]); len(name) > 6 { // shorter ones are words
		marks["name"] = name
	}
	for what, path := range map[string]string{
		"boot": "/proc/sys/kernel/random/boot_id", "command line": "/proc/cmdline", "machine": "/etc/machine-id", "disks": "/proc/partitions",
		"product": "/sys/class/dmi/id/product_uuid",
	} {
		text, _ := os.ReadFile(path) // not every machine has all
		if mark := strings.TrimSpace(string(text)); len(mark) > 12 {
			marks[what] = mark
		}
	}
	for _, step := range s.steps {
		for what, mark := range marks {
			if strings.Contains(step.Got, mark) {
				t.Errorf("%s tells the machine's %s: %.300q", step.Try, what, step.Got)
			}
		}
	}
}

// judgeDeviceFiles knows the devices that gVisor makes up.
func judgeDeviceFiles(t *testing.T, s scene) {
	t.Helper()
	known := []string{
		"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/fuse", "/dev/net/tun",
		"/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd", "/dev/core", "/dev/console",
		"/dev/char/1:3", "/dev/char/1:5", "/dev/char/1:7", "/dev/char/1:8", "/dev/char/1:9", "/dev/char/5:0", "/dev/char/5:2",
		"/dev/char/10:200", "/dev/char/10:229",
	}
	for _, step := range s.steps {
		if !slices.Contains(known, step.Try) {
			t.Errorf("there is %s (%s)", step.Try, step.Err)
		}
	}
	if len(s.steps) < 5 {
		t.Errorf("only %v are there: so the attempt proves nothing", s.steps)
	}
}

// judgeKernelLog compares with the machine's log, as far as it can be read.
func judgeKernelLog(t *testing.T, s scene) {
	t.Helper()
	b := make([]byte, 1<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	for _, step := range s.steps {
		for line := range strings.Lines(step.Got) {
			_, text, _ := strings.Cut(line, "] ")
			if err == nil && len(text) > 20 && bytes.Contains(b[:n], []byte(text)) {
				t.Errorf("the machine's log is read: %q", line)
			}
		}
	}
	if err != nil {
		t.Logf("the machine's log cannot be read here either: %v", err)
	}
}

func judgeCore(t *testing.T, s scene) {
	t.Helper()
	for _, dir := range []string{"rw", "scratch", "."} {
		cores, err := filepath.Glob(filepath.Join(s.lab.dir, dir, "*core*"))
		if err != nil || len(cores) > 0 {
			t.Errorf("cores: %v, %v", cores, err)
		}
	}
}

func judgeEnvironment(t *testing.T, s scene) {
	t.Helper()
	// A process that a program of the machine starts does see the canary.
	out, err := exec.CommandContext(t.Context(), "env").Output()
	if err != nil || !bytes.Contains(out, []byte(s.lab.canary)) {
		t.Errorf("the canary is in no program's environment: %v", err)
	}
	for _, step := range s.steps {
		if !strings.HasSuffix(step.Try, "environ") && step.Try != "control: own" {
			continue // the attacker's own arguments say much
		}
		for _, variable := range strings.FieldsFunc(step.Got, func(r rune) bool { return r == 0 || r == '\n' }) {
			own := strings.HasPrefix(variable, "SANDPIT_") && !strings.HasPrefix(variable, "SANDPIT_SETUP=")
			if own || strings.Contains(variable, s.lab.dir) {
				t.Errorf("%s: %q", step.Try, variable)
			}
		}
	}
}

// judgeDescriptors reads what the descriptors are. The machine's kernel has no
// part in them: so links tell what the sandbox's kernel believes.
func judgeDescriptors(t *testing.T, s scene) {
	t.Helper()
	var own []string
	conduits := make(map[string]bool)
	for _, step := range s.steps {
		switch name, what := step.Try, step.Got; {
		case strings.HasPrefix(name, "own "):
			own = append(own, name[4:])
			if strings.HasPrefix(what, "/") && what != "/dev/null" {
				t.Errorf("descriptor %s is %s", name, what)
			}
		case strings.HasPrefix(name, "first "):
			ok := beginsAs(what, []string{"socket:", "pipe:", "anon_inode:", "/dev/null", "host:", "/tmp/", "/etc/", "/sys/fs/cgroup/", "/cpu.max"})
			if step.Err == "" && !ok {
				t.Errorf("the first process has %s: %s", name, what)
			}
			t.Logf("%s: %s %s", name, what, step.Err)
			// The guest's standard files are the null device; the conduit is the
			// other thing that comes from outside.
			outside := strings.HasPrefix(what, "host:") && !slices.Contains([]string{"0", "1", "2"}, name[6:])
			conduits[name] = outside
		case conduits[strings.TrimPrefix(name, "open ")] && step.Err == "":
			t.Errorf("%s, which leads outside, can be opened", name)
		case name == "other processes" && strings.Contains(what, s.lab.dir):
			t.Errorf("descriptors of the machine's files: %s", what)
		}
	}
	if s.who == root && len(conduits) == 0 {
		t.Error("the first process has no conduit: so the attempt proves nothing")
	}
	if !slices.Equal(own, []string{"0", "1", "2"}) {
		t.Errorf("a fresh command has the descriptors %v", own)
	}
}

func callAttacks() []attack {
	return []attack{
		{name: "bpf", as: anybody, in: imageBox, judge: refused(), proves: "No program can be put into the machine's kernel."},
		{name: "perf", as: anybody, in: imageBox, judge: refused(), proves: "The machine's counters cannot measure other processes."},
		{name: "io-uring", as: anybody, in: imageBox, judge: refused(), proves: "No queue of calls past the sandbox's kernel can be had."},
		{name: "userfaultfd", as: anybody, in: imageBox, judge: refused(), proves: "Page faults of other processes cannot be delayed."},
		{name: "fanotify", as: anybody, in: everybox, judge: refused(), proves: "Files of other programs cannot be watched."},
		{name: "seccomp", as: anybody, in: imageBox, judge: refused("listener", "trace others"), proves: "A filter of system calls is for the process that asks, and never for others."},
		{name: "personality", as: anybody, in: everybox, proves: "Odd personalities and process settings change nothing for others."},
		{name: "host-ioctls", as: anybody, in: everybox, proves: "No request to a device reaches the machine, whatever file it is made on."},
		{name: "anonymous-programs", as: anybody, in: imageBox, proves: "Programs without a path, truncated, endless, or with endless arguments affect only the sandbox."},
		{name: "instructions", as: anybody, in: imageBox, proves: "Privileged instructions, and other doors to a kernel than system calls, end the process that uses them, or do nothing."},
		{name: "hostile-registers", as: anybody, in: imageBox, proves: "Registers that no process can have end the process that is given them, at most."},
		{name: "hostile-signal", as: anybody, in: imageBox, proves: "Returning from a signal that never came ends the process, at most."},
		{name: "unmap-everything", as: anybody, in: imageBox, proves: "A process that throws its memory away, or maps all there is, harms itself."},
		{name: "unknown-calls", as: anybody, in: imageBox, judge: refused(), proves: "Unknown system calls are refused."},
		{name: "bad-pointers", as: anybody, in: imageBox, mortal: true, proves: "System calls with addresses of a kernel affect only the sandbox."},
		{name: "random-calls", as: anybody, in: everybox, count: 500, long: 20000, mortal: true, proves: "Random system calls affect only the sandbox."},
	}
}
