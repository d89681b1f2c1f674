package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/files/archive"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

// Config configures a Provider. Directories must belong to this user and be closed to others.
type Config struct {
	// RuntimeDir is for sockets and records of running sandboxes. It must exist.
	RuntimeDir string
	// ScratchDir is where sandboxes that see directories of the machine store what they write,
	// in files without a name. It must exist.
	ScratchDir string
	// VolumeDir is the directory of volumes. It is created if its parent exists. Default: none,
	// and volumes are Unsupported.
	VolumeDir string
	// KeepDir has the files and environments of stopped sandboxes, and checkpoints. It must
	// exist. Default: none, and sandboxes cannot be stopped.
	KeepDir string
	// SnapshotDir has the snapshots. It is created if its parent exists. Default: none, and
	// snapshots are Unsupported.
	SnapshotDir string
	// SuspendDir has suspended sandboxes, with memory, environment and key. It is created if
	// its parent exists. Default: none, and sandboxes cannot be suspended or rolled back. Both
	// need a KeepDir.
	SuspendDir string
	// CheckpointBytes is the limit of all checkpoints together, in bytes, and CheckpointAge the
	// age at which one is removed. Default: no limits.
	CheckpointBytes int64
	CheckpointAge   time.Duration
	// Archive is the storage of archived sandboxes. Default: none, and sandboxes cannot be
	// archived.
	Archive archive.Store
	// Images resolves image references.
	Images *image.Store
	// Engine is the path of a statically linked sandpit. Default: the running program.
	Engine string
	// Defaults are the limits of sandboxes whose spec has none. All are required. Where files
	// are stored in memory, the disk's is at most half of the memory's.
	Defaults sandpit.Resources
	// Lasting has sandboxes outlive the Provider and its process: other Providers with the same
	// RuntimeDir find them. Their engine ends within a second after the last of them was
	// destroyed. Default: they end with the Provider.
	Lasting bool
	// ServerGroup is the control group that this process has entered. Processes that the
	// Provider starts leave it. Default: none.
	ServerGroup *ServerGroup
	// Resolvers are the DNS servers for online sandboxes. Default: those of the machine.
	Resolvers []netip.AddrPort
	// Roots are authorities, as PEM, that are trusted besides the machine's when a gateway
	// connects to hosts for which headers are set. Default: none.
	Roots []byte
	// Liveness bounds calls into sandboxes. Default: that of liveness.Options.
	Liveness liveness.Options
	// Notice is called, once for each text, with the default limits that this machine cannot
	// enforce. Default: no call.
	Notice func(text string)
	// EngineLost is called with the start of the log when an engine of this Provider ends
	// unexpectedly, with all its sandboxes. It must not block. Default: no call.
	EngineLost func(log string)
	// Progress reports the conversion of images. Default: no reports.
	Progress image.Progress
}

const (
	enginesName  = "engines"
	startTimeout = 30 * time.Second
)

// Provider creates sandboxes in an engine of its own. It starts the engine with the first
// sandbox. The engine ends, with all its sandboxes, when the Provider is closed or its process
// ends, unless Config.Lasting is set. List and Attach find the sandboxes of every engine in
// the same runtime directory. A Provider is safe for concurrent use.
type Provider struct {
	cfg     Config
	binary  engineBinary
	engines string // directory of engines
	states  *savedStates
	// guestDigest identifies the guest that is built in; empty: no guest is.
	guestDigest string
	// ids are the locks of IDs. Nil: sandboxes have the IDs of the user.
	ids *idLocks

	mu      sync.Mutex
	engine  *engineProcess
	noticed map[string]bool // passed to Config.Notice
	closed  bool
}

var _ sandpit.Provider = (*Provider)(nil)

// New returns a Provider. It starts no engine, but removes what killed engines have left in
// the runtime directory.
//
// Unsupported: the engine's binary cannot run a sandbox. Invalid: a default limit is missing.
func New(cfg Config) (*Provider, error) {
	if d := cfg.Defaults; d.Memory <= 0 || d.CPUs <= 0 || d.Disk <= 0 || d.PIDs <= 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "default limits %+v: all must be positive", d)
	}
	bin, err := readBinary(cfg.Engine)
	if err != nil {
		return nil, err
	}
	p := &Provider{
		cfg: cfg, binary: bin, engines: filepath.Join(cfg.RuntimeDir, enginesName),
		guestDigest: guestbin.Digest(runtime.GOARCH), noticed: make(map[string]bool), states: newSavedStates(cfg),
	}
	if err := os.Mkdir(p.engines, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("create the runtime directory: %w", err)
	}
	if cfg.VolumeDir != "" {
		if err := os.Mkdir(cfg.VolumeDir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("create the directory of volumes: %w", err)
		}
	}
	if p.ids, err = findIDLocks(cfg.RuntimeDir); err != nil {
		return nil, err
	}
	if err := p.states.open(); err != nil {
		return nil, err
	}
	return p, sweepEngines(p.engines)
}

// Create implements sandpit.Provider.
func (p *Provider) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	if err := errors.Join(id.Validate(), validateSpec(spec)); err != nil {
		return nil, err
	}
	var inst *Instance
	var err error
	if snapshot, ok := spec.Image.Snapshot(); ok {
		inst, err = p.createCopy(ctx, id, snapshot, spec)
	} else {
		inst, err = p.createFromImage(ctx, id, spec)
	}
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	return inst, nil
}

func (p *Provider) createFromImage(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (*Instance, error) {
	// Starting the engine and opening the image take equally long.
	started := make(chan error, 1)
	go func() {
		_, err := p.startEngine(ctx)
		started <- err
	}()
	src, err := p.openImages(ctx, spec)
	defer src.close()
	if err := errors.Join(err, <-started); err != nil {
		return nil, err
	}
	if err := p.checkUnused(id); err != nil {
		return nil, err
	}
	return p.createInEngine(ctx, record{
		ID: id, Spec: spec, CreatedAt: time.Now(), Token: rand.Text(), Image: src.root.Config,
		Shown: src.root.Mounts, Limits: p.limitsFor(spec.Resources),
	}, src)
}

// createInEngine creates the sandbox in the provider's engine. If that fails, nothing of it
// remains there.
func (p *Provider) createInEngine(ctx context.Context, rec record, src bootSource) (*Instance, error) {
	process, err := p.startEngine(ctx)
	if err != nil {
		return nil, err
	}
	inst := newInstance(p, process.dir, rec)
	if len(src.kernel) == 0 { // a new kernel has a control group of its own
		rec.Group = ""
	}
	file, err := p.writeNewRecord(process.dir, rec)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := p.bootSandbox(ctx, inst, rec, src, file); err != nil {
		undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		return nil, errors.Join(err, inst.location.engine().end(undoCtx, p.states.notRunning(inst.id) != nil))
	}
	return inst, nil
}

// writeNewRecord writes the record of a sandbox. From then on its volumes cannot be removed.
func (p *Provider) writeNewRecord(engineDir string, rec record) (*os.File, error) {
	lock, err := p.lockVolumesOf(rec.Spec)
	if err != nil {
		return nil, err
	}
	if lock != nil {
		defer lock.Close()
	}
	return writeRecord(engineDir, rec)
}

// bootSandbox has the engine create the sandbox, and initializes the guest.
func (p *Provider) bootSandbox(ctx context.Context, inst *Instance, rec record, src bootSource, record *os.File) error {
	engine := inst.location.engine()
	req := newCreateRequest(rec, src)
	private, err := identity{Env: rec.Spec.Env}.toFile()
	if err != nil {
		return err
	}
	defer private.Close()
	files := createFiles{
		record: record, root: src.rootFile, guest: src.guestFile, identity: private, layer: src.layer, kernel: src.kernel,
	}
	if files.idLock, err = p.reserveIDs(&req, len(rec.Spec.Mounts) > 0); err != nil {
		return err
	}
	if files.idLock != nil {
		defer files.idLock.Close() // the engine has a copy then
	}
	files.mounts, err = p.openMounts(ctx, engine.dir, &req, rec.Spec.Mounts)
	defer closeAll(files.mounts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(liveness.Exempt(ctx), startTimeout+src.loadTime)
	defer cancel()
	if req.Network = p.newGatewayConfig(rec.Spec.Network); req.Network != nil {
		req.Setup.Resolver = network.LinkAddresses().Gateway4.Addr().String()
		if err := p.grantRanges(ctx, engine.dir, inst.id, rec.Spec.Network, true); err != nil {
			return err
		}
	}
	rep, err := engine.run(ctx, request{Op: opCreate, Create: &req}, files.inOrder()...)
	if err != nil {
		if req.Network != nil {
			withdrawGrant(ctx, engine.dir, inst.id)
		}
		return err
	}
	p.notifyLimits(rep.Notes)
	return p.initializeSandbox(ctx, inst, rec, src.decisions)
}

// initializeSandbox prepares a sandbox whose guest has started, and then has all limits apply.
func (p *Provider) initializeSandbox(ctx context.Context, inst *Instance, rec record, decisions []sandpit.NetworkDecision) error {
	if err := inst.initGuest(ctx, rec); err != nil {
		return err
	}
	if len(rec.Spec.Network.Headers) > 0 {
		if err := inst.network.installTrust(ctx); err != nil {
			return err
		}
	}
	if err := inst.network.restoreDecisions(ctx, decisions); err != nil {
		return err
	}
	_, err := inst.location.engine().run(ctx, request{Op: opSettle})
	return err
}

// openMounts adds the mounts of the spec to the request and, if the sandbox sees any files of
// the machine, the layer on disk.
func (p *Provider) openMounts(ctx context.Context, engineDir string, req *createRequest, mounts []sandpit.Mount) ([]*os.File, error) {
	var sources []mountedSource
	added := make([]mountRequest, len(mounts))
	for i, m := range mounts {
		path, exact := m.Source, true
		switch {
		case m.Subpath != "":
			var err error
			if path, err = p.makeSubpath(m); err != nil {
				return nil, err
			}
		case m.Volume != "":
			path, exact = p.volumePath(m.Volume), false // the path is the provider's, and no other user changes it
		}
		added[i] = mountRequest{Target: m.Target, ReadOnly: m.ReadOnly}
		sources = append(sources, mountedSource{path, m.ReadOnly, exact, true, &added[i].mountSource})
	}
	req.Layer = layerFor(req.Limits, len(mounts)+len(req.Mounts) > 0)
	if req.Layer.Dir != nil {
		sources = append(sources, mountedSource{path: p.cfg.ScratchDir, result: req.Layer.Dir})
	}
	req.Setup = setupFor(req.Limits)
	if req.Layer.Dir != nil && len(mounts)+len(req.Mounts) == 0 {
		req.Setup.Drop = goferMount
	}
	opened, err := p.openSources(ctx, engineDir, req.IDs, sources)
	req.Mounts = append(req.Mounts, added...)
	return opened, err
}

var _ sandpit.ImagePreparer = (*Provider)(nil)

// PrepareImage implements sandpit.ImagePreparer.
func (p *Provider) PrepareImage(ctx context.Context, ref sandpit.Image) error {
	root, err := p.cfg.Images.Resolve(ctx, ref, p.cfg.Progress)
	if err != nil {
		return err
	}
	return root.File.Close()
}

// bootSource is what a sandbox starts from: an image, and a saved layer or kernel.
type bootSource struct {
	root      image.Root // without its file
	rootFile  *os.File
	guestFile *os.File
	layer     []*os.File // a saved layer, in the order of layerFileNames
	kernel    []*os.File // a saved kernel, in the order of kernelFileNames
	isCopy    bool       // they belong to another sandbox, too

	loadTime     time.Duration // how long reading the files may take
	kernelMemory int64         // bytes of memory that the kernel keeps of the files

	decisions []sandpit.NetworkDecision // of the gateway before
}

func (s bootSource) close() {
	for _, f := range []*os.File{s.rootFile, s.guestFile} {
		if f != nil {
			_ = f.Close()
		}
	}
	closeAll(s.layer)
}

func (p *Provider) openImages(ctx context.Context, spec sandpit.Spec) (bootSource, error) {
	var src bootSource
	var err error
	if src.root, err = p.cfg.Images.Resolve(ctx, spec.Image, p.cfg.Progress); err != nil {
		return src, err
	}
	src.rootFile = src.root.File
	src.guestFile, err = p.openGuest(ctx)
	return src, err
}

func (p *Provider) openGuest(ctx context.Context) (*os.File, error) {
	path, err := p.guestImage(ctx)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the guest: %w", err)
	}
	return f, nil
}

// findEngine returns the name of the engine that has the sandbox, or "".
func (p *Provider) findEngine(id sandpit.ID) (string, error) {
	engines, err := os.ReadDir(p.engines)
	if err != nil {
		return "", fmt.Errorf("list the engines: %w", err)
	}
	for _, e := range engines {
		if _, err := os.Lstat(recordPath(filepath.Join(p.engines, e.Name()), id)); err == nil {
			return e.Name(), nil
		}
	}
	return "", nil
}

// handle is what Attach needs.
type handle struct {
	Engine string     `json:"engine"`
	ID     sandpit.ID `json:"id"`
}

func (h handle) toJSON() []byte {
	data, _ := json.Marshal(h) // two strings always encode
	return data
}

// Attach implements sandpit.Provider.
func (p *Provider) Attach(ctx context.Context, data []byte) (sandpit.Instance, error) {
	var h handle
	if err := json.Unmarshal(data, &h); err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "invalid handle: %w", err)
	}
	if err := h.ID.Validate(); err != nil {
		return nil, err
	}
	if h.Engine == "" || strings.ContainsAny(h.Engine, "/\x00") || h.Engine[0] == '.' {
		return nil, sandpit.Errorf(sandpit.Invalid, "invalid handle: engine %q", h.Engine)
	}
	inst, err := p.attachSandbox(ctx, h)
	if sandpit.CodeOf(err) == sandpit.Gone {
		err = sandpit.Errorf(sandpit.NotFound, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	return inst, nil
}

// attachSandbox finds the sandbox, which may have moved since the handle was made.
func (p *Provider) attachSandbox(ctx context.Context, h handle) (*Instance, error) {
	dir, err := p.locateSandbox(ctx, h.ID)
	switch code := sandpit.CodeOf(err); code {
	case sandpit.Conflict, sandpit.Gone:
		rec, exists, findErr := p.states.find(h.ID)
		if exists || findErr != nil {
			return newInstance(p, "", rec), findErr
		}
		if code == sandpit.Gone {
			err = brokenError(ctx, filepath.Join(p.engines, h.Engine), err)
		}
	default:
	}
	if err != nil {
		return nil, err
	}
	rec, err := readRecord(dir, h.ID)
	if err != nil {
		return nil, err
	}
	return newInstance(p, dir, rec), nil
}

// Close ends the engine and every sandbox in it. The engine of a lasting Provider keeps
// running.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.engine == nil {
		return nil
	}
	if p.cfg.Lasting {
		p.engine.release()
		p.engine = nil
		return nil
	}
	err := p.engine.stop()
	p.engine = nil
	return err
}
