package cli

import (
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// newClient returns a client for the configured server. It sends no request.
func (a *app) newClient() (*client.Client, error) {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return nil, err
	}
	return newConfiguredClient(cfg)
}

// serverOverride returns the --server flag as a setting.
func (a *app) serverOverride() []config.Override {
	if a.server == "" {
		return nil
	}
	return []config.Override{{Flag: "--server", Key: config.KeyURL, Value: a.server}}
}

// newConfiguredClient returns a client for the server of a configuration.
func newConfiguredClient(cfg config.Config) (*client.Client, error) {
	return client.New(client.Options{URL: cfg.ServerURL(), Key: cfg.APIKey.Reveal(), CAFile: cfg.CA, UserAgent: "sandpit-cli"})
}
