package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// ProviderStatus says whether a provider can create sandboxes here.
type ProviderStatus struct {
	Name string
	// Default says that it makes the sandboxes of requests that name no other.
	Default bool
	// Endpoint is what it works with: a directory, a socket, an address. It holds no
	// secrets.
	Endpoint string
	// Abilities are what its sandboxes can do besides the usual, and Missing has a reason for each
	// thing that they cannot do.
	Abilities []string
	Missing   map[string]string
	// Account is what the provider says about its account. Nil: it has none.
	Account *sandpit.Account
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
		all.byName[k.Name] = newLazy(func(ctx context.Context) (sandpit.Provider, error) {
			ctx, cancel := boundOpen(ctx, s.Config, k)
			defer cancel()
			return k.Open(ctx, s)
		}, used)
	}
	return all
}

// boundOpen bounds the time in which a provider outside of this machine must be open: a request may
// be waiting that another provider can fulfill.
func boundOpen(ctx context.Context, cfg config.Config, k registration.Provider) (context.Context, context.CancelFunc) {
	if k.Used == nil {
		return context.WithCancel(ctx)
	}
	limit := cmp.Or(cfg.Providers.CallTimeout[k.Name], cfg.Manager.CallTimeout)
	return context.WithTimeoutCause(ctx, limit, sandpit.Errorf(sandpit.Timeout, "timed out after %v seconds", limit.Seconds()))
}

// openProviders opens what is a part of this machine, and the default provider. What cannot be opened
// is tried again when it is needed: requests go to the fallbacks meanwhile. Without fallbacks, a
// default provider that cannot be used until its configuration changes is an error.
func openProviders(ctx context.Context, s registration.Surroundings, list []registration.Provider) (*providers, error) {
	all := newProviders(s, list)
	missing := checkProviderNames(s.Config, list) // why the default provider is missing
	for _, k := range list {
		usual := k.Name == s.Config.Provider
		if k.Used != nil && !usual {
			continue
		}
		_, err := all.byName[k.Name].OpenProvider(ctx)
		switch {
		case err == nil:
		case usual && len(s.Config.Fallbacks()) == 0 && (k.Used == nil || sandpit.CodeOf(err) != sandpit.Unavailable):
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
	ctx, cancel := context.WithTimeoutCause(ctx, statusLimit, sandpit.Errorf(sandpit.Timeout, "no answer within %v", statusLimit))
	defer cancel()
	list := make([]ProviderStatus, len(p.list))
	var group sync.WaitGroup
	for i, k := range p.list {
		group.Go(func() { list[i] = p.checkStatus(ctx, k) })
	}
	group.Wait()
	return list
}

// checkStatus asks one provider.
func (p *providers) checkStatus(ctx context.Context, k registration.Provider) ProviderStatus {
	s := ProviderStatus{
		Name: k.Name, Default: k.Name == p.cfg.Provider, Endpoint: k.Endpoint(p.cfg), Abilities: abilityNames(instanceAbilities(), k.Instance),
		Err: p.byName[k.Name].checkProvider(ctx),
	}
	inner, _ := p.byName[k.Name].currentProvider()
	if inner != nil {
		s.Abilities = append(s.Abilities, abilityNames(providerAbilities(), inner)...)
	}
	if r, ok := sandpit.As[sandpit.AccountReader](inner); ok && s.Err == nil {
		account, err := r.ReadAccount(ctx)
		if s.Err = err; err == nil {
			s.Account = &account
			s.Abilities, s.Missing = account.Abilities, account.Missing
		}
	}
	if s.Missing == nil && inner != nil {
		s.Missing = missingAbilities(s.Abilities)
	}
	return s
}

// missingAbilities returns the abilities that are not in a list.
func missingAbilities(abilities []string) map[string]string {
	missing := make(map[string]string)
	for _, a := range append(instanceAbilities(), providerAbilities()...) {
		if !slices.Contains(abilities, a.name) {
			missing[a.name] = "not supported by the provider"
		}
	}
	return missing
}

// checkProviderNames returns an error for a name of a provider in the configuration that does not
// exist.
func checkProviderNames(cfg config.Config, list []registration.Provider) error {
	names := append([]string{cfg.Provider}, cfg.Fallbacks()...)
	for _, m := range []map[string]int{cfg.Providers.MaxSandboxes, cfg.Providers.MaxHours} {
		names = slices.AppendSeq(names, maps.Keys(m))
	}
	for _, m := range []map[string]time.Duration{cfg.Providers.CreateTimeout, cfg.Providers.CallTimeout} {
		names = slices.AppendSeq(names, maps.Keys(m))
	}
	for _, name := range names {
		if _, err := findRegistration(list, name); err != nil {
			return err
		}
	}
	return nil
}

// checkPools returns an error for a pool whose provider cannot have one: each of its spares would be
// created, and paid, and then deleted.
func checkPools(cfg config.Config, list []registration.Provider) error {
	for i, pool := range cfg.Pools {
		name := cmp.Or(pool.Provider, cfg.Provider)
		k, err := findRegistration(list, name)
		if err != nil {
			continue // the manager refuses a provider that does not exist
		}
		if _, can := sandpit.As[sandpit.Claimer](k.Instance); k.Instance != nil && !can {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "pool %d: provider %s cannot have sandboxes created in advance", i+1, name),
				"remove the pool, or set its provider to one of: "+strings.Join(claimers(list), ", "))
		}
	}
	return nil
}

// claimers returns the names of the providers that can have pools.
func claimers(list []registration.Provider) (names []string) {
	for _, k := range list {
		if _, can := sandpit.As[sandpit.Claimer](k.Instance); can {
			names = append(names, k.Name)
		}
	}
	return names
}

// providerLimits returns the limits that the configuration sets for single providers.
func providerLimits(cfg config.Config, list []registration.Provider) map[string]manager.ProviderLimits {
	limits := make(map[string]manager.ProviderLimits, len(list))
	c := cfg.Providers
	for _, p := range list {
		limits[p.Name] = manager.ProviderLimits{
			MaxSandboxes: c.MaxSandboxes[p.Name], MaxHours: c.MaxHours[p.Name],
			CreateTimeout: c.CreateTimeout[p.Name], CallTimeout: c.CallTimeout[p.Name], Delete: c.DeleteStopped,
		}
	}
	return limits
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
