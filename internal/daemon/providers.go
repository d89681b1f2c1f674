package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// ProviderStatus tells whether a provider can make sandboxes here.
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
}

// kind is a provider that this program knows.
type kind struct {
	name     string
	endpoint func(config.Config) string
	open     func(context.Context, surroundings) (sandpit.Provider, error)
	// instance is of the type of its sandboxes, and nil.
	instance sandpit.Instance
}

// kinds is the table of providers. It is a function so that nothing is shared.
func kinds() []kind {
	return []kind{
		{
			name:     "gvisor",
			endpoint: func(cfg config.Config) string { return cmp.Or(cfg.Engine, "built in") },
			open:     openGVisor,
			instance: (*gvisor.Instance)(nil),
		},
	}
}

// openGVisor opens the provider of a server, whose sandboxes outlive it.
func openGVisor(ctx context.Context, s surroundings) (sandpit.Provider, error) {
	return gvisor.New(gvisor.Config{
		RuntimeDir: s.cfg.RuntimeDir,
		ScratchDir: filepath.Join(s.cfg.StateDir, "scratch"),
		KeepDir:    filepath.Join(s.cfg.StateDir, "stopped"),
		Images:     s.images,
		Engine:     s.cfg.Engine,
		Defaults:   limits(s.cfg),
		Lasting:    true,
		Notice: func(text string) {
			s.log.WarnContext(ctx, "a default limit cannot be enforced", slog.String("limit", text))
		},
	})
}

// ProviderNames lists the providers that this program knows.
func ProviderNames() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// unknownProvider says that there is no provider of a name, and which there are.
func unknownProvider(name string, known []string) error {
	return sandpit.Errorf(sandpit.Unsupported, "Unsupported provider type: %.100q. Available providers: %s", name, strings.Join(known, ", "))
}

// openProviders opens all that can be opened. Those that cannot are told with the
// reason; only that the default one is among them is an error.
func openProviders(ctx context.Context, s surroundings, list []kind) (map[string]sandpit.Provider, []ProviderStatus, error) {
	open := make(map[string]sandpit.Provider)
	statuses := make([]ProviderStatus, 0, len(list))
	var known []string
	var missing error // why there is no default one
	for _, k := range list {
		known = append(known, k.name)
		p, err := k.open(ctx, s)
		if err == nil {
			open[k.name] = p
		}
		if k.name == s.cfg.Provider {
			missing = err
		}
		statuses = append(statuses, ProviderStatus{
			Name: k.name, Default: k.name == s.cfg.Provider, Endpoint: k.endpoint(s.cfg), Abilities: abilities(k.instance), Err: err,
		})
	}
	if !slices.Contains(known, s.cfg.Provider) {
		missing = unknownProvider(s.cfg.Provider, known)
	}
	if missing != nil {
		return nil, statuses, errors.Join(missing, closeProviders(open))
	}
	return open, statuses, nil
}

func closeProviders(open map[string]sandpit.Provider) error {
	var errs []error
	for _, p := range open {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Providers tells of each provider whether it can make sandboxes here, without a
// server. An error is about the directories that cfg names, or the default provider
// being none that exists.
func Providers(ctx context.Context, cfg config.Config) ([]ProviderStatus, error) {
	if !slices.Contains(ProviderNames(), cfg.Provider) {
		return nil, unknownProvider(cfg.Provider, ProviderNames())
	}
	images, err := openServerDirs(cfg)
	if err != nil {
		return nil, err
	}
	s := surroundings{cfg: cfg, images: images, log: slog.New(slog.DiscardHandler)}
	open, statuses, err := openProviders(ctx, s, kinds())
	if err != nil && open == nil && len(statuses) > 0 {
		err = nil // its status says it
	}
	return statuses, errors.Join(err, closeProviders(open))
}
