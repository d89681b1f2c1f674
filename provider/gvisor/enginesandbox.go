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
	group    sandpit.ID // names the control group inside
	gateways *gatewayRequester

	mu          sync.Mutex // one change at a time
	container   *container.Container
	conduit     *os.File // our end of the guest's conduit; nil before and after
	lock        *os.File // the locked record: locked means that the sandbox exists
	attached    []string // mount points to be undone
	limits      *limits
	guard       *memoryGuard // nil without a memory limit
	paused      bool
	isSaved     bool     // paused because it was saved: it is about to be stopped, or paused on disk
	stopped     bool     // its end is none
	gatewayLife *os.File // the gateway is there until this is closed; nil offline
	destroyed   bool
	root        *os.File // the image, which so stays in the cache
	guest       *os.File // the guest's
	identity    *os.File // an identity, in memory
	idLock      *os.File // keeps others from using the sandbox's IDs; nil if it has none

	guestSettings []byte // the guest's, while it is held
	pauseAfter    bool   // what saved it is to be undone by a pause

	ended   chan struct{} // closed when the kernel process has ended
	endOnce sync.Once
	exit    sandpit.Exit
}

func newEngineSandbox(id sandpit.ID, gateways *gatewayRequester) *engineSandbox {
	return &engineSandbox{id: id, gateways: gateways, ended: make(chan struct{})}
}

func (sb *engineSandbox) bundlePath() string { return filepath.Join(bundleDir, string(sb.id)) }

// create starts the sandbox and returns what is not enforced of its limits. What
// it leaves when it fails is for destroy.
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
		return nil, fmt.Errorf("make the bundle: %w", err)
	}
	if err := sb.attachMounts(&req, named.mounts); err != nil {
		return nil, err
	}
	if sb.limits, err = newLimits(g, sb.id, req.Owner, req.Limits, req.IDs); err != nil {
		return nil, err
	}
	if req.Saved || req.Restored {
		if err := sb.limits.raiseMemory(); err != nil {
			return nil, fmt.Errorf("make room for the files: %w", err)
		}
	}
	req.Setup.Memory = sb.limits.enforced.Memory
	if err := sb.startKernel(req, named); err != nil {
		return nil, err
	}
	if req.Restored || req.Renew {
		if err := sb.releaseGuestLocked(ctx, req.Renew); err != nil {
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
			return fmt.Errorf("bring the files back: %w", err)
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
	if req.Saved { // also an error if it took none of them
		if err := sb.container.WaitFSRestore(); err != nil {
			return fmt.Errorf("bring the files back: %w", err)
		}
	}
	// Not by the container, which forgets its kernel when it is destroyed.
	go sb.watchKernel(sb.container.Sandbox)
	return nil
}

// applyLimits ends the start of the sandbox: from now on all of its limits count.
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

// holdFiles keeps the record's lock, and what is asked for when the sandbox is stopped,
// for as long as it exists.
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

// makeBundle makes the sandbox's directory. Of others' kernels and file servers none can
// look into it.
func (sb *engineSandbox) makeBundle(ids *sandboxIDs) error {
	if err := os.MkdirAll(filepath.Join(sb.bundlePath(), "root"), 0o755); err != nil { //nolint:gosec // the directory above is closed below
		return err
	}
	if ids == nil {
		return nil
	}
	return ids.giveFile(sb.bundlePath(), 0o750)
}

// attachMounts makes everything of the machine that the sandbox sees visible below its
// own directory, under names of ours: what people call their directories must
// not meet gVisor's ways of writing lists. It replaces the paths by those places.
func (sb *engineSandbox) attachMounts(req *createRequest, detached []*os.File) error {
	sources := make([]*mountSource, 0, len(req.Mounts)+1)
	for i := range req.Mounts {
		sources = append(sources, &req.Mounts[i].mountSource)
	}
	if req.Layer.Dir != nil {
		sources = append(sources, req.Layer.Dir)
	}
	for i, s := range sources {
		place := filepath.Join(sb.bundlePath(), "mount"+strconv.Itoa(i))
		move := func() error {
			return unix.Mount(filepath.Join(hostRoot, s.Path), place, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if s.Exact {
			move = func() error { return bindExact(s.Path, place) }
		}
		if s.Detached {
			if len(detached) == 0 {
				return sandpit.Errorf(sandpit.Invalid, "create: files are missing")
			}
			fd := int(detached[0].Fd())
			move = func() error { return unix.MoveMount(fd, "", unix.AT_FDCWD, place, unix.MOVE_MOUNT_F_EMPTY_PATH) }
			detached = detached[1:]
		}
		if err := sb.attachMount(place, s.IsDir, move); err != nil {
			return fmt.Errorf("bring in %s: %w", s.Path, err)
		}
		s.Path = place
	}
	return nil
}

// attachMount makes a mount point at place and has mount cover it.
func (sb *engineSandbox) attachMount(place string, isDir bool, mount func() error) error {
	var err error
	if isDir {
		err = os.Mkdir(place, 0o700)
	} else {
		err = os.WriteFile(place, nil, 0o600)
	}
	if err != nil {
		return err
	}
	if err := mount(); err != nil {
		return err
	}
	sb.attached = append(sb.attached, place)
	return nil
}

// watchKernel waits for the end of the kernel process. It ends with the sandbox.
func (sb *engineSandbox) watchKernel(kernel *sandbox.Sandbox) {
	ws, err := kernel.Wait(string(sb.id))
	switch {
	case err != nil:
		sb.setEnded(sandpit.Exit{Reason: "the sandbox's kernel ended and nobody saw how"})
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

// ranOutOfMemory reports whether the sandbox ended with a limit of memory
// reached. It is for when the kernel process was killed.
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

// endedError is Gone, and says why, once the sandbox has ended.
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

func duplicateFile(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func socketPair(kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// destroy ends the sandbox and removes what the engine keeps of it. It may be
// called again after a failure.
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
	for _, place := range sb.attached {
		if err := unix.Unmount(place, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("let go of a mount: %w", err))
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

// removeState removes what gVisor leaves in its state directory when a
// creation breaks off.
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
