package daemon

import (
	"log/slog"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	daytona "github.com/sandpit-dev/sandpit/provider/daytona/register"
	docker "github.com/sandpit-dev/sandpit/provider/docker/register"
	e2b "github.com/sandpit-dev/sandpit/provider/e2b/register"
	gvisor "github.com/sandpit-dev/sandpit/provider/gvisor/register"
)

// registrations is the table of providers. It is a function so that nothing is shared.
func registrations() []registration.Provider {
	return []registration.Provider{
		gvisor.Provider(),
		docker.Provider(),
		e2b.Provider(),
		daytona.Provider(),
	}
}

// findRegistration returns the provider of that name.
//
// Unsupported: unknown name.
func findRegistration(list []registration.Provider, name string) (registration.Provider, error) {
	names := make([]string, len(list))
	for i, p := range list {
		if names[i] = p.Name; p.Name == name {
			return p, nil
		}
	}
	return registration.Provider{}, sandpit.Errorf(sandpit.Unsupported,
		"Unsupported provider type: %.100q. Available providers: %s", name, strings.Join(names, ", "))
}

// findBuilding returns the name of the provider that builds templates, or "".
func findBuilding(list []registration.Provider) string {
	for _, p := range list {
		if p.UsesImageCache {
			return p.Name
		}
	}
	return ""
}

// newSurroundings returns what a provider is opened with to check it.
func newSurroundings(cfg config.Config) registration.Surroundings {
	return registration.Surroundings{Config: cfg, Credentials: registryCredentials(cfg.Image), Log: slog.New(slog.DiscardHandler)}
}

// defaultImage returns the default image of a provider.
func defaultImage(cfg config.Config, p registration.Provider) sandpit.Image {
	if p.DefaultImage != nil {
		return p.DefaultImage(cfg)
	}
	return cfg.Sandbox.Image
}

// DefaultImage returns the default image of the configured provider.
func DefaultImage(cfg config.Config) sandpit.Image {
	p, _ := findRegistration(registrations(), cfg.Provider) // an unknown one has the usual image
	return defaultImage(cfg, p)
}
