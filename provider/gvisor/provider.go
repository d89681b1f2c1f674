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
	"slices"
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

// Config says how a Provider works.
type Config struct {
	// RuntimeDir holds sockets and records of living sandboxes. It must exist,
	// belong to this user and be closed to others.
	RuntimeDir string
	// ScratchDir is where sandboxes that see directories of the machine keep
	// what they write, in files without a name. Same conditions.
	ScratchDir string
	// VolumeDir is where volumes are kept. It is made if it is not there; same
	// conditions. Default: volumes are Unsupported.
	VolumeDir string
	// KeepDir is where stopped sandboxes are kept, with their files and environment,
	// until they are started or destroyed, whatever becomes of Providers, engines and
	// the machine. Same conditions. Default: none, and sandboxes cannot be stopped.
	KeepDir string
	// SnapshotDir is where snapshots are kept, until they are removed. It is made if it is
	// not there; same conditions. Default: none, and sandboxes cannot be saved.
	SnapshotDir string
	// SuspendDir is where sandboxes are kept that are paused on disk, with their memory,
	// environment and key. It is made if it is not there; same conditions. Default: none,
	// and sandboxes cannot be suspended or rolled back. Both need a KeepDir.
	SuspendDir string
	// CheckpointBytes is how large the checkpoints of all sandboxes in the KeepDir may be
	// together, and CheckpointAge how old one may become: it is not there any more then.
	// Default: no limits.
	CheckpointBytes int64
	CheckpointAge   time.Duration
	// Archive is where the files of archived sandboxes go. Default: none, and sandboxes
	// cannot be archived.
	Archive archive.Store
	// Images turns image references into files.
	Images *image.Store
	// Engine is a statically linked sandpit. Default: the running program.
	Engine string
	// Defaults are the limits of sandboxes that ask for none. A field that is
	// zero stands for DefaultLimits.
	Defaults sandpit.Resources
	// Lasting has sandboxes outlive the Provider and its process: others find and
	// attach them by the RuntimeDir. Their engine ends within a second after the last
	// of them was destroyed. Default: they end with the Provider.
	Lasting bool
	// ServerGroup is the control group that this process has entered. What the Provider
	// starts leaves it. Default: none.
	ServerGroup *ServerGroup
	// Resolvers answer the DNS questions of online sandboxes. Default: those of the
	// machine.
	Resolvers []netip.AddrPort
	// Roots are authorities, as PEM, that hosts are believed by, besides the machine's,
	// for which headers are set. Default: none.
	Roots []byte
	// Liveness bounds calls into sandboxes. Default: that of liveness.Options.
	Liveness liveness.Options
	// Notice hears, once each, which default limits this machine cannot
	// enforce. Default: nobody.
	Notice func(text string)
	// EngineLost is told of an engine of this Provider that has ended by itself, and all of its
	// sandboxes with it: the first words of what it said. It must not block. Default: nobody is.
	EngineLost func(words string)
	// Progress hears about images being converted. Default: nobody.
	Progress image.Progress
}

const (
	enginesName  = "engines"
	startTimeout = 30 * time.Second
)

// DefaultLimits are the limits of a sandbox when nobody says anything else. The
// disk's is half of the memory's where files are kept in memory: see layerFor.
func DefaultLimits() sandpit.Resources {
	return sandpit.Resources{Memory: 512 << 20, CPUs: 1, Disk: 10 << 30, PIDs: 1024}
}

// Provider makes sandboxes in an engine of its own, which it starts with the
// first sandbox and which ends, with all of its sandboxes, when the Provider is
// closed or its process dies in whatever way, unless Config says that they last.
// List and Attach reach the sandboxes of every engine in the same runtime
// directory.
type Provider struct {
	cfg     Config
	binary  engineBinary
	engines string // directory of engines
	keep    keeper
	// snapshots and suspended are sandboxes with their memory.
	snapshots vault
	suspended vault
	// saved has the last checkpoint of each running sandbox that has one.
	saved    keeper
	archived archived
	// guestKey names the guest that was built in; "" is none.
	guestKey string
	// ids are the locks of IDs. Nil: sandboxes have those of the user.
	ids *idLocks

	mu      sync.Mutex
	engine  *engineProcess
	noticed map[string]bool // told to Config.Notice
	closed  bool
}

var _ sandpit.Provider = (*Provider)(nil)

// New returns a Provider. It starts nothing yet, but removes what engines that
// died by force have left in the runtime directory.
//
// Unsupported: the engine's binary cannot hold a sandbox.
func New(cfg Config) (*Provider, error) {
	bin, err := readBinary(cfg.Engine)
	if err != nil {
		return nil, err
	}
	cfg.Defaults = orDefaults(cfg.Defaults, DefaultLimits())
	p := &Provider{
		cfg: cfg, binary: bin, engines: filepath.Join(cfg.RuntimeDir, enginesName),
		guestKey: guestbin.Digest(runtime.GOARCH), noticed: make(map[string]bool), keep: keeper{dir: cfg.KeepDir},
		snapshots: vault{cfg.SnapshotDir, "snapshot", func(id string) error { return sandpit.SnapshotID(id).Validate() }},
		suspended: vault{cfg.SuspendDir, "suspended sandbox", func(id string) error { return sandpit.ID(id).Validate() }},
	}
	if err := os.Mkdir(p.engines, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make the runtime directory: %w", err)
	}
	if cfg.VolumeDir != "" {
		if err := os.Mkdir(cfg.VolumeDir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make the directory of volumes: %w", err)
		}
	}
	if p.ids, err = findIDLocks(cfg.RuntimeDir); err != nil {
		return nil, err
	}
	if err := p.openCold(); err != nil {
		return nil, err
	}
	return p, errors.Join(sweep(p.engines), p.keep.sweep(), p.snapshots.sweep(), p.suspended.sweep())
}

// Create implements sandpit.Provider.
func (p *Provider) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	if err := errors.Join(id.Validate(), validateSpec(spec)); err != nil {
		return nil, err
	}
	make := p.create
	if from, ok := spec.Image.Snapshot(); ok {
		make = func(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (*Instance, error) {
			return p.createCopy(ctx, id, from, spec)
		}
	}
	inst, err := make(ctx, id, spec)
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	return inst, nil
}

func (p *Provider) create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (*Instance, error) {
	// The engine takes as long to start as an image takes to be found.
	started := make(chan error, 1)
	var eng *engineProcess
	go func() {
		var err error
		eng, err = p.startEngine(ctx)
		started <- err
	}()
	img, err := p.openImages(ctx, spec)
	defer img.close()
	if err := errors.Join(err, <-started); err != nil {
		return nil, err
	}
	if err := p.expectNew(id); err != nil {
		return nil, err
	}
	rec := record{
		ID: id, Spec: spec, CreatedAt: time.Now(), Token: rand.Text(), Image: img.root.Config,
		Shown: img.root.Mounts, Limits: p.limitsFor(spec.Resources),
	}
	inst := newInstance(p, eng.dir, rec)
	if err := p.place(ctx, inst, rec, img); err != nil {
		return nil, err
	}
	return inst, nil
}

// place makes the sandbox in its engine. When that fails, nothing of it is left there.
func (p *Provider) place(ctx context.Context, inst *Instance, rec record, img images) error {
	dir := inst.engineDir()
	if len(img.state) == 0 { // a new kernel has one of its own
		rec.Group = ""
	}
	file, err := p.announce(dir, rec)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := p.boot(ctx, inst, rec, img, file); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		return errors.Join(err, inst.end(clean, dir, p.away(inst.id) != nil))
	}
	return nil
}

// announce writes the record of a sandbox, from when on its volumes stay.
func (p *Provider) announce(engine string, rec record) (*os.File, error) {
	held, err := p.holdVolumes(rec.Spec)
	if err != nil {
		return nil, err
	}
	if held != nil {
		defer held.Close()
	}
	return writeRecord(engine, rec)
}

// boot has the engine make the sandbox and hands the guest its key.
func (p *Provider) boot(ctx context.Context, inst *Instance, rec record, img images, record *os.File) error {
	spec, dir := rec.Spec, inst.engineDir()
	req := createRequest{
		Hostname: spec.Hostname, Limits: rec.Limits, Saved: len(img.layer) > 0, Restored: len(img.state) > 0,
		Renew: img.renew, Group: rec.Group, Owner: spec.Labels[sandpit.OwnerLabel],
	}
	req.Limits.Kernel = img.kernel
	req.SetIDs = len(rec.Shown) == 0 // an image's programs are its own; the machine's are for the machine's users
	if req.Hostname == "" {
		req.Hostname = "sandpit"
	}
	for _, m := range rec.Shown { // by path: only what everybody may read
		req.Mounts = append(req.Mounts, mountRequest{
			mountSource: mountSource{Path: m.Source, IsDir: true}, Target: m.Target, ReadOnly: true, Image: true,
		})
	}
	private, err := identity{Env: spec.Env}.file()
	if err != nil {
		return err
	}
	defer private.Close()
	files := []*os.File{record, img.rootFile, img.guestFile, private}
	lock, err := p.reserveIDs(&req, len(spec.Mounts) > 0)
	if err != nil {
		return err
	}
	if lock != nil {
		defer lock.Close() // the engine has it now
		files = append(files, lock)
	}
	files = slices.Concat(files, img.layer, img.state)
	own, err := p.openMounts(ctx, dir, &req, spec.Mounts)
	defer closeAll(own)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(liveness.Exempt(ctx), startTimeout+img.loading)
	defer cancel()
	if req.Network = p.networkFor(spec.Network); req.Network != nil {
		req.Setup.Resolver = network.LinkAddresses().Gateway4.Addr().String()
		if err := p.grant(ctx, dir, inst.id, spec.Network, true); err != nil {
			return err
		}
	}
	rep, _, err := call(ctx, dir, request{Op: opCreate, ID: inst.id, Create: &req}, append(files, own...)...)
	if err != nil {
		if req.Network != nil {
			withdrawGrant(ctx, dir, inst.id)
		}
		return err
	}
	p.notice(rep.Notes)
	if err := inst.keyGuest(ctx, rec); err != nil {
		return err
	}
	if len(rec.Spec.Network.Headers) > 0 {
		if err := inst.trustGateway(ctx); err != nil {
			return err
		}
	}
	if err := inst.recall(ctx, img.decisions); err != nil {
		return err
	}
	_, _, err = call(ctx, dir, request{Op: opSettle, ID: inst.id})
	return err
}

// openMounts adds the caller's own directories and, when any of the machine's
// files are seen inside, the layer on disk.
func (p *Provider) openMounts(ctx context.Context, engine string, req *createRequest, mounts []sandpit.Mount) ([]*os.File, error) {
	var sources []mountedSource
	own := make([]mountRequest, len(mounts))
	for i, m := range mounts {
		path := m.Source
		if m.Volume != "" {
			path = p.volumePath(m.Volume)
		}
		own[i] = mountRequest{Target: m.Target, ReadOnly: m.ReadOnly}
		// The way to a volume is our own, and nobody else changes it.
		sources = append(sources, mountedSource{path, m.ReadOnly, m.Volume == "", true, &own[i].mountSource})
	}
	req.Layer = layerFor(req.Limits, len(mounts)+len(req.Mounts) > 0)
	if req.Layer.Dir != nil {
		sources = append(sources, mountedSource{path: p.cfg.ScratchDir, to: req.Layer.Dir})
	}
	req.Setup = setupFor(req.Limits)
	if req.Layer.Dir != nil && len(mounts)+len(req.Mounts) == 0 {
		req.Setup.Drop = goferMount
	}
	opened, err := p.openSources(ctx, engine, req.IDs, sources)
	req.Mounts = append(req.Mounts, own...)
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

// images are the opened files a sandbox starts from.
type images struct {
	root      image.Root
	rootFile  *os.File
	guestFile *os.File
	layer     []*os.File    // those of a stopped sandbox
	state     []*os.File    // those of a saved kernel
	renew     bool          // it is a copy of another sandbox's
	loading   time.Duration // how long reading these may take
	kernel    int64         // bytes of memory that the sandbox's kernel keeps of them

	decisions []sandpit.NetworkDecision // what its gateway knows from before
}

func (i images) close() {
	for _, f := range []*os.File{i.rootFile, i.guestFile} {
		if f != nil {
			_ = f.Close()
		}
	}
	closeAll(i.layer)
}

func (p *Provider) openImages(ctx context.Context, spec sandpit.Spec) (images, error) {
	var img images
	var err error
	if img.root, err = p.cfg.Images.Resolve(ctx, spec.Image, p.cfg.Progress); err != nil {
		return img, err
	}
	img.rootFile = img.root.File
	img.guestFile, err = p.openGuest(ctx)
	return img, err
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

// find returns the name of the engine that holds id, or "".
func (p *Provider) find(id sandpit.ID) (string, error) {
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

func (h handle) encode() []byte {
	data, _ := json.Marshal(h) // two strings always encode
	return data
}

// Attach implements sandpit.Provider.
func (p *Provider) Attach(ctx context.Context, data []byte) (sandpit.Instance, error) {
	var h handle
	if err := json.Unmarshal(data, &h); err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "handle: %w", err)
	}
	if err := h.ID.Validate(); err != nil {
		return nil, err
	}
	if h.Engine == "" || strings.ContainsAny(h.Engine, "/\x00") || h.Engine[0] == '.' {
		return nil, sandpit.Errorf(sandpit.Invalid, "handle: engine %q", h.Engine)
	}
	inst, err := p.attach(ctx, h)
	if sandpit.CodeOf(err) == sandpit.Gone {
		err = sandpit.Errorf(sandpit.NotFound, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	return inst, nil
}

// attach finds the sandbox: it need no longer be where it was when the handle was
// written.
func (p *Provider) attach(ctx context.Context, h handle) (*Instance, error) {
	dir, err := p.locate(ctx, h.ID)
	switch code := sandpit.CodeOf(err); code {
	case sandpit.Conflict, sandpit.Gone:
		rec, there, keptErr := p.restsOf(h.ID)
		if there || keptErr != nil {
			return newInstance(p, "", rec), keptErr
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

// Close ends the engine and every sandbox in it; of a lasting Provider it only
// lets go of them.
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
