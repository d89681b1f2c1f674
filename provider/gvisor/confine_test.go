package gvisor_test

import (
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// The capabilities that the reaper and the engine keep. The engine's last five are for
// sandboxes without IDs of their own.
func keptCapabilities() (reaper, engine []int) {
	reaper = []int{unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETFCAP, unix.CAP_KILL, unix.CAP_DAC_OVERRIDE}
	engine = []int{
		unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE,
		unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SETPCAP, unix.CAP_SETFCAP,
	}
	return reaper, engine
}

// serverProcesses returns the reaper and the engine that a sandbox is in.
func serverProcesses(t *testing.T, box sandpit.Instance) (reaper, engine int) {
	t.Helper()
	engine = parentProcess(t, processesOf(t, box.ID()).kernel)
	return parentProcess(t, engine), engine
}

// TestProcessesAreConfined reads from the machine's kernel what the processes around a
// sandbox may do.
func TestProcessesAreConfined(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{
		Image: busyboxImage(t), Mounts: []sandpit.Mount{{Source: t.TempDir(), Target: "/shared"}},
		Network: sandpit.NetworkPolicy{Online: true},
	})
	reaper, engine := serverProcesses(t, box)
	ofReaper, ofEngine := keptCapabilities()
	checkCapabilities(t, "reaper", reaper, ofReaper)
	checkCapabilities(t, "engine", engine, ofEngine)
	for _, pid := range append(descendants(reaper), reaper) { // the engine, all that is in it, and the gateway
		checkConfined(t, pid)
	}
	if got := output(t, box, "echo works"); got != "works" {
		t.Errorf("got %q", got)
	}
}

// checkConfined fails unless a process has a filter and no way to more privileges.
func checkConfined(t *testing.T, pid int) {
	t.Helper()
	privileges, filter := statusOf(pid, "NoNewPrivs"), statusOf(pid, "Seccomp")
	if len(privileges) == 0 || len(filter) == 0 {
		return // it has ended: gVisor has helpers that live for a moment
	}
	if privileges[0] != "1" || filter[0] != "2" {
		t.Errorf("%s: NoNewPrivs is %s, Seccomp is %s", statusOf(pid, "Name"), privileges[0], filter[0])
	}
}

// checkCapabilities fails if a process has others than these.
func checkCapabilities(t *testing.T, name string, pid int, kept []int) {
	t.Helper()
	var may uint64
	for _, c := range kept {
		may |= 1 << c
	}
	for key, most := range map[string]uint64{"CapInh": 0, "CapAmb": 0, "CapPrm": may, "CapEff": may} {
		got, err := strconv.ParseUint(strings.Join(statusOf(pid, key), ""), 16, 64)
		if err != nil || got&^most != 0 {
			t.Errorf("%s: %s is %#x, %v; at most %#x is needed", name, key, got, err, most)
		}
	}
}
