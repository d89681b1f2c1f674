package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// canUseServer reports whether a command that can do without a server uses one: the one that
// is named, else this user's own if it runs.
func canUseServer(cfg config.Config) bool {
	if isServerNamed(cfg) {
		return true
	}
	_, runs := cfg.LocalServer()
	return cfg.URL == "" && runs
}

// withTemplates runs one of two: remote with the server if there is one, else local.
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
