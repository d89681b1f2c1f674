package gvisor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// The pool of IDs, as docs/design/engine.md describes it.
const (
	firstPoolID   = 1879048192
	firstKernelID = firstPoolID + 2*65536
)

// needIDPool skips where sandboxes have the ID of the user that runs them.
func needIDPool(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/uid_map")
	if os.Geteuid() == 0 && err == nil && strings.Join(strings.Fields(string(data)), " ") == "0 0 4294967295" {
		return
	}
	t.Skip("only root of a machine may give sandboxes IDs of their own")
}

// sandboxProcesses are the processes of one sandbox outside of it.
type sandboxProcesses struct {
	kernel, files int // 0: no range
	all           []int
}

func processesOf(t *testing.T, id sandpit.ID) sandboxProcesses {
	t.Helper()
	var found sandboxProcesses
	for _, pid := range descendants(os.Getpid()) {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty for one that has ended
		if !bytes.Contains(args, []byte("\x00"+id+"\x00")) {
			continue
		}
		switch {
		case bytes.HasPrefix(args, []byte("runsc-sandbox\x00")):
			found.kernel = pid
		case bytes.HasPrefix(args, []byte("runsc-gofer\x00")):
			found.files = pid
		default:
			continue
		}
		found.all = append(append(found.all, pid), descendants(pid)...)
	}
	if found.kernel == 0 {
		t.Fatalf("no process is the kernel of sandbox %s", id)
	}
	return found
}

// statusOf returns a line of a process's status.
func statusOf(pid int, name string) []string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // empty for one that has ended
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.Fields(value)
		}
	}
	return nil
}

// idRange is IDs that follow each other.
type idRange struct{ first, count int }

func (r idRange) overlaps(o idRange) bool {
	return r.first < o.first+o.count && o.first < r.first+r.count
}

// idsOfProcesses returns all IDs that the processes of a sandbox have or can take, for
// users and groups.
func idsOfProcesses(t *testing.T, found sandboxProcesses) []idRange {
	t.Helper()
	ids := make(map[idRange]bool)
	for _, pid := range found.all {
		for _, name := range []string{"Uid", "Gid", "Groups"} {
			for _, field := range statusOf(pid, name) {
				id, err := strconv.Atoi(field)
				if err != nil {
					t.Fatalf("%s of process %d: %q", name, pid, field)
				}
				ids[idRange{id, 1}] = true
			}
		}
		for _, name := range []string{"uid_map", "gid_map"} {
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			var inside int
			var r idRange
			for line := range strings.Lines(string(data)) {
				if _, err := fmt.Sscan(line, &inside, &r.first, &r.count); err != nil {
					t.Fatalf("%s of process %d: %q", name, pid, line)
				}
				ids[r] = true
			}
		}
	}
	list := make([]idRange, 0, len(ids))
	for r := range ids {
		list = append(list, r)
	}
	return list
}

func kernelID(t *testing.T, id sandpit.ID) int {
	t.Helper()
	uid, err := strconv.Atoi(statusOf(processesOf(t, id).kernel, "Uid")[0])
	if err != nil {
		t.Fatal(err)
	}
	return uid
}

// TestSandboxesShareNoIDs makes sandboxes of each kind in two engines and compares the IDs
// of their processes.
func TestSandboxesShareNoIDs(t *testing.T) {
	t.Parallel()
	needIDPool(t)
	shared := t.TempDir()
	all := make(map[string][]idRange)
	for _, server := range []string{"one", "other"} {
		p := newProvider(t, t.TempDir())
		for kind, spec := range map[string]sandpit.Spec{
			"in memory": {Image: busyboxImage(t)},
			"on disk":   {Image: busyboxImage(t), Resources: sandpit.Resources{Disk: 4 << 30}},
			"a mount":   {Image: busyboxImage(t), Mounts: []sandpit.Mount{{Source: shared, Target: "/shared"}}},
			"the host":  {},
		} {
			box := create(t, p, spec)
			output(t, box, "busybox true || true")
			found := processesOf(t, box.ID())
			// That of a layer on disk ends when the guest has dropped its only mount.
			if kind != "on disk" && (found.files != 0) != (kind != "in memory") {
				t.Errorf("%s: the file server is process %d", kind, found.files)
			}
			all[server+": "+kind] = idsOfProcesses(t, found)
		}
	}
	for name, ids := range all {
		if len(ids) == 0 || slices.ContainsFunc(ids, func(r idRange) bool { return r.first < firstKernelID }) {
			t.Errorf("%s has %v", name, ids)
		}
		for other, others := range all {
			for _, r := range others {
				if name != other && slices.ContainsFunc(ids, r.overlaps) {
					t.Errorf("%s has %v, and %s has %v", name, ids, other, r)
				}
			}
		}
	}
}

// reachVariable has TestReachProcesses be a process with another's IDs.
const reachVariable = "SANDPIT_TEST_REACH"

// TestReachProcesses is not a test by itself: it is what TestSandboxIDsReachNoOther starts
// with the IDs of a sandbox. It tries what a process can do to others whose namespaces it
// shares, and writes what worked.
func TestReachProcesses(t *testing.T) {
	target := os.Getenv(reachVariable)
	if target == "" {
		t.Skip("only run by another test")
	}
	pid, err := strconv.Atoi(target)
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	reached := []string{}
	try := func(what string, err error) {
		if err == nil {
			reached = append(reached, what)
		}
	}
	try("signal", syscall.Kill(pid, 0))
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
	if errno == 0 {
		try("trace", nil)
	}
	for _, name := range []string{"mem", "maps", "environ", "root/.", "cwd/.", "fd/.", "ns/user"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err == nil && name == "mem" { // what counts is a byte
			_, err = f.Read(make([]byte, 1))
			if errors.Is(err, io.EOF) || errors.Is(err, syscall.EIO) {
				err = nil // the address 0 is not mapped
			}
		}
		try(name, err)
		_ = f.Close()
	}
	local, remote := []unix.Iovec{{Base: new(byte), Len: 1}}, []unix.RemoteIovec{{Base: 4096, Len: 1}}
	if _, err := unix.ProcessVMReadv(pid, local, remote, 0); !errors.Is(err, unix.EPERM) {
		try("read memory", nil)
	}
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		_, err = unix.PidfdGetfd(fd, 0, 0)
		try("take a file", err)
		try("signal by descriptor", unix.PidfdSendSignal(fd, 0, nil, 0))
	}
	try("priority", syscall.Setpriority(syscall.PRIO_PROCESS, pid, 19))
	if err := json.NewEncoder(os.Stderr).Encode(reached); err != nil {
		t.Fatal(err)
	}
}

// reach returns what a process with an ID reaches of another process.
func reach(t *testing.T, id, pid int) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestReachProcesses$") // which may be in a closed directory
	cmd.Env = []string{reachVariable + "=" + strconv.Itoa(pid)}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}}
	var words bytes.Buffer
	cmd.Stderr = &words
	var reached []string
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &words)
	}
	if err := json.NewDecoder(&words).Decode(&reached); err != nil {
		t.Fatal(err)
	}
	return reached
}

// TestSandboxIDsReachNoOther has processes with the IDs of one sandbox, but without any
// namespace around them, reach for the processes of another one, of its engine and of its
// reaper.
func TestSandboxIDsReachNoOther(t *testing.T) {
	t.Parallel()
	needIDPool(t)
	p := newProvider(t, t.TempDir())
	spec := sandpit.Spec{Image: busyboxImage(t), Mounts: []sandpit.Mount{{Source: t.TempDir(), Target: "/shared"}}}
	from, to := create(t, p, spec), create(t, p, spec)
	mine, others := processesOf(t, from.ID()), processesOf(t, to.ID())
	kernel := kernelID(t, from.ID())
	files, err := strconv.Atoi(statusOf(mine.files, "Uid")[0])
	if err != nil {
		t.Fatal(err)
	}
	// Without this the test would say nothing: a process of the same ID can be signalled.
	if got := reach(t, kernel, mine.kernel); !slices.Contains(got, "signal") {
		t.Errorf("of its own kernel it reaches %v", got)
	}
	targets := map[string]int{"kernel": others.kernel, "file server": others.files, "own engine": parentProcess(t, mine.kernel)}
	targets["reaper"] = parentProcess(t, targets["own engine"])
	for name, target := range targets {
		for who, id := range map[string]int{"kernel": kernel, "file server": files, "user of the file server": files + 1000} {
			if got := reach(t, id, target); len(got) > 0 {
				t.Errorf("the %s reaches of the other %s: %v", who, name, got)
			}
		}
	}
	if got := reach(t, kernel, mine.files); len(got) > 0 {
		t.Errorf("a kernel reaches of its own file server: %v", got)
	}
	if got := output(t, to, "echo works"); got != "works" {
		t.Errorf("got %q", got)
	}
}

func parentProcess(t *testing.T, pid int) int {
	t.Helper()
	parent, err := strconv.Atoi(statusOf(pid, "PPid")[0])
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

// isLocked reports whether the number of a kernel's ID is.
func isLocked(t *testing.T, kernel int) bool {
	t.Helper()
	f, err := os.OpenFile("/run/sandpit-ids", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(kernel - firstKernelID), Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		t.Fatal(err)
	}
	return lock.Type != unix.F_UNLCK
}

func awaitUnlocked(t *testing.T, kernel int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); isLocked(t, kernel); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("ID %d is still locked", kernel)
		}
	}
}

// TestIDsAreFreed destroys a sandbox, stops one, and kills the engine of a third.
func TestIDsAreFreed(t *testing.T) {
	t.Parallel()
	needIDPool(t)
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	id := kernelID(t, box.ID())
	if !isLocked(t, id) {
		t.Error("the ID of a running sandbox is free")
	}
	if err := box.(sandpit.Suspender).Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitUnlocked(t, id)
	if err := box.(sandpit.Pauser).Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	id = kernelID(t, box.ID())
	destroy(t, box)
	awaitUnlocked(t, id)

	box = create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	id = kernelID(t, box.ID())
	breakEngine(t, dir, syscall.SIGKILL)
	awaitUnlocked(t, id)
}

// TestIDsSurviveAServer has the sandbox of a server that was killed keep its IDs, and the
// next server give them to no other.
func TestIDsSurviveAServer(t *testing.T) {
	t.Parallel()
	needIDPool(t)
	dir := t.TempDir()
	first := newProviderWith(t, dir, lasting)
	box := create(t, first, sandpit.Spec{Image: busyboxImage(t)})
	id := kernelID(t, box.ID())
	if err := first.Close(); err != nil { // a lasting one lets go of its sandboxes
		t.Fatal(err)
	}
	p := newProviderWith(t, dir, lasting)
	if !isLocked(t, id) {
		t.Error("the ID of a running sandbox is free")
	}
	again, err := p.Attach(t.Context(), box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	destroy(t, again)
	awaitUnlocked(t, id)
	awaitEmpty(t, filepath.Join(dir, "run", "engines"))
}

// TestSavedSandboxesChangeIDs saves a sandbox in each way there is and has it run with
// other IDs. Its files keep their owners.
func TestSavedSandboxesChangeIDs(t *testing.T) {
	t.Parallel()
	needIDPool(t)
	p := newProvider(t, t.TempDir())
	for kind, disk := range map[string]int64{"in memory": 0, "on disk": 4 << 30} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			box := create(t, p, sandpit.Spec{Image: etcImage(t), Resources: sandpit.Resources{Disk: disk}})
			output(t, box, "echo own > /own; busybox chown 1000:1001 /own; busybox chmod 750 /own")
			ids := []int{kernelID(t, box.ID())}
			look := func(how string, box sandpit.Instance) {
				t.Helper()
				if got := output(t, box, "busybox stat -c %u:%g:%a /own; echo more >> /own"); got != "1000:1001:750" {
					t.Errorf("%s: %q", how, got)
				}
				ids = append(ids, kernelID(t, box.ID()))
			}
			snap := snapshotOf(t, box)
			fork := copyOf(t, p, snap)
			look("copied", fork)
			if err := errors.Join(box.(sandpit.Suspender).Suspend(t.Context()), box.(sandpit.Pauser).Resume(t.Context())); err != nil {
				t.Fatal(err)
			}
			look("resumed", box)
			if err := errors.Join(box.(sandpit.Stopper).Stop(t.Context()), box.(sandpit.Stopper).Start(t.Context())); err != nil {
				t.Fatal(err)
			}
			look("started", box)
			if err := box.(sandpit.Rollbacker).Rollback(t.Context(), snap.ID); err != nil {
				t.Fatal(err)
			}
			look("rolled back", box)
			slices.Sort(ids)
			if ids = slices.Compact(ids); len(ids) < 4 { // chance may give one of 61,000 twice
				t.Errorf("the kernels had the IDs %v", ids)
			}
			destroy(t, box, fork)
			if err := p.RemoveSnapshot(t.Context(), snap.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMountsKeepOwners has two sandboxes, one of which is stopped and started, see the
// same files of the machine with the same owners, which are those of the machine.
func TestMountsKeepOwners(t *testing.T) {
	t.Parallel()
	needIDPool(t)
	shared := t.TempDir()
	p := newProvider(t, t.TempDir())
	spec := sandpit.Spec{Image: busyboxImage(t), Mounts: []sandpit.Mount{{Source: shared, Target: "/shared"}}}
	box, beside := create(t, p, spec), create(t, p, spec)
	output(t, box, "echo shared > /shared/file; busybox chown 1000:65535 /shared/file; busybox chmod 600 /shared/file")
	if err := errors.Join(box.(sandpit.Stopper).Stop(t.Context()), box.(sandpit.Stopper).Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	const look = "busybox stat -c %u:%g /shared/file; cat /shared/file"
	for name, b := range map[string]sandpit.Instance{"started again": box, "beside": beside} {
		if got := output(t, b, look); got != "1000:65535\nshared" {
			t.Errorf("%s: %q", name, got)
		}
	}
	info, err := os.Stat(filepath.Join(shared, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 1000 || st.Gid != 65535 {
		t.Errorf("on the machine: %+v", info.Sys())
	}
	destroy(t, box, beside)
}
