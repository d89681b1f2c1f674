// Package daemon wires the parts together. It is the only package that knows
// all of them.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/files/tempdir"
	"github.com/sandpit-dev/sandpit/internal/front/publish"
	"github.com/sandpit-dev/sandpit/provider/docker"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// Local makes sandboxes without a server: they end with this process, however
// it ends.
type Local struct {
	cfg      config.Config
	provider sandpit.Provider
	images   localImages
	progress image.Progress
	ports    *publish.Publisher
	hear     Listeners

	mu   sync.Mutex
	made []sandpit.Instance
	temp *tempdir.Session // nil: not needed so far
}

// localImages are what a Local makes sandboxes from.
type localImages interface {
	imageConfig(ctx context.Context, ref sandpit.Image, progress image.Progress) (ImageConfig, error)
	hasImage(ctx context.Context, name string) (bool, error)
}

// Listeners are callbacks. Each may be nil.
type Listeners struct {
	// Progress reports the conversion of images.
	Progress func(done, total int64)
	// Notice reports default limits that this machine cannot enforce.
	Notice func(text string)
	// Left reports temporary directories that are kept, in a sentence for people.
	Left func(text string)
	// Published reports the opened ports before the sandbox is created.
	Published func(ports []sandpit.Port)
	// Admit decides about each command before it starts: see Admission. Default: all run.
	Admit func(ctx context.Context, args []string, dir string) error
	// ConfineFiles confines file calls to a sandbox's working directory and mounts.
	ConfineFiles bool
}

// OpenLocal prepares the directories that cfg names, or finds the docker engine, by the
// provider that it names.
//
// Unsupported: this program cannot run sandboxes, or the provider is unknown.
func OpenLocal(cfg config.Config, hear Listeners) (*Local, error) {
	var l *Local
	var err error
	switch cfg.Provider {
	case nameGVisor:
		l, err = openLocalGVisor(cfg, hear)
	case nameDocker:
		l, err = openLocalDocker(cfg, hear)
	default:
		return nil, unknownProvider(cfg.Provider, ProviderNames())
	}
	if err == nil {
		l.sweepTempDirs()
	}
	return l, err
}

// openLocalDocker makes containers that the engine removes when this process ends.
func openLocalDocker(cfg config.Config, hear Listeners) (*Local, error) {
	o, err := dockerOptions(cfg)
	if err != nil {
		return nil, err
	}
	o.Ephemeral, o.Notice, o.Progress = true, hear.Notice, hear.Progress
	p, err := docker.New(o)
	if err != nil {
		return nil, err
	}
	return &Local{
		cfg: cfg, provider: p, images: engineImages{p}, progress: hear.Progress, ports: publish.New(nil), hear: hear,
	}, nil
}

func openLocalGVisor(cfg config.Config, hear Listeners) (*Local, error) {
	scratch := filepath.Join(cfg.StateDir, "scratch")
	images := filepath.Join(cfg.CacheDir, "images")
	for _, dir := range []string{cfg.StateDir, cfg.CacheDir, cfg.RuntimeDir, scratch, images} {
		if err := config.MakePrivate(dir, os.Geteuid()); err != nil {
			return nil, err
		}
	}
	store, err := image.Open(images, imageOptions(cfg))
	if err != nil {
		return nil, err
	}
	provider, err := gvisor.New(gvisor.Config{
		RuntimeDir: cfg.RuntimeDir,
		ScratchDir: scratch,
		Images:     store,
		Engine:     cfg.Engine,
		Defaults:   defaultLimits(cfg),
		Notice:     hear.Notice,
		Progress:   hear.Progress,
	})
	if err != nil {
		return nil, err
	}
	return &Local{
		cfg: cfg, provider: provider, images: ownImages{store}, progress: hear.Progress, ports: publish.New(nil), hear: hear,
	}, nil
}

// defaultLimits are those of the configuration.
func defaultLimits(cfg config.Config) sandpit.Resources {
	return sandpit.Resources{
		Memory: cfg.Sandbox.MemoryLimit, CPUs: cfg.Sandbox.CPULimit,
		Disk: cfg.Sandbox.DiskLimit, PIDs: cfg.Sandbox.PIDsLimit,
	}
}

// explicitLimits are the configured limits, which must not be omitted.
func explicitLimits(cfg config.Config) sandpit.Resources {
	r := defaultLimits(cfg)
	for key, clear := range map[config.Key]func(){
		config.KeyMemoryLimit: func() { r.Memory = 0 },
		config.KeyCPULimit:    func() { r.CPUs = 0 },
		config.KeyDiskLimit:   func() { r.Disk = 0 },
		config.KeyPIDsLimit:   func() { r.PIDs = 0 },
	} {
		if !cfg.Explicit(key) {
			clear()
		}
	}
	return r
}

// Create makes a sandbox, with the configuration's defaults for what spec
// leaves open.
func (l *Local) Create(ctx context.Context, spec sandpit.Spec) (sandpit.Instance, error) {
	spec = spec.Clone()
	if spec.Image == "" {
		spec.Image = DefaultImage(l.cfg)
	}
	if spec.WorkDir == "" && l.cfg.Explicit(config.KeyWorkDir) {
		spec.WorkDir = l.cfg.Sandbox.WorkDir // an image's own goes before the default
	}
	fillNetwork(l.cfg, &spec.Network)
	bound, err := boundNetwork(l.cfg)
	if err != nil {
		return nil, err
	}
	if spec.Network, err = bound(spec.Network, true); err != nil { // whose machine it is asks
		return nil, err
	}
	if spec.Resources == (sandpit.Resources{}) {
		spec.Resources = explicitLimits(l.cfg)
	}
	if l.cfg.Provider == nameGVisor { // before an image is fetched
		if err := gvisor.CheckLimits(spec.Resources); err != nil {
			return nil, err
		}
	}
	spec.Env = withUsualEnv(spec.Image, spec.Env)
	if err := l.makeTempDirs(spec.Mounts); err != nil {
		return nil, err
	}
	box, err := l.publishAndMake(ctx, sandpit.NewID(), spec)
	if err != nil {
		return nil, err
	}
	if guest, ok := sandpit.As[sandpit.ObservedGuest](box.Guest()); ok && (l.hear.Admit != nil || l.hear.ConfineFiles) {
		o := sandpit.GuestObserver{Admit: l.hear.Admit}
		if l.hear.ConfineFiles {
			o.Confine = func(context.Context) []string { return spec.FileDirs() }
		}
		guest.Observe(o)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made = append(l.made, box)
	return box, nil
}

// publishAndMake opens the published ports and then creates the sandbox, so a port that is
// in use is reported before anything is created.
func (l *Local) publishAndMake(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	if len(spec.Ports) == 0 {
		return l.provider.Create(ctx, id, spec)
	}
	made := make(chan sandpit.Dialer, 1)
	ports, err := l.ports.Publish(ctx, id, spec.Ports, dialWhenMade(made))
	if err != nil {
		return nil, err
	}
	if l.hear.Published != nil {
		l.hear.Published(ports)
	}
	i, err := l.provider.Create(ctx, id, spec)
	if err != nil {
		l.ports.Withdraw(id)
		return nil, err
	}
	if dialer, ok := i.(sandpit.Dialer); ok {
		made <- dialer
	}
	return i, nil
}

// dialWhenMade opens connections into a sandbox as soon as it has come.
func dialWhenMade(made chan sandpit.Dialer) publish.Dial {
	return func(ctx context.Context, port int) (net.Conn, error) {
		select {
		case dialer := <-made:
			made <- dialer // for the next
			return dialer.Dial(ctx, port)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close destroys every sandbox it made.
func (l *Local) Close() error {
	if err := errors.Join(l.ports.Close(), l.destroyAll(), l.provider.Close(), l.endTempDirs()); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// destroyLimit is how long an engine may take to remove a sandbox.
const destroyLimit = time.Minute

// destroyAll leaves to the embedded engine what ends with it anyway.
func (l *Local) destroyAll() error {
	if l.cfg.Provider == nameGVisor {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), destroyLimit)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, box := range l.made {
		errs = append(errs, box.Destroy(ctx))
	}
	return errors.Join(errs...)
}
