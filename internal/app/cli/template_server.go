package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// canUseServer reports whether a command that needs no server uses one: a named server, else this
// user's own if it runs.
func canUseServer(cfg config.Config) bool {
	if isServerNamed(cfg) {
		return true
	}
	_, runs := cfg.LocalServer()
	return cfg.URL == "" && runs
}

// withTemplates calls remote with the server's client if a server is used, otherwise local.
func (a *app) withTemplates(cmd *cobra.Command, remote func(ctx context.Context, c *client.Client) error, local func() error) error {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return err
	}
	if !canUseServer(cfg) {
		return local()
	}
	c, err := newConfiguredClient(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	return a.toVerbError(cmd.Context(), remote(cmd.Context(), c))
}
