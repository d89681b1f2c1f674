package gvisor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// refusedCall is a system call that does no harm where it is not refused, and returns
// something else there.
type refusedCall struct {
	Name      string
	Call      uintptr
	Arguments []uint64
}

// badAddress is where no memory is.
const badAddress = 1

func refusedCalls() []refusedCall {
	const bad = ^uint64(0) // a descriptor that is not open, or flags that do not exist
	return []refusedCall{
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, []uint64{1, badAddress}},
		{"bpf", unix.SYS_BPF, []uint64{bad, badAddress, 8}},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, []uint64{badAddress}},
		{"keyctl", unix.SYS_KEYCTL, []uint64{unix.KEYCTL_GET_KEYRING_ID, bad - 2}},
		{"add_key", unix.SYS_ADD_KEY, []uint64{badAddress}},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, []uint64{1}},
		{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, []uint64{1}},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, []uint64{bad, 0, 1}},
		{"kcmp", unix.SYS_KCMP, []uint64{1, 1, 99}},
		{"userfaultfd", unix.SYS_USERFAULTFD, []uint64{bad}},
		{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, []uint64{bad, badAddress, badAddress}},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, []uint64{bad, badAddress}},
		{"fsopen", unix.SYS_FSOPEN, []uint64{badAddress}},
		{"fsconfig", unix.SYS_FSCONFIG, []uint64{bad, 99}},
		{"open_tree", unix.SYS_OPEN_TREE, []uint64{bad, badAddress}},
		{"mount_setattr", unix.SYS_MOUNT_SETATTR, []uint64{bad, badAddress}},
		{"vmsplice", unix.SYS_VMSPLICE, []uint64{bad, badAddress, 1}},
		{"mbind", unix.SYS_MBIND, []uint64{badAddress}},
		{"move_pages", unix.SYS_MOVE_PAGES, []uint64{0, 1, badAddress}},
		{"semget", unix.SYS_SEMGET, []uint64{0, bad}},
		{"shmget", unix.SYS_SHMGET, []uint64{0, 0}},
		{"mq_unlink", unix.SYS_MQ_UNLINK, []uint64{badAddress}},
		{"personality", unix.SYS_PERSONALITY, []uint64{0xffffffff}},
		{"init_module", unix.SYS_INIT_MODULE, []uint64{badAddress, 0, badAddress}},
		{"reboot", unix.SYS_REBOOT, []uint64{0, 0}},
		{"swapoff", unix.SYS_SWAPOFF, []uint64{badAddress}},
		{"fanotify_init", unix.SYS_FANOTIFY_INIT, []uint64{bad}},
		{"modify_ldt", unix.SYS_MODIFY_LDT, []uint64{99}},
		{"AF_PACKET", unix.SYS_SOCKET, []uint64{unix.AF_PACKET, unix.SOCK_RAW}},
		{"AF_ALG", unix.SYS_SOCKET, []uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}},
		{"AF_VSOCK", unix.SYS_SOCKET, []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}},
	}
}

// TestRefusedCalls has the reaper and the engine of a running sandbox make system calls that
// a program which took them over would look for.
func TestRefusedCalls(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	reaper, engine := serverProcesses(t, box)
	ofReaper := append(refusedCalls(),
		refusedCall{"ptrace", unix.SYS_PTRACE, []uint64{99}},
		refusedCall{"setns", unix.SYS_SETNS, []uint64{^uint64(0)}},
		refusedCall{"chroot", unix.SYS_CHROOT, []uint64{badAddress}},
	)
	ofEngine := append(refusedCalls(),
		refusedCall{"AF_INET", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM}},
		refusedCall{"AF_INET6", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_DGRAM}},
		refusedCall{"a pair of AF_INET", unix.SYS_SOCKETPAIR, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0, badAddress}},
		refusedCall{"TIOCSTI", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI, badAddress}},
	)
	for name, tt := range map[string]struct {
		pid   int
		calls []refusedCall
		want  unix.Errno // of calls that are refused whatever their arguments
	}{
		"reaper": {reaper, ofReaper, unix.ENOSYS},
		"engine": {engine, ofEngine, unix.EPERM},
	} {
		// Without the last two the test would say nothing.
		allowed := []refusedCall{
			{"AF_UNIX", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}},
			{"getpid", unix.SYS_GETPID, nil},
		}
		results := injectAll(t, tt.pid, append(tt.calls, allowed...))
		for i, c := range tt.calls {
			want := tt.want
			if c.Call == unix.SYS_SOCKET {
				want = unix.EPERM
			}
			if results[i] != -int64(want) {
				t.Errorf("%s: %s returns %d, want %d", name, c.Name, results[i], -int64(want))
			}
		}
		for i, c := range allowed {
			if got := results[len(tt.calls)+i]; got < 0 {
				t.Errorf("%s: %s returns %d", name, c.Name, got)
			}
		}
	}
	if got := output(t, box, "echo works"); got != "works" {
		t.Errorf("got %q", got)
	}
}

// injection is what TestInjectCalls does, in its environment.
type injection struct {
	PID   int
	Calls []refusedCall
}

const injectionVariable = "SANDPIT_TEST_INJECTION"

// injectAll has a process make system calls and returns their results. Another process
// does that: to the parent of a process it looks as if that had ended.
func injectAll(t *testing.T, pid int, calls []refusedCall) []int64 {
	t.Helper()
	order, err := json.Marshal(injection{pid, calls})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestInjectCalls$")
	cmd.Env = []string{injectionVariable + "=" + string(order)}
	var words bytes.Buffer
	cmd.Stderr = &words
	if out, err := cmd.Output(); err != nil {
		t.Fatalf("%v: %s%s", err, &words, out)
	}
	if words.Len() == 0 {
		t.Skip("this user may not trace the processes of sandboxes")
	}
	var results []int64
	if err := json.NewDecoder(&words).Decode(&results); err != nil || len(results) != len(calls) {
		t.Fatalf("%v: %d results of %d calls", err, len(results), len(calls))
	}
	return results
}

// TestInjectCalls is not a test by itself: it is what injectAll starts.
func TestInjectCalls(t *testing.T) {
	order := os.Getenv(injectionVariable)
	if order == "" {
		t.Skip("only run by another test")
	}
	var in injection
	if err := json.Unmarshal([]byte(order), &in); err != nil {
		t.Fatal(err)
	}
	results := make([]int64, len(in.Calls))
	for i, c := range in.Calls {
		results[i] = inject(t, in.PID, c.Call, c.Arguments)
	}
	if err := json.NewEncoder(os.Stderr).Encode(results); err != nil {
		t.Fatal(err)
	}
}

// inject has the first thread of a process make a system call and returns its result. It
// can do so while the thread waits in another call, which continues afterwards.
func inject(t *testing.T, pid int, call uintptr, arguments []uint64) int64 {
	t.Helper()
	runtime.LockOSThread() // only this thread may say what the other one does
	defer runtime.UnlockOSThread()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0); errno != 0 {
			if errors.Is(errno, unix.EPERM) {
				t.Skipf("this user may not trace process %d", pid)
			}
			t.Fatalf("trace process %d: %v", pid, errno)
		}
		result, done, err := injectTraced(pid, call, arguments)
		if err := errors.Join(err, unix.PtraceDetach(pid)); err != nil {
			t.Fatalf("have process %d make call %d: %v", pid, call, err)
		}
		if done {
			return result
		}
	}
	t.Fatalf("process %d never waits", pid)
	return 0
}

// injectTraced reports false if the thread does not wait in a call, or a signal came.
func injectTraced(pid int, call uintptr, arguments []uint64) (result int64, done bool, err error) {
	if err := unix.PtraceInterrupt(pid); err != nil {
		return 0, false, err
	}
	if trapped, err := awaitTrap(pid); err != nil || !trapped {
		return 0, false, err
	}
	var before unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &before); err != nil {
		return 0, false, err
	}
	instruction := make([]byte, 2)
	if _, err := unix.PtracePeekText(pid, uintptr(before.Rip-2), instruction); err != nil {
		return 0, false, err
	}
	if !bytes.Equal(instruction, []byte{0x0f, 0x05}) {
		return 0, false, nil
	}
	regs := before
	regs.Rip -= 2
	regs.Rax, regs.Orig_rax = uint64(call), ^uint64(0)
	places := []*uint64{&regs.Rdi, &regs.Rsi, &regs.Rdx, &regs.R10, &regs.R8, &regs.R9}
	for i, place := range places {
		*place = 0
		if i < len(arguments) {
			*place = arguments[i]
		}
	}
	if err := errors.Join(unix.PtraceSetRegs(pid, &regs), unix.PtraceSingleStep(pid)); err != nil {
		return 0, false, err
	}
	trapped, err := awaitTrap(pid)
	if err == nil {
		err = unix.PtraceGetRegs(pid, &regs)
	}
	return int64(regs.Rax), trapped, errors.Join(err, unix.PtraceSetRegs(pid, &before))
}

// awaitTrap waits until a process stops, and reports whether no signal was why.
func awaitTrap(pid int) (bool, error) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return status.StopSignal() == unix.SIGTRAP, err
		}
	}
}
