package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/provider/docker"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// ProviderStatus says whether a provider can create sandboxes here.
type ProviderStatus struct {
	Name string
	// Default says that it makes the sandboxes of requests that name no other.
	Default bool
	// Endpoint is what it works with: a directory, a socket, an address. It holds no
	// secrets.
	Endpoint string
	// Abilities are what its sandboxes can do besides the usual.
	Abilities []string
	// Err is why it cannot be used; its hint is the remedy. Nil: it can.
	Err error
}

// surroundings are what providers are made with.
type surroundings struct {
	cfg    config.Config
	images *image.Store
	log    *slog.Logger
	// identity is that of the server's store, which marks sandboxes; "" without a server,
	// when providers are only checked.
	identity string
	// group is the server's control group, or nil.
	group *gvisor.ServerGroup
}

// kind is a provider that this program knows.
type kind struct {
	name     string
	endpoint func(config.Config) string
	open     func(context.Context, surroundings) (sandpit.Provider, error)
	// used reports whether there may be sandboxes of a server's. Nil: it is a part of
	// this machine, and opened when the server starts; else it is opened when it is
	// needed, and a server starts without it.
	used func(config.Config) bool
	// instance is of the type of its sandboxes, and nil.
	instance sandpit.Instance
	// prepare makes images ready for it, see preparer. Nil: it takes them as they are named.
	prepare func(context.Context, preparer, manager.ImageRequest) (manager.PreparedImage, error)
}

// providerKinds is the table of providers. It is a function so that nothing is shared.
func providerKinds() []kind {
	return []kind{
		{
			name:     nameGVisor,
			endpoint: func(cfg config.Config) string { return cmp.Or(cfg.Engine, "built in") },
			open:     openGVisor,
			instance: (*gvisor.Instance)(nil),
			prepare:  prepareCached,
		},
		{
			name:     nameDocker,
			endpoint: dockerEndpoint,
			open:     openDocker,
			used:     usedDocker,
			instance: (*docker.Instance)(nil),
			prepare:  prepareEngine,
		},
	}
}

// openGVisor opens the provider of a server, whose sandboxes outlive it.
func openGVisor(ctx context.Context, s surroundings) (sandpit.Provider, error) {
	options, err := gvisorOptions(ctx, s)
	if err != nil {
		return nil, err
	}
	return gvisor.New(options)
}

func gvisorOptions(ctx context.Context, s surroundings) (gvisor.Config, error) {
	store, err := openArchive(s.cfg)
	return gvisor.Config{
		RuntimeDir:  s.cfg.RuntimeDir,
		ScratchDir:  filepath.Join(s.cfg.StateDir, "scratch"),
		VolumeDir:   filepath.Join(s.cfg.StateDir, "volumes"),
		KeepDir:     filepath.Join(s.cfg.StateDir, "stopped"),
		SnapshotDir: filepath.Join(s.cfg.StateDir, "snapshots"),
		SuspendDir:  filepath.Join(s.cfg.StateDir, "suspended"),
		Archive:     store,

		CheckpointBytes: s.cfg.Manager.MaxCheckpointBytes,
		CheckpointAge:   s.cfg.Manager.MaxCheckpointAge,

		Images:   s.images,
		Engine:   s.cfg.Engine,
		Defaults: defaultLimits(s.cfg),
		Lasting:  true,

		EngineLost: func(words string) {
			s.log.ErrorContext(ctx, "provider: engine lost", slog.String("provider", nameGVisor), slog.String("words", words))
		},
		ServerGroup: s.group,
		Notice: func(text string) {
			s.log.WarnContext(ctx, "a default limit cannot be enforced", slog.String("limit", text))
		},
	}, err
}

// ProviderNames lists the providers that this program knows.
func ProviderNames() []string { return namesOf(providerKinds()) }

func namesOf(list []kind) []string {
	names := make([]string, len(list))
	for i, k := range list {
		names[i] = k.name
	}
	return names
}

// unknownProvider returns the error for an unknown provider, with the known ones.
func unknownProvider(name string, known []string) error {
	return sandpit.Errorf(sandpit.Unsupported, "Unsupported provider type: %.100q. Available providers: %s", name, strings.Join(known, ", "))
}

// providers are all that this program knows, in the order of the table.
type providers struct {
	cfg    config.Config
	kinds  []kind
	byName map[string]*lazy
}

// openProviders opens what is a part of this machine. Only that the default one is not
// what a server can do without is an error; what else cannot be opened is tried again
// when it is needed.
func openProviders(ctx context.Context, s surroundings, list []kind) (*providers, error) {
	all := &providers{cfg: s.cfg, kinds: list, byName: make(map[string]*lazy, len(list))}
	var missing error // why the default provider is missing
	for _, k := range list {
		used := func() bool { return true }
		if k.used != nil {
			used = func() bool { return k.used(s.cfg) }
		}
		l := newLazy(func(ctx context.Context) (sandpit.Provider, error) { return k.open(ctx, s) }, used)
		all.byName[k.name] = l
		usual := k.name == s.cfg.Provider
		if k.used != nil && !usual {
			continue
		}
		_, err := l.ensureProvider(ctx)
		switch {
		case err == nil:
		case usual && (k.used == nil || sandpit.CodeOf(err) != sandpit.Unavailable):
			missing = err
		default:
			s.log.WarnContext(ctx, "a provider cannot be used", slog.String("provider", k.name), slog.Any("error", err),
				slog.String("hint", sandpit.HintOf(err)))
		}
	}
	if all.byName[s.cfg.Provider] == nil {
		missing = unknownProvider(s.cfg.Provider, namesOf(list))
	}
	if missing != nil {
		return nil, errors.Join(missing, all.closeAll())
	}
	return all, nil
}

// defaultProvider is the provider of requests that name none.
func (p *providers) defaultProvider() *lazy { return p.byName[p.cfg.Provider] }

// statusLimit is how long a provider may take to say whether it can be used.
const statusLimit = 15 * time.Second

// checkStatuses asks all providers, at the same time, whether they can be used now.
func (p *providers) checkStatuses(ctx context.Context) []ProviderStatus {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	list := make([]ProviderStatus, len(p.kinds))
	var group sync.WaitGroup
	for i, k := range p.kinds {
		group.Go(func() {
			err, able := p.byName[k.name].checkProvider(ctx), abilityNames(k.instance)
			if inner, _ := p.byName[k.name].openProvider(); inner != nil {
				able = append(able, ownAbilities(inner)...)
			}
			list[i] = ProviderStatus{
				Name: k.name, Default: k.name == p.cfg.Provider, Endpoint: k.endpoint(p.cfg), Abilities: able, Err: err,
			}
		})
	}
	group.Wait()
	return list
}

func (p *providers) closeAll() error {
	var errs []error
	for _, l := range p.byName {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Providers returns whether each provider can create sandboxes here, without a server. An
// error concerns the directories that cfg names, or an unknown default provider.
func Providers(ctx context.Context, cfg config.Config) ([]ProviderStatus, error) {
	if !slices.Contains(ProviderNames(), cfg.Provider) {
		return nil, unknownProvider(cfg.Provider, ProviderNames())
	}
	images, err := openServerDirs(cfg, nil)
	if err != nil {
		return nil, err
	}
	s := surroundings{cfg: cfg, images: images, log: slog.New(slog.DiscardHandler)}
	all := &providers{cfg: cfg, kinds: providerKinds(), byName: make(map[string]*lazy)}
	for _, k := range all.kinds {
		all.byName[k.name] = newLazy(func(ctx context.Context) (sandpit.Provider, error) { return k.open(ctx, s) }, func() bool { return true })
	}
	return all.checkStatuses(ctx), all.closeAll()
}
