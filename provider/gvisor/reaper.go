package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/confine"
)

// Descriptors that the reaper is started with.
const (
	reaperOwnerFD = 3 // a pipe whose other end the owner has; EOF means that the owner has ended
	reaperReadyFD = 4 // a pipe for one readyReport
	reaperLogFD   = 5 // a file for the engine's log
)

const (
	lockName    = "lock"
	boxesName   = "boxes"
	cgroupsName = "cgroups"

	// lastingArgument has the engine outlive its owner as long as it has sandboxes.
	lastingArgument = "lasting"
	lastingPeriod   = 500 * time.Millisecond
)

// readyReport reports to the owner how the start went.
type readyReport struct {
	Error *replyError `json:"error,omitempty"`
}

// reaperMain is the main function of the reaper. It creates the engine's directory, starts the
// engine and waits until the owner or the engine has ended, and for a lasting engine until its
// last sandbox has ended. Then it ends the engine, and with it every process of every sandbox in
// it, and removes the directory.
//
// The reaper and not the owner creates the directory, so that an owner that is killed at any
// moment leaves nothing: either there is no reaper and no directory yet, or the reaper sees the
// owner's pipe close.
func reaperMain(args []string) int {
	owner := os.NewFile(reaperOwnerFD, "owner")
	ready := os.NewFile(reaperReadyFD, "ready")
	log := os.NewFile(reaperLogFD, "log")
	for _, fd := range []int{reaperOwnerFD, reaperReadyFD, reaperLogFD} {
		unix.CloseOnExec(fd)
	}
	if len(args) == 0 {
		return 2
	}
	lasting := slices.Contains(args[1:], lastingArgument)
	leaveOwner(args[1:])

	dir, err := makeEngineDir(args[0])
	if err != nil {
		reportReady(ready, err)
		return 1
	}
	defer dir.remove()

	starter := newGatewayStarter(dir.path)
	grants, err := fileListener(dir.grants)
	if err != nil {
		reportReady(ready, err)
		return 1
	}
	gateways, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		reportReady(ready, err)
		return 1
	}
	conn, err := unixConn(gateways)
	if err != nil {
		reportReady(ready, err)
		return 1
	}
	engine, err := startEngine(dir, []*os.File{dir.listen, ready, dir.lock, theirs}, log)
	_ = theirs.Close()
	if err != nil {
		reportReady(ready, err)
		return 1
	}
	if err := confine.Reaper(); err != nil { // before the engine can request anything
		reportReady(ready, fmt.Errorf("confine the reaper: %w", err))
		return 1
	}
	go starter.serveEngine(conn)                                   // ends with the engine
	go func() { _ = serveListener(grants, starter.handleGrant) }() // ends with this process
	_ = ready.Close()                                              // the engine has a copy
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = engine.Wait() // ProcessState has the result
	}()
	awaitOwnerEnd(owner, ended)
	if lasting {
		awaitSandboxes(filepath.Join(args[0], boxesName), ended)
	}
	select {
	case <-ended:
		_ = writeBreakdown(dir.path, engine.ProcessState.String(), log) // a failure cannot be reported
	default:
		_ = engine.Process.Kill() // fails only if it has ended
		<-ended
	}
	return 0
}

// leaveOwner makes the reaper independent of its owner's process group and control group.
func leaveOwner(args []string) {
	// A signal to the owner's process group must not end the reaper first.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE, unix.SIGQUIT)
	cgroup.LeaveServerGroup(args) // before the engine's groups are planned
}

// reportReady sends err to the owner. If that fails, the owner has ended, which ends the reaper
// anyway.
func reportReady(ready *os.File, err error) {
	_ = json.NewEncoder(ready).Encode(readyReport{Error: newReplyError(err)})
	_ = ready.Close()
}

// awaitOwnerEnd returns when the owner or the engine has ended.
func awaitOwnerEnd(owner io.Reader, ended <-chan struct{}) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, owner)
	}()
	select {
	case <-ended:
	case <-gone:
	}
}

// awaitSandboxes returns when the engine has no more sandboxes, or has ended.
func awaitSandboxes(dir string, ended <-chan struct{}) {
	poll := time.NewTicker(lastingPeriod)
	defer poll.Stop()
	for anyLocked(dir) {
		select {
		case <-ended:
			return
		case <-poll.C:
		}
	}
}

// anyLocked reports whether a record in dir is locked: then its sandbox exists.
func anyLocked(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false // its sandboxes cannot be found either
	}
	for _, e := range entries {
		f, err := lockFile(filepath.Join(dir, e.Name()), unix.LOCK_SH|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return true
		}
		if f != nil {
			_ = f.Close()
		}
	}
	return false
}

// engineDir is the directory of one engine, in the runtime directory of its user:
//
//	lock      locked as long as the reaper or the engine runs
//	control   the engine's socket
//	boxes/    one record for each sandbox, see record.go
//	cgroups   the control groups of the engine
//	gateways/ one socket for each online sandbox, see gatewaystarter.go
//	grants    the reaper's socket, see gatewayStarter.handleGrant
type engineDir struct {
	path    string
	lock    *os.File
	listen  *os.File
	grants  *os.File
	cgroups cgroup.Groups
	ids     idMapping
	idLock  *os.File // keeps others from using ids; nil for the user's own
}

func makeEngineDir(path string) (*engineDir, error) {
	parent, err := lockFile(filepath.Dir(path), unix.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("lock the runtime directory: %w", err)
	}
	defer parent.Close()

	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, fmt.Errorf("create the engine's directory: %w", err)
	}
	d := &engineDir{path: path}
	if err := d.createFiles(); err != nil {
		d.remove()
		return nil, fmt.Errorf("prepare the engine's directory: %w", err)
	}
	return d, nil
}

func (d *engineDir) createFiles() error {
	var err error
	if d.lock, err = os.OpenFile(filepath.Join(d.path, lockName), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(d.path, boxesName), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(d.path, gatewaysName), 0o700); err != nil {
		return err
	}
	if err := d.reserveIDs(); err != nil {
		return err
	}
	if d.cgroups, err = cgroup.Plan(filepath.Base(d.path)); err != nil {
		return err
	}
	if err := d.cgroups.Create(filepath.Join(d.path, cgroupsName), d.ids.rootID()); err != nil {
		return err
	}
	if d.grants, err = listenIn(d.path, grantsName); err != nil {
		return err
	}
	return d.bindControl()
}

// reserveIDs decides which IDs the engine has.
func (d *engineDir) reserveIDs() error {
	locks, err := findIDLocks(filepath.Dir(filepath.Dir(d.path)))
	if err != nil {
		return err
	}
	if locks == nil {
		d.ids = ownIDMapping()
		return nil
	}
	id, lock, err := locks.lockEngine()
	if err != nil {
		return err
	}
	d.ids, d.idLock = engineIDMapping(id), lock
	return nil
}

// bindControl creates the control socket. The engine itself calls listen, so that the peer
// credentials of this socket are the engine's.
func (d *engineDir) bindControl() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d.listen = os.NewFile(uintptr(fd), controlName)
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Bind(fd, &unix.SockaddrUnix{Name: descriptorPath(dir, controlName)})
}

func (d *engineDir) remove() {
	// What remains is removed by the next sweepEngines.
	if err := d.cgroups.Remove(); err == nil {
		_ = os.RemoveAll(d.path)
	}
	for _, f := range []*os.File{d.lock, d.listen, d.grants, d.idLock} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// startEngine starts the engine in namespaces of its own. The files are those of engineListenFD
// and the following descriptors.
func startEngine(dir *engineDir, files []*os.File, log *os.File) (*exec.Cmd, error) {
	null, err := openNull()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	ids := dir.ids
	groups, err := json.Marshal(dir.cgroups)
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path:       selfExe,
		Args:       []string{engineRole, string(groups)},
		Env:        []string{},
		Dir:        "/",
		Stdin:      null,
		Stdout:     null,
		Stderr:     log,
		ExtraFiles: files,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID |
				unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			UidMappings:                ids.uid,
			GidMappings:                ids.gid,
			GidMappingsEnableSetgroups: ids.ranged,
			Credential:                 ids.credential,
			Pdeathsig:                  unix.SIGKILL,
		},
	}
	if dir.idLock != nil {
		cmd.Args = append(cmd.Args, idsArgument)
	}
	if dir.cgroups.V2 != "" { // only from inside it may move its children to groups below
		leaf, err := os.Open(filepath.Join(dir.cgroups.V2, cgroup.EngineLeaf))
		if err != nil {
			return nil, fmt.Errorf("start the engine: %w", err)
		}
		defer leaf.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(leaf.Fd())
	}
	if err := cmd.Start(); err != nil {
		return nil, explainNamespaceError(err)
	}
	return cmd, nil
}

// idMapping maps the users of an engine, a gateway or a dialer to IDs of the machine.
type idMapping struct {
	uid, gid   []syscall.SysProcIDMap
	ranged     bool
	credential *syscall.Credential
}

// engineIDMapping maps root to an ID of the pool, and the pool to itself: an engine assigns IDs to
// its sandboxes.
func engineIDMapping(id int) idMapping {
	m := singleIDMapping(id)
	pool := syscall.SysProcIDMap{
		ContainerID: rangeBase + kernelBlock*rangeSize, HostID: rangeBase + kernelBlock*rangeSize,
		Size: poolSize - kernelBlock*rangeSize,
	}
	m.uid = append(m.uid, pool)
	m.gid = m.uid
	return m
}

// singleIDMapping maps root to an ID of the pool.
func singleIDMapping(id int) idMapping {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
	return idMapping{uid: ids, gid: ids, ranged: true, credential: &syscall.Credential{Uid: 0, Gid: 0}}
}

// ownIDMapping maps root to this process's own user, which is all that an ordinary user may map.
func ownIDMapping() idMapping {
	return idMapping{
		uid: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		gid: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
}

// rootID returns the ID of root on the machine.
func (m idMapping) rootID() int { return m.uid[0].HostID }

// lockFile opens path, an existing file or directory, and locks it.
func lockFile(path string, how int) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
