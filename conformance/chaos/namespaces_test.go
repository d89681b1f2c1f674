package chaos_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// namespaces are user namespaces that processes of this world had, by their numbers. Each
// is held open, so that no other one gets its number: a process that is in one, or in one below,
// belongs to this world. All other namespaces belong to one of these, and holding a user
// namespace keeps nothing else alive.
type namespaces map[uint64]*os.File

// add holds the user namespace of a process, unless it is the caller's own or below one
// that is held. A process that has ended has none.
func (n namespaces) add(pid int) {
	f, number, err := userNamespace(pid)
	if err != nil {
		return
	}
	if own := ownNamespace(); number == own || n.holds(f, number, own) {
		_ = f.Close()
		return
	}
	n[number] = f
}

// holds reports whether a namespace is held, or one above it.
func (n namespaces) holds(f *os.File, number, own uint64) bool {
	for number != own {
		if n[number] != nil {
			return true
		}
		parent, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_PARENT)
		if err != nil {
			return false // above the caller's
		}
		f = os.NewFile(uintptr(parent), "namespace")
		defer f.Close() // they are at most 32 deep
		if number, err = numberOf(f); err != nil {
			return false
		}
	}
	return false
}

// processes describes the machine's processes that are in a namespace which is held.
func (n namespaces) processes() (left []string) {
	entries, _ := os.ReadDir("/proc")
	own := ownNamespace()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		f, number, err := userNamespace(pid)
		if err != nil {
			continue // it has ended, or belongs to another user
		}
		if n.holds(f, number, own) {
			line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			left = append(left, fmt.Sprintf("process %d in user namespace %d: %.200q", pid, number, line))
		}
		_ = f.Close()
	}
	return left
}

func (n namespaces) close() {
	for _, f := range n {
		_ = f.Close()
	}
}

func userNamespace(pid int) (f *os.File, number uint64, err error) {
	if f, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid)); err != nil {
		return nil, 0, err
	}
	if number, err = numberOf(f); err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, number, nil
}

func ownNamespace() uint64 {
	f, number, err := userNamespace(os.Getpid())
	if err != nil {
		return 0
	}
	_ = f.Close()
	return number
}

func numberOf(f *os.File) (uint64, error) {
	var s unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &s)
	return s.Ino, err
}

// TestNamespacesAreTold finds a process that is left in a namespace, or below one, and
// no other process, even after others have come and gone.
func TestNamespacesAreTold(t *testing.T) {
	t.Parallel()
	held := make(namespaces)
	defer held.close()
	kill := func(p *exec.Cmd) { _ = p.Process.Kill(); _ = p.Wait() }
	apart := func() *exec.Cmd {
		p := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "sleep", "1000")
		p.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		if err := p.Start(); err != nil {
			testengine.Skip(t, "a process in a namespace of its own: %v", err)
		}
		return p
	}
	first := apart()
	held.add(first.Process.Pid) // before it enters another one below, or after
	held.add(os.Getpid())
	if len(held) != 1 {
		t.Fatalf("held: %v", held)
	}
	below := func() bool {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", first.Process.Pid))
		return string(args) == "sleep\x001000\x00"
	}
	for limit := time.Now().Add(10 * time.Second); !below() && time.Now().Before(limit); {
		time.Sleep(5 * time.Millisecond)
	}
	if left := held.processes(); len(left) != 1 {
		t.Errorf("found: %v", left)
	}
	kill(first)
	for range 20 { // in this time a number would be used again
		other := apart()
		if left := held.processes(); len(left) != 0 {
			t.Errorf("found: %v", left)
		}
		kill(other)
	}
}
