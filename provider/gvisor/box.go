package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// createRequest describes a sandbox to the engine. The files that it needs come with it: see
// createFiles.
type createRequest struct {
	Hostname string         `json:"hostname"`
	Layer    layer          `json:"layer"`
	Limits   limitsRequest  `json:"limits"`
	Setup    guest.Setup    `json:"setup"`
	Mounts   []mountRequest `json:"mounts,omitempty"`
	// Network is nil for an offline sandbox.
	Network *gatewayConfig `json:"network,omitempty"`
	// Saved means that the files of a saved layer come with the request.
	Saved bool `json:"saved,omitempty"`
	// Restored means that the files of a saved kernel do. Renew means that the files, of either
	// kind, belong to another sandbox.
	Restored bool `json:"restored,omitempty"`
	Renew    bool `json:"renew,omitempty"`
	// SetIDs has the set-user-ID and set-group-ID bits of programs apply, as sudo needs it.
	SetIDs bool `json:"setIDs,omitempty"`
	// Group is that of the record.
	Group sandpit.ID `json:"group,omitempty"`
	// IDs are those of its processes. Nil: the engine's root.
	IDs *sandboxIDs `json:"ids,omitempty"`
	// Owner shares the CPU with other owners, whatever number of sandboxes each has.
	Owner string `json:"owner,omitempty"`
}

// newCreateRequest describes the sandbox of a record, except for its mounts and network.
func newCreateRequest(rec record, src bootSource) createRequest {
	req := createRequest{
		Hostname: cmp.Or(rec.Spec.Hostname, "sandpit"), Limits: rec.Limits,
		Saved: len(src.layer) > 0, Restored: len(src.kernel) > 0, Renew: src.isCopy,
		Group: rec.Group, Owner: rec.Spec.Labels[sandpit.OwnerLabel],
		SetIDs: len(rec.Shown) == 0, // an image's programs are for the sandbox; the machine's are for the machine's users
	}
	req.Limits.Kernel = src.kernelMemory
	for _, m := range rec.Shown { // by path: only what every user may read
		req.Mounts = append(req.Mounts, mountRequest{
			mountSource: mountSource{Path: m.Source, IsDir: true}, Target: m.Target, ReadOnly: true, Image: true,
		})
	}
	return req
}

// createFiles are the files that come with a createRequest.
type createFiles struct {
	record   *os.File // locked
	root     *os.File // the image
	guest    *os.File // the guest's image
	identity *os.File
	idLock   *os.File   // the lock of its IDs; nil without IDs of its own
	layer    []*os.File // a saved layer, in the order of layerFileNames
	kernel   []*os.File // a saved kernel, in the order of kernelFileNames
	mounts   []*os.File // one for each detached mountSource
}

// list returns the files in the order in which they are sent.
func (f createFiles) list() []*os.File {
	files := []*os.File{f.record, f.root, f.guest, f.identity}
	if f.idLock != nil {
		files = append(files, f.idLock)
	}
	return slices.Concat(files, f.layer, f.kernel, f.mounts)
}

// nameFiles returns the files of a request by their names. It is the opposite of list.
func (r createRequest) nameFiles(files []*os.File) (createFiles, error) {
	var named createFiles
	rest := files
	takeN := func(count int) []*os.File {
		count = min(count, len(rest))
		taken := rest[:count]
		rest = rest[count:]
		return taken
	}
	take := func(to **os.File) {
		for _, f := range takeN(1) {
			*to = f
		}
	}
	for _, to := range []**os.File{&named.record, &named.root, &named.guest, &named.identity} {
		take(to)
	}
	if r.IDs != nil {
		take(&named.idLock)
	}
	if r.Saved {
		named.layer = takeN(len(layerFileNames()))
	} else if r.Restored {
		named.kernel = takeN(len(kernelFileNames()))
	}
	named.mounts = rest
	if named.identity == nil || r.IDs != nil && named.idLock == nil ||
		r.Saved && len(named.layer) < len(layerFileNames()) ||
		r.Restored && !r.Saved && len(named.kernel) < len(kernelFileNames()) {
		return createFiles{}, sandpit.Errorf(sandpit.Invalid, "create: files are missing")
	}
	return named, nil
}

// layer is where a sandbox's own changes to its files go.
type layer struct {
	// Size is the most that may be written, in bytes.
	Size int64 `json:"size"`
	// Dir, if set, is where on disk; else the changes are kept in memory.
	Dir *mountSource `json:"dir,omitempty"`
}

// medium is the layer in gVisor's words.
func (l layer) medium() string {
	if l.Dir == nil {
		return "memory"
	}
	return "dir=" + l.Dir.Path
}

// mountRequest is a directory or file of the machine to be seen inside.
type mountRequest struct {
	mountSource
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Image says that the files belong to the image: what changes on the machine
	// later need not be seen inside.
	Image bool `json:"image,omitempty"`
}

// mountSource is something of the machine that the engine can reach: by its
// path, or as a detached mount that came with the request.
type mountSource struct {
	Path     string `json:"path"`
	Detached bool   `json:"detached,omitempty"`
	// Exact says that no part of the path may be a link.
	Exact bool `json:"exact,omitempty"`
	IsDir bool `json:"is_dir,omitempty"`
}

// box is one sandbox in its engine.
type box struct {
	id       sandpit.ID
	group    sandpit.ID // names the control group inside
	gateways *gatewayClient

	mu        sync.Mutex // one change at a time
	container *container.Container
	conduit   *os.File // our end of the guest's conduit; nil before and after
	lock      *os.File // the locked record: locked means that the sandbox exists
	attached  []string // mount points to be undone
	limits    *limits
	guard     *memoryGuard // nil without a memory limit
	paused    bool
	saved     bool     // paused because it was saved: it is about to be stopped, or paused on disk
	stopped   bool     // its end is none
	life      *os.File // the gateway is there until this is closed; nil offline
	destroyed bool
	root      *os.File // the image, which so stays in the cache
	guest     *os.File // the guest's
	identity  *os.File // an identity, in memory
	idLock    *os.File // keeps others from using the sandbox's IDs; nil if it has none

	settings   []byte // the guest's, while it is held
	pauseAfter bool   // what saved it is to be undone by a pause

	ended   chan struct{} // closed when the kernel process has ended
	endOnce sync.Once
	exit    sandpit.Exit
}

func newBox(id sandpit.ID, gateways *gatewayClient) *box {
	return &box{id: id, gateways: gateways, ended: make(chan struct{})}
}

func (b *box) dir() string { return filepath.Join(bundleDir, string(b.id)) }

// create starts the sandbox and returns what is not enforced of its limits. What
// it leaves when it fails is for destroy.
func (b *box) create(ctx context.Context, req createRequest, g cgroup.Groups, files []*os.File) (notes []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.destroyed {
		return nil, sandpit.Errorf(sandpit.Gone, "sandbox %s was destroyed meanwhile", b.id)
	}
	named, err := req.nameFiles(files)
	if err != nil {
		return nil, err
	}
	b.group = cmp.Or(req.Group, b.id)
	if err := b.hold(named); err != nil {
		return nil, err
	}
	if err := b.makeBundle(req.IDs); err != nil {
		return nil, fmt.Errorf("make the bundle: %w", err)
	}
	if err := b.attach(&req, named.mounts); err != nil {
		return nil, err
	}
	if b.limits, err = newLimits(g, b.id, req.Owner, req.Limits, req.IDs); err != nil {
		return nil, err
	}
	if req.Saved || req.Restored {
		if err := b.limits.raiseMemory(); err != nil {
			return nil, fmt.Errorf("make room for the files: %w", err)
		}
	}
	req.Setup.Memory = b.limits.enforced.Memory
	if err := b.start(req, named); err != nil {
		return nil, err
	}
	if req.Restored || req.Renew {
		if err := b.letGoLocked(ctx, req.Renew); err != nil {
			return nil, err
		}
	}
	return b.limits.notes, nil
}

// start writes the bundle and starts the kernel and, in it, the guest.
func (b *box) start(req createRequest, files createFiles) error {
	spec := newSpec(b.dir(), req, descriptorPath(files.root, ""), descriptorPath(files.guest, ""))
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir(), "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	if err := b.limits.write(b.dir(), req.IDs); err != nil {
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
	b.conduit = ours
	var link *os.File // nil offline
	if req.Network != nil {
		if link, err = b.connect(*req.Network); err != nil {
			return err
		}
		defer link.Close()
	}
	args := container.Args{
		ID: string(b.id), Spec: spec, BundleDir: b.dir(),
		PassFiles: map[int]*os.File{guest.ConduitFD: theirs},
	}
	if req.Saved {
		if args.FSRestoreImagePath, err = b.savedDir(files.layer); err != nil {
			return fmt.Errorf("bring the files back: %w", err)
		}
	}
	b.container, err = newContainer(conf, args, req.IDs)
	if err != nil {
		return fmt.Errorf("create the kernel: %w", err)
	}
	switch {
	case req.Restored:
		err = b.restore(conf, link, files.kernel)
	case link != nil:
		err = startOnline(b.container, conf, link)
	default:
		err = b.container.Start(conf)
	}
	if err != nil {
		return fmt.Errorf("start the kernel: %w", err)
	}
	if req.Saved { // also an error if it took none of them
		if err := b.container.WaitFSRestore(); err != nil {
			return fmt.Errorf("bring the files back: %w", err)
		}
	}
	// Not by the container, which forgets its kernel when it is destroyed.
	go b.watch(b.container.Sandbox)
	return nil
}

// settle ends the start of the sandbox: from now on all of its limits count.
func (b *box) settle() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limits == nil || b.destroyed {
		return sandpit.Errorf(sandpit.Gone, "sandbox %s is gone", b.id)
	}
	if err := b.limits.lowerMemory(); err != nil {
		return err
	}
	if b.limits.events != nil {
		var err error
		if b.guard, err = startMemoryGuard(b.limits, b.conduit); err != nil {
			return err
		}
	}
	return b.limits.limitCPU()
}

// hold keeps the record's lock, and what is asked for when the sandbox is stopped,
// for as long as it exists.
func (b *box) hold(files createFiles) error {
	var errs [5]error
	b.lock, errs[0] = duplicate(files.record)
	b.root, errs[1] = duplicate(files.root)
	b.guest, errs[2] = duplicate(files.guest)
	b.identity, errs[3] = duplicate(files.identity)
	if files.idLock != nil {
		b.idLock, errs[4] = duplicate(files.idLock)
	}
	return errors.Join(errs[:]...)
}

// makeBundle makes the sandbox's directory. Of others' kernels and file servers none can
// look into it.
func (b *box) makeBundle(ids *sandboxIDs) error {
	if err := os.MkdirAll(filepath.Join(b.dir(), "root"), 0o755); err != nil { //nolint:gosec // the directory above is closed below
		return err
	}
	if ids == nil {
		return nil
	}
	return ids.give(b.dir(), 0o750)
}

// attach makes everything of the machine that the sandbox sees visible below its
// own directory, under names of ours: what people call their directories must
// not meet gVisor's ways of writing lists. It replaces the paths by those places.
func (b *box) attach(req *createRequest, detached []*os.File) error {
	sources := make([]*mountSource, 0, len(req.Mounts)+1)
	for i := range req.Mounts {
		sources = append(sources, &req.Mounts[i].mountSource)
	}
	if req.Layer.Dir != nil {
		sources = append(sources, req.Layer.Dir)
	}
	for i, s := range sources {
		place := filepath.Join(b.dir(), "mount"+strconv.Itoa(i))
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
		if err := b.attachOne(place, s.IsDir, move); err != nil {
			return fmt.Errorf("bring in %s: %w", s.Path, err)
		}
		s.Path = place
	}
	return nil
}

// attachOne makes a mount point at place and has mount cover it.
func (b *box) attachOne(place string, isDir bool, mount func() error) error {
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
	b.attached = append(b.attached, place)
	return nil
}

// watch waits for the end of the kernel process. It ends with the sandbox.
func (b *box) watch(kernel *sandbox.Sandbox) {
	ws, err := kernel.Wait(string(b.id))
	switch {
	case err != nil:
		b.end(sandpit.Exit{Reason: "the sandbox's kernel ended and nobody saw how"})
	case ws.Signaled() && b.ranOutOfMemory():
		b.end(sandpit.Exit{Known: true, Code: 137, Reason: "the sandbox's kernel was killed because memory ran out"})
	case ws.Exited():
		b.end(sandpit.Exit{
			Known: true, Code: ws.ExitStatus(),
			Reason: fmt.Sprintf("the guest ended with exit status %d", ws.ExitStatus()),
		})
	default:
		b.end(sandpit.Exit{Reason: fmt.Sprintf("the sandbox's kernel was killed by signal %d", ws.Signal())})
	}
}

// ranOutOfMemory reports whether the sandbox ended with a limit of memory
// reached. It is for when the kernel process was killed.
func (b *box) ranOutOfMemory() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limits == nil {
		return false
	}
	kills, err := b.limits.countKills()
	return err == nil && kills+b.guard.countKills() > 0
}

func (b *box) end(exit sandpit.Exit) {
	b.endOnce.Do(func() {
		b.exit = exit
		close(b.ended)
	})
}

// endedError is Gone, and says why, once the sandbox has ended.
func (b *box) endedError() error {
	select {
	case <-b.ended:
		return sandpit.Errorf(sandpit.Gone, "sandbox %s has ended: %s", b.id, b.exit.Reason)
	default:
		return nil
	}
}

func (b *box) wait(ctx context.Context) (sandpit.Exit, error) {
	select {
	case <-b.ended:
		return b.exit, nil
	case <-ctx.Done():
		return sandpit.Exit{}, ctx.Err()
	}
}

func duplicate(f *os.File) (*os.File, error) {
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
func (b *box) destroy() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.destroyed = true
	var errs []error
	if b.container != nil {
		if err := b.container.Destroy(); err != nil {
			errs = append(errs, fmt.Errorf("end the kernel: %w", err))
		}
		b.container = nil
	}
	b.settings = nil
	b.end(sandpit.Exit{Reason: "the sandbox was destroyed"})
	for _, place := range b.attached {
		if err := unix.Unmount(place, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("let go of a mount: %w", err))
		}
	}
	b.attached = nil
	b.guard.stop()
	b.guard = nil
	if b.limits != nil {
		if err := b.limits.remove(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := removeState(string(b.id)); err != nil {
		errs = append(errs, err)
	}
	if err := os.RemoveAll(b.dir()); err != nil {
		errs = append(errs, fmt.Errorf("remove the bundle: %w", err))
	}
	for _, f := range []**os.File{&b.conduit, &b.lock, &b.life, &b.root, &b.guest, &b.identity, &b.idLock} {
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
