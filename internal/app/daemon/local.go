// Package daemon wires the parts together. It is the only package that knows
// all of them.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/files/tempdir"
	"github.com/sandpit-dev/sandpit/internal/front/publish"
)

// Local makes sandboxes without a server: they end with this process, however
// it ends.
type Local struct {
	cfg        config.Config
	registered registration.Provider
	provider   sandpit.Provider
	images     *image.Store // nil: the provider does not use the cache
	ports      *publish.Publisher
	hear       Listeners

	mu   sync.Mutex
	made []sandpit.Instance
	temp *tempdir.Session // nil: not needed so far
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

// OpenLocal opens the provider that cfg names.
//
// Unsupported: this program cannot run sandboxes, or the provider is unknown.
func OpenLocal(ctx context.Context, cfg config.Config, hear Listeners) (*Local, error) {
	p, err := findRegistration(registrations(), cfg.Provider)
	if err != nil {
		return nil, err
	}
	around := newSurroundings(cfg)
	around.Notice, around.Progress = hear.Notice, hear.Progress
	if p.UsesImageCache {
		if around.Images, err = OpenImages(cfg); err != nil {
			return nil, err
		}
	}
	provider, err := p.Open(ctx, around)
	if err != nil {
		return nil, err
	}
	l := &Local{cfg: cfg, registered: p, provider: provider, images: around.Images, ports: publish.New(nil), hear: hear}
	l.sweepTempDirs()
	return l, nil
}

// ImageConfig returns the configuration of an image. The image is fetched or converted first, if
// need be.
func (l *Local) ImageConfig(ctx context.Context, ref sandpit.Image) (image.Config, error) {
	if l.images == nil {
		if reader, ok := sandpit.As[registration.ImageReader](l.provider); ok {
			return reader.ImageConfig(ctx, ref)
		}
		return image.Config{}, nil
	}
	root, err := l.images.Resolve(ctx, ref, l.hear.Progress)
	if err != nil {
		return image.Config{}, err
	}
	return root.Config, root.File.Close()
}

// HasImage reports whether there is an image under a name already.
func (l *Local) HasImage(ctx context.Context, name string) (bool, error) {
	if l.images != nil {
		return l.images.Has(name)
	}
	reader, ok := sandpit.As[registration.ImageReader](l.provider)
	if !ok {
		return false, nil
	}
	return reader.HasImage(ctx, name)
}

// explicitLimits are the configured limits, which must not be omitted.
func explicitLimits(cfg config.Config) sandpit.Resources {
	r := cfg.Sandbox.Limits()
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
	if err := l.checkLimits(spec.Resources); err != nil { // before an image is fetched
		return nil, err
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

func (l *Local) checkLimits(limits sandpit.Resources) error {
	if l.registered.CheckLimits == nil {
		return nil
	}
	return l.registered.CheckLimits(limits)
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

// destroyAll destroys the sandboxes, unless closing the provider ends them.
func (l *Local) destroyAll() error {
	if l.registered.EndsSandboxes {
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
