package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
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

// providers are all that this program knows, in the order of the table.
type providers struct {
	cfg    config.Config
	list   []registration.Provider
	byName map[string]*lazy
}

// newProviders returns providers of which none is open.
func newProviders(s registration.Surroundings, list []registration.Provider) *providers {
	all := &providers{cfg: s.Config, list: list, byName: make(map[string]*lazy, len(list))}
	for _, k := range list {
		used := func() bool { return k.Used == nil || k.Used(s.Config) }
		all.byName[k.Name] = newLazy(func(ctx context.Context) (sandpit.Provider, error) { return k.Open(ctx, s) }, used)
	}
	return all
}

// openProviders opens what is a part of this machine. Only that the default one is not
// what a server can do without is an error; what else cannot be opened is tried again
// when it is needed.
func openProviders(ctx context.Context, s registration.Surroundings, list []registration.Provider) (*providers, error) {
	all := newProviders(s, list)
	_, missing := findRegistration(list, s.Config.Provider) // why the default provider is missing
	for _, k := range list {
		usual := k.Name == s.Config.Provider
		if k.Used != nil && !usual {
			continue
		}
		_, err := all.byName[k.Name].OpenProvider(ctx)
		switch {
		case err == nil:
		case usual && (k.Used == nil || sandpit.CodeOf(err) != sandpit.Unavailable):
			missing = err
		default:
			s.Log.WarnContext(ctx, "a provider cannot be used", slog.String("provider", k.Name), slog.Any("error", err),
				slog.String("hint", sandpit.HintOf(err)))
		}
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
	list := make([]ProviderStatus, len(p.list))
	var group sync.WaitGroup
	for i, k := range p.list {
		group.Go(func() {
			err, able := p.byName[k.Name].checkProvider(ctx), abilityNames(instanceAbilities(), k.Instance)
			if inner, _ := p.byName[k.Name].currentProvider(); inner != nil {
				able = append(able, abilityNames(providerAbilities(), inner)...)
			}
			list[i] = ProviderStatus{
				Name: k.Name, Default: k.Name == p.cfg.Provider, Endpoint: k.Endpoint(p.cfg), Abilities: able, Err: err,
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
	list := registrations()
	if _, err := findRegistration(list, cfg.Provider); err != nil {
		return nil, err
	}
	images, err := openServerDirs(cfg, nil)
	if err != nil {
		return nil, err
	}
	s := newSurroundings(cfg)
	s.Images, s.Lasting = images, true
	all := newProviders(s, list)
	return all.checkStatuses(ctx), all.closeAll()
}
