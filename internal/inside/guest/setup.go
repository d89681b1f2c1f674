package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Setup says what the guest changes in the sandbox before it serves. A provider passes it in the environment variable
// SetupVariable; without the variable the guest changes nothing.
type Setup struct {
	// PlainTmp unmounts a file system in memory on /tmp, so that files there are on the same disk as all others.
	PlainTmp bool `json:"plain_tmp,omitempty"`
	// Drop is a mount that was needed only to create the sandbox. The guest unmounts it and removes its directory. ""
	// means none.
	Drop string `json:"drop,omitempty"`
	// SharedMemory is the size of a new file system in memory on /dev/shm, in
	// bytes. 0 means none.
	SharedMemory int64 `json:"shared_memory,omitempty"`
	// PIDs is how many processes and threads all programs together may have. The guest is not counted, so that it
	// keeps running when programs have used them up. 0 means no limit.
	PIDs int `json:"pids,omitempty"`
	// Memory is the limit that programs read from the control group, in bytes; it is enforced elsewhere. 0 means
	// none.
	Memory int64 `json:"memory,omitempty"`
	// Resolver is the address that programs send DNS queries to. "" means that /etc/resolv.conf stays unchanged.
	Resolver string `json:"resolver,omitempty"`
}

// SetupVariable is the environment variable that holds a Setup.
const SetupVariable = "SANDPIT_SETUP"

// Encode returns s as the variable's value.
func (s Setup) Encode() string {
	data, _ := json.Marshal(s) // numbers and truths always encode
	return string(data)
}

const (
	groupRoot  = "/sys/fs/cgroup"
	usualGroup = "programs"
	tmpfsMagic = 0x01021994
	noGroup    = -1
)

// ProgramsGroup is the control group of programs, below that of the first process, if Setup limits their number.
const ProgramsGroup = "limit/sandbox/" + usualGroup

// readSetup reads the Setup from the environment and removes the variable.
func readSetup() (Setup, error) {
	var s Setup
	text := os.Getenv(SetupVariable)
	if text == "" {
		return s, nil
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("read %s: %w", SetupVariable, err)
	}
	return s, os.Unsetenv(SetupVariable)
}

// apply changes the sandbox and returns the control groups in which programs start.
func (s Setup) apply() (programGroups, error) {
	if s.PlainTmp {
		if err := unmountTmpfs("/tmp"); err != nil {
			return noGroups(), err
		}
	}
	if s.SharedMemory > 0 {
		if err := mountShared(s.SharedMemory); err != nil {
			return noGroups(), err
		}
	}
	if s.Drop != "" {
		if err := dropMount(s.Drop); err != nil {
			return noGroups(), err
		}
	}
	if s.Resolver != "" {
		if err := writeResolver("/etc/resolv.conf", s.Resolver); err != nil {
			return noGroups(), err
		}
	}
	if s.PIDs == 0 {
		return noGroups(), nil
	}
	return limitPrograms(groupRoot, s.PIDs, s.Memory)
}

func unmountTmpfs(dir string) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil || st.Type != tmpfsMagic {
		return nil //nolint:nilerr // nothing is there, and so nothing in memory
	}
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) { // not a mount point
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

func dropMount(dir string) error {
	err := syscall.Unmount(dir, syscall.MNT_DETACH)
	if err == nil {
		err = syscall.Rmdir(dir)
	}
	if err != nil {
		return fmt.Errorf("remove the mount %s: %w", dir, err)
	}
	return nil
}

// writeResolver replaces the file, which in many images is a link to a file that another program would write.
func writeResolver(path, address string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("name the resolver: %w", err)
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte("nameserver "+address+"\n"), 0o644) //nolint:gosec // the same
	}
	if err != nil {
		return fmt.Errorf("name the resolver: %w", err)
	}
	return nil
}

func mountShared(size int64) error {
	const dir = "/dev/shm"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	flags := uintptr(syscall.MS_NOSUID | syscall.MS_NODEV)
	if err := syscall.Mount("shm", dir, "tmpfs", flags, "mode=1777,size="+strconv.FormatInt(size, 10)); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// programGroups are the control groups in which programs start: descriptors, or noGroup for both.
type programGroups struct {
	usual int
	spare int // used when the usual group is full
}

// limitPrograms creates these control groups and enters one of them:
//
//	limit       has room for a few more processes than programs may have
//	  sandbox   from now on the root of the tree for everything in the sandbox
//	    guest     this process
//	    programs  the programs that it starts
//	    spare     programs that it starts when programs is full
//
// Programs in the sandbox cannot see limit, so even root cannot change it. Root can change the inner groups, and so
// use up the reserve.
//
// root is where the tree is mounted.
func limitPrograms(root string, pids int, memory int64) (programGroups, error) {
	limit := filepath.Join(root, "limit")
	sandbox := filepath.Join(limit, "sandbox")
	inside := func(name string) string { return filepath.Join(root, name) } // after the inner tree is mounted
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"make control groups", func() error { return os.MkdirAll(sandbox, 0o755) }},
		{"enter a control group", func() error { return writeControl(filepath.Join(sandbox, procsFile), "0") }},
		{"allow limits", func() error { return writeControl(filepath.Join(root, controlFile), "+pids +memory") }},
		{"allow limits", func() error { return writeControl(filepath.Join(limit, controlFile), "+pids +memory") }},
		{"limit processes", func() error { return writeControl(filepath.Join(limit, pidsFile), strconv.Itoa(pids+guestReserve)) }},
		{"set the memory limit", func() error { return writeControl(filepath.Join(sandbox, "memory.max"), limitText(memory)) }},
		{"close the control group", func() error { return onAllThreads(syscall.SYS_UNSHARE, syscall.CLONE_NEWCGROUP) }},
		{"unmount the control groups", func() error { return syscall.Unmount(root, syscall.MNT_DETACH) }},
		{"mount the control groups", func() error { return syscall.Mount("cgroup2", root, "cgroup2", 0, "") }},
		{"make control groups", func() error {
			return errors.Join(os.Mkdir(inside("guest"), 0o755), os.Mkdir(inside(usualGroup), 0o755), os.Mkdir(inside("spare"), 0o755))
		}},
		// A group whose children have limits must hold no process itself.
		{"enter a control group", func() error { return writeControl(filepath.Join(inside("guest"), procsFile), "0") }},
		{"allow limits", func() error { return writeControl(inside(controlFile), "+pids") }},
		{"limit processes", func() error { return writeControl(filepath.Join(inside(usualGroup), pidsFile), strconv.Itoa(pids)) }},
	} {
		if err := step.do(); err != nil {
			return noGroups(), fmt.Errorf("%s: %w", step.what, err)
		}
	}
	usual, err := syscall.Open(inside(usualGroup), syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return noGroups(), fmt.Errorf("open a control group: %w", err)
	}
	spare, err := syscall.Open(inside("spare"), syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return noGroups(), fmt.Errorf("open a control group: %w", err)
	}
	return programGroups{usual, spare}, nil
}

func noGroups() programGroups { return programGroups{noGroup, noGroup} }

const (
	procsFile   = "cgroup.procs"
	controlFile = "cgroup.subtree_control"
	pidsFile    = "pids.max"
	// guestReserve is how many processes and threads are reserved for the guest.
	guestReserve = 64
)

func writeControl(path, value string) error { return os.WriteFile(path, []byte(value), 0) }

func limitText(n int64) string {
	if n == 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

// onAllThreads makes a system call that affects one thread on every thread, because any thread may start a process.
func onAllThreads(number, argument uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(number, argument, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
