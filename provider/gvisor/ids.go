package gvisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/confine"
)

// User and group IDs of sandboxes' processes on the machine. Those of root's sandboxes come from a
// pool above all IDs that distributions, container engines and systemd assign. It consists of
// blocks of the size that a complete Linux system has:
//
//	0      engines, one ID each
//	1      gateways, all with the first ID, and dialers, with the second
//	2      kernels, one ID each
//	3      file servers that show no files of the machine with their owners, one ID each
//	4 ...  file servers that do, one block each
//
// The number of a sandbox decides which IDs of blocks 2 and 3, or which block, it has. A number is
// locked as long as a process with these IDs can exist.
const (
	rangeBase = 1879048192
	rangeSize = 65536

	kernelBlock = 2
	serverBlock = 3
	firstBlock  = 4
	lastBlock   = 4094 // the one after it has 2147483647, which is -1 to some programs

	poolSize = (lastBlock + 1) * rangeSize
	// blockNumbers is how many sandboxes can have a block. They have the lowest numbers.
	blockNumbers = lastBlock - firstBlock + 1
	// Engines of earlier versions all have the first ID of block 0.
	firstEngine = 1
)

// sandboxIDs are the IDs of one sandbox's processes, for users and groups alike. They are the same
// for a server and its engines.
type sandboxIDs struct {
	// Kernel is the ID of the kernel and the processes that it starts.
	Kernel int `json:"kernel"`
	// Files is the first ID of the file server, which root inside has for files of the machine,
	// and Count the number of IDs.
	Files int `json:"files"`
	Count int `json:"count"`
}

// sandboxIDsOf returns the IDs of the sandbox with a number.
func sandboxIDsOf(number int) sandboxIDs {
	ids := sandboxIDs{Kernel: rangeBase + kernelBlock*rangeSize + number}
	if number < blockNumbers {
		ids.Files, ids.Count = rangeBase+(firstBlock+number)*rangeSize, rangeSize
	} else {
		ids.Files, ids.Count = rangeBase+serverBlock*rangeSize+number, 1
	}
	return ids
}

// toMapping maps IDs from 0 on to those of the file server.
func (ids sandboxIDs) toMapping() []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: ids.Files, Size: ids.Count}}
}

// idLocks locks numbers, each a byte of one file that all servers and engines of the machine
// share. The kernel releases a lock with the last descriptor of the file that it was made with, so
// no killed process leaves one.
type idLocks struct{ path string }

// Offsets in the file: numbers of sandboxes, then those of engines.
const engineNumbers = rangeSize

// idLocksPath is the file with the locks on every machine, whatever directories a server is
// configured with: two servers must not use the same IDs.
const idLocksPath = "/run/sandpit-ids"

// findIDLocks returns the locks of the machine, or nil for users without the right to assign IDs. Where the
// usual file cannot be written, as in a container, the locks are in the runtime directory.
func findIDLocks(runtimeDir string) (*idLocks, error) {
	if !hasIDPool() {
		return nil, nil //nolint:nilnil // sandboxes have the IDs of the user
	}
	f, err := openIDFile(idLocksPath)
	if err == nil {
		return &idLocks{idLocksPath}, f.Close()
	}
	for _, refused := range []error{unix.ENOENT, unix.EROFS, unix.EACCES, unix.EPERM} {
		if errors.Is(err, refused) {
			return &idLocks{filepath.Join(runtimeDir, "ids")}, nil
		}
	}
	return nil, fmt.Errorf("open the locks of user IDs: %w", err)
}

func openIDFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

// lockSandbox locks a number for a sandbox. seesOwners means that it sees the owners of files of
// the machine. The number is free again when the returned file and all its duplicates are closed.
func (l idLocks) lockSandbox(seesOwners bool) (sandboxIDs, *os.File, error) {
	first, count := blockNumbers, rangeSize-blockNumbers
	if seesOwners {
		first, count = 0, blockNumbers
	}
	number, f, err := l.lockNumber(first, count)
	return sandboxIDsOf(number), f, err
}

// lockEngine locks the ID of an engine's root in the same way.
func (l idLocks) lockEngine() (id int, f *os.File, err error) {
	number, f, err := l.lockNumber(engineNumbers+firstEngine, rangeSize-firstEngine)
	return rangeBase + number - engineNumbers, f, err
}

// lockNumber locks one of count numbers from first on. It begins at a random one, so that a number
// that has just become free is rarely the next to be used.
func (l idLocks) lockNumber(first, count int) (int, *os.File, error) {
	f, err := openIDFile(l.path)
	if err != nil {
		return 0, nil, fmt.Errorf("open the locks of user IDs: %w", err)
	}
	start := rand.IntN(count) //nolint:gosec // it need not be hard to guess
	for i := range count {
		number := first + (start+i)%count
		err := lockByte(f, number)
		if err == nil {
			return number, f, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			_ = f.Close()
			return 0, nil, fmt.Errorf("lock user IDs: %w", err)
		}
	}
	_ = f.Close()
	return 0, nil, sandpit.WithHint(
		sandpit.Errorf(sandpit.Exhausted, "all %d ranges of user IDs are in use on this machine", count),
		"stop, suspend or delete sandboxes that are not needed")
}

func lockByte(f *os.File, number int) error {
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{
			Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(number), Len: 1,
		})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// hasIDPool reports whether this process may assign IDs of the pool. In many containers root may
// not: it has the rights of an ordinary user then.
func hasIDPool() bool {
	return confine.HasCapabilities(unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SYS_ADMIN, unix.CAP_SETFCAP) &&
		mapsPool("/proc/self/uid_map") && mapsPool("/proc/self/gid_map")
}

// mapsPool reports whether a mapping of this process's user namespace includes the pool.
func mapsPool(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return containsIDs(f, rangeBase, poolSize)
}

// containsIDs reads the lines of a mapping, each with the first ID inside, the first outside, and
// the count.
func containsIDs(r io.Reader, first, count int) bool {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			continue
		}
		inside, err1 := strconv.Atoi(fields[0])
		size, err2 := strconv.Atoi(fields[2])
		if err1 == nil && err2 == nil && inside <= first && first+count <= inside+size {
			return true
		}
	}
	return false
}

// allowEntry lets the processes of a sandbox enter a control group, but not change its limits.
func (ids *sandboxIDs) allowEntry(group string) error {
	if ids == nil {
		return nil // they are the same user as the engine
	}
	return ids.giveFile(filepath.Join(group, cgroup.ProcsFile), 0o664)
}

// giveFile gives a file to the sandbox: to its kernel as owner and to its file server as group.
func (ids *sandboxIDs) giveFile(path string, mode os.FileMode) error {
	if err := os.Chmod(path, mode); err != nil { // while the engine owns it
		return err
	}
	return os.Chown(path, ids.Kernel, ids.Files)
}

// checkProcess returns an error unless this process, which has a role in a sandbox, has the IDs of
// that sandbox and can have no others.
func (ids *sandboxIDs) checkProcess(role string) error {
	if ids == nil {
		return nil
	}
	want := fmt.Sprintf("%d %d %d", 0, ids.Files, ids.Count)
	if role == kernelRole {
		want = fmt.Sprintf("%d %d %d", kernelUser, ids.Kernel, 1)
	}
	for _, path := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the user namespace: %w", err)
		}
		if has := strings.Join(strings.Fields(string(data)), " "); has != want {
			return fmt.Errorf("%s has the IDs %q, want %q", role, has, want)
		}
	}
	return nil
}

// kernelUser is the only user of a kernel's user namespace in gVisor.
const kernelUser = 65534

// newContainer creates a kernel and, where one is needed, its file server, with the IDs.
//
// gVisor maps the only user of a kernel's namespace to the real ID of the thread that creates it.
// So this uses a thread with that real ID. The rights of the thread depend on its effective ID,
// which does not change. A kernel with other IDs ends at once: see checkProcess.
func newContainer(conf *config.Config, args container.Args, ids *sandboxIDs) (*container.Container, error) {
	if ids == nil {
		return container.New(conf, args)
	}
	type result struct {
		container *container.Container
		err       error
	}
	done := make(chan result, 1)
	go func() {
		// While it is locked, no other thread is created from this one. Unless its IDs are set
		// back it stays locked, and ends with this function.
		runtime.LockOSThread()
		if err := setRealIDs(ids.Kernel); err != nil {
			done <- result{err: fmt.Errorf("switch to the sandbox's IDs: %w", err)}
			return
		}
		c, err := container.New(conf, args)
		if setRealIDs(0) == nil {
			runtime.UnlockOSThread()
		}
		done <- result{c, err}
	}()
	r := <-done
	return r.container, r.err
}

// setRealIDs changes the real IDs of this thread alone, unlike the functions of package syscall.
func setRealIDs(id int) error {
	const unchanged = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(id), unchanged, unchanged); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id), unchanged, unchanged); errno != 0 {
		return errno
	}
	return nil
}

// reserveIDs assigns IDs to a sandbox, if this user may assign any. The engine gets the lock.
func (p *Provider) reserveIDs(req *createRequest, seesOwners bool) (*os.File, error) {
	if p.ids == nil {
		return nil, nil //nolint:nilnil // no IDs to lock
	}
	ids, lock, err := p.ids.lockSandbox(seesOwners)
	if err != nil {
		return nil, err
	}
	req.IDs = &ids
	return lock, nil
}
