package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// engineSandbox is one sandbox in its engine.
type engineSandbox struct {
	id       sandpit.ID
	group    sandpit.ID // the name of the control group inside
	gateways *gatewayRequester

	mu          sync.Mutex
	container   *container.Container
	conduit     *os.File // the engine's end of the guest's conduit; nil before the start and after the end
	lock        *os.File // the locked record: while it is locked, the sandbox exists
	attached    []string // mount points to unmount
	limits      *limits
	guard       *memoryGuard // nil without a memory limit
	paused      bool
	isSaved     bool     // paused because it was saved: it is about to be stopped or suspended
	stopped     bool     // the end of the kernel is not the end of the sandbox
	gatewayLife *os.File // the gateway runs until this is closed; nil offline
	destroyed   bool
	root        *os.File // the image, which stays in the cache while it is open
	guest       *os.File // the guest's image
	identity    *os.File // in memory
	idLock      *os.File // keeps others from using the sandbox's IDs; nil if it has none

	guestSettings []byte // while the guest is quiesced
	pauseAfter    bool   // undoing the save pauses it

	ended   chan struct{} // closed when the kernel process has ended
	endOnce sync.Once
	exit    sandpit.Exit
}

func newEngineSandbox(id sandpit.ID, gateways *gatewayRequester) *engineSandbox {
	return &engineSandbox{id: id, gateways: gateways, ended: make(chan struct{})}
}

func (sb *engineSandbox) bundlePath() string { return filepath.Join(bundleDir, string(sb.id)) }

// create starts the sandbox and returns which limits are not enforced. If it fails, the caller
// calls destroy.
func (sb *engineSandbox) create(ctx context.Context, req createRequest, g cgroup.Groups, files []*os.File) (notes []string, err error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.destroyed {
		return nil, sandpit.Errorf(sandpit.Gone, "sandbox %s was destroyed meanwhile", sb.id)
	}
	named, err := req.nameFiles(files)
	if err != nil {
		return nil, err
	}
	sb.group = cmp.Or(req.Group, sb.id)
	if err := sb.holdFiles(named); err != nil {
		return nil, err
	}
	if err := sb.makeBundle(req.IDs); err != nil {
		return nil, fmt.Errorf("create the bundle: %w", err)
	}
	if err := sb.attachMounts(&req, named.mounts); err != nil {
		return nil, err
	}
	if sb.limits, err = newLimits(g, sb.id, req.Owner, req.Limits, req.IDs); err != nil {
		return nil, err
	}
	if req.Saved || req.Restored {
		if err := sb.limits.raiseMemory(); err != nil {
			return nil, fmt.Errorf("raise the memory limit: %w", err)
		}
	}
	req.Setup.Memory = sb.limits.enforced.Memory
	if err := sb.startKernel(req, named); err != nil {
		return nil, err
	}
	if req.Restored || req.Renew {
		if err := sb.continueGuestLocked(ctx, req.Renew); err != nil {
			return nil, err
		}
	}
	return sb.limits.notes, nil
}

// startKernel writes the bundle and starts the kernel and, in it, the guest.
func (sb *engineSandbox) startKernel(req createRequest, files createFiles) error {
	spec := newSpec(sb.bundlePath(), req, descriptorPath(files.root, ""), descriptorPath(files.guest, ""))
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(sb.bundlePath(), "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	if err := sb.limits.writeKernelLimits(sb.bundlePath(), req.IDs); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	conf, err := newConfig(req.Layer, req.SetIDs)
	if err != nil {
		return fmt.Errorf("configure gVisor: %w", err)
	}
	ours, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	defer theirs.Close()
	sb.conduit = ours
	var link *os.File // nil offline
	if req.Network != nil {
		if link, err = sb.connectGateway(*req.Network); err != nil {
			return err
		}
		defer link.Close()
	}
	args := container.Args{
		ID: string(sb.id), Spec: spec, BundleDir: sb.bundlePath(),
		PassFiles: map[int]*os.File{guest.ConduitFD: theirs},
	}
	if req.Saved {
		if args.FSRestoreImagePath, err = sb.linkLayer(files.layer); err != nil {
			return fmt.Errorf("load the saved files: %w", err)
		}
	}
	sb.container, err = newContainer(conf, args, req.IDs)
	if err != nil {
		return fmt.Errorf("create the kernel: %w", err)
	}
	switch {
	case req.Restored:
		err = sb.restoreKernel(conf, link, files.kernel)
	case link != nil:
		err = startOnline(sb.container, conf, link)
	default:
		err = sb.container.Start(conf)
	}
	if err != nil {
		return fmt.Errorf("start the kernel: %w", err)
	}
	if req.Saved { // also an error if the kernel did not load them
		if err := sb.container.WaitFSRestore(); err != nil {
			return fmt.Errorf("load the saved files: %w", err)
		}
	}
	// The container loses its kernel when it is destroyed.
	go sb.watchKernel(sb.container.Sandbox)
	return nil
}

// applyLimits ends the start of the sandbox: all its limits apply afterwards.
func (sb *engineSandbox) applyLimits() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.limits == nil || sb.destroyed {
		return sandpit.Errorf(sandpit.Gone, "sandbox %s is gone", sb.id)
	}
	if err := sb.limits.lowerMemory(); err != nil {
		return err
	}
	if sb.limits.events != nil {
		var err error
		if sb.guard, err = startMemoryGuard(sb.limits, sb.conduit); err != nil {
			return err
		}
	}
	return sb.limits.limitCPU()
}

// holdFiles keeps the files that the sandbox needs as long as it exists: the locked record, the
// lock of its IDs, and what is requested when it is saved.
func (sb *engineSandbox) holdFiles(files createFiles) error {
	var errs [5]error
	sb.lock, errs[0] = duplicateFile(files.record)
	sb.root, errs[1] = duplicateFile(files.root)
	sb.guest, errs[2] = duplicateFile(files.guest)
	sb.identity, errs[3] = duplicateFile(files.identity)
	if files.idLock != nil {
		sb.idLock, errs[4] = duplicateFile(files.idLock)
	}
	return errors.Join(errs[:]...)
}

// makeBundle creates the sandbox's directory, which kernels and file servers of other sandboxes
// cannot read.
func (sb *engineSandbox) makeBundle(ids *sandboxIDs) error {
	if err := os.MkdirAll(filepath.Join(sb.bundlePath(), "root"), 0o755); err != nil { //nolint:gosec // the directory above is closed below
		return err
	}
	if ids == nil {
		return nil
	}
	return ids.giveFile(sb.bundlePath(), 0o750)
}

// attachMounts attaches everything of the machine that the sandbox sees below its bundle, and
// replaces the paths by the new ones. Names there are fixed, because gVisor would misinterpret
// some characters in the names of users' directories.
func (sb *engineSandbox) attachMounts(req *createRequest, detached []*os.File) error {
	sources := make([]*mountSource, 0, len(req.Mounts)+1)
	for i := range req.Mounts {
		sources = append(sources, &req.Mounts[i].mountSource)
	}
	if req.Layer.Dir != nil {
		sources = append(sources, req.Layer.Dir)
	}
	for i, s := range sources {
		target := filepath.Join(sb.bundlePath(), "mount"+strconv.Itoa(i))
		attach := func() error {
			return unix.Mount(filepath.Join(hostRoot, s.Path), target, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if s.Exact {
			attach = func() error { return bindExact(s.Path, target) }
		}
		if s.Detached {
			if len(detached) == 0 {
				return sandpit.Errorf(sandpit.Invalid, "create: files are missing")
			}
			fd := int(detached[0].Fd())
			attach = func() error { return unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH) }
			detached = detached[1:]
		}
		if err := sb.attachMount(target, s.IsDir, attach); err != nil {
			return fmt.Errorf("attach %s: %w", s.Path, err)
		}
		s.Path = target
	}
	return nil
}

// attachMount creates a mount point and calls mount to cover it.
func (sb *engineSandbox) attachMount(target string, isDir bool, mount func() error) error {
	var err error
	if isDir {
		err = os.Mkdir(target, 0o700)
	} else {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil {
		return err
	}
	if err := mount(); err != nil {
		return err
	}
	sb.attached = append(sb.attached, target)
	return nil
}

// watchKernel waits for the end of the kernel process. It returns with the sandbox's end.
func (sb *engineSandbox) watchKernel(kernel *sandbox.Sandbox) {
	ws, err := kernel.Wait(string(sb.id))
	switch {
	case err != nil:
		sb.setEnded(sandpit.Exit{Reason: "the sandbox's kernel ended for an unknown reason"})
	case ws.Signaled() && sb.ranOutOfMemory():
		sb.setEnded(sandpit.Exit{Known: true, Code: 137, Reason: "the sandbox's kernel was killed because memory ran out"})
	case ws.Exited():
		sb.setEnded(sandpit.Exit{
			Known: true, Code: ws.ExitStatus(),
			Reason: fmt.Sprintf("the guest ended with exit status %d", ws.ExitStatus()),
		})
	default:
		sb.setEnded(sandpit.Exit{Reason: fmt.Sprintf("the sandbox's kernel was killed by signal %d", ws.Signal())})
	}
}

// ranOutOfMemory reports whether the sandbox reached a memory limit. It is called after the kernel
// process was killed.
func (sb *engineSandbox) ranOutOfMemory() bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.limits == nil {
		return false
	}
	kills, err := sb.limits.countKills()
	return err == nil && kills+sb.guard.countKills() > 0
}

func (sb *engineSandbox) setEnded(exit sandpit.Exit) {
	sb.endOnce.Do(func() {
		sb.exit = exit
		close(sb.ended)
	})
}

// endedError returns Gone with the reason once the sandbox has ended.
func (sb *engineSandbox) endedError() error {
	select {
	case <-sb.ended:
		return sandpit.Errorf(sandpit.Gone, "sandbox %s has ended: %s", sb.id, sb.exit.Reason)
	default:
		return nil
	}
}

func (sb *engineSandbox) awaitEnd(ctx context.Context) (sandpit.Exit, error) {
	select {
	case <-sb.ended:
		return sb.exit, nil
	case <-ctx.Done():
		return sandpit.Exit{}, ctx.Err()
	}
}

// duplicateFile returns another descriptor of the same open file.
func duplicateFile(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// socketPair returns two connected Unix sockets of a kind.
func socketPair(kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// destroy ends the sandbox and removes what the engine has of it. It may be called again after a
// failure.
func (sb *engineSandbox) destroy() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.destroyed = true
	var errs []error
	if sb.container != nil {
		if err := sb.container.Destroy(); err != nil {
			errs = append(errs, fmt.Errorf("end the kernel: %w", err))
		}
		sb.container = nil
	}
	sb.guestSettings = nil
	sb.setEnded(sandpit.Exit{Reason: "the sandbox was destroyed"})
	for _, target := range sb.attached {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", target, err))
		}
	}
	sb.attached = nil
	sb.guard.stop()
	sb.guard = nil
	if sb.limits != nil {
		if err := sb.limits.removeGroups(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := removeState(string(sb.id)); err != nil {
		errs = append(errs, err)
	}
	if err := os.RemoveAll(sb.bundlePath()); err != nil {
		errs = append(errs, fmt.Errorf("remove the bundle: %w", err))
	}
	for _, f := range []**os.File{&sb.conduit, &sb.lock, &sb.gatewayLife, &sb.root, &sb.guest, &sb.identity, &sb.idLock} {
		if *f != nil {
			_ = (*f).Close()
			*f = nil
		}
	}
	return errors.Join(errs...)
}

// removeState removes what gVisor leaves in its state directory after a failed creation.
func removeState(id string) error {
	entries, err := os.ReadDir(stateDir)
	if err != nil {
		return fmt.Errorf("read gVisor's state: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.Contains(e.Name(), id) {
			errs = append(errs, os.RemoveAll(filepath.Join(stateDir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
