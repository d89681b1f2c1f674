package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/client"
)

// envDaytonaCommand has the options of sandpit env daytona.
type envDaytonaCommand struct{ envOptions }

func newEnvDaytona(a *app) *cobra.Command {
	var o envDaytonaCommand
	cmd := &cobra.Command{
		Use:   "daytona [flags]",
		Short: "Print the environment variables that make the Daytona SDK use this server",
		Long: `Print the environment variables that make a program with the Daytona SDK use a server: the
one that is configured, otherwise your own server, which reports its address. The API key is
SANDPIT_API_KEY or that of the configuration; your own server creates one otherwise, which
is reused. --owner creates a new key for another owner, which needs an administrator's key
or the server's own socket.

DAYTONA_JWT_TOKEN, DAYTONA_ORGANIZATION_ID, DAYTONA_SERVER_URL and DAYTONA_TARGET are unset,
because they name an account, an address or a region of Daytona. See docs/from-daytona.md.`,
		Example: `  eval "$(sandpit env daytona)"
  sandpit env daytona --shell fish | source
  sandpit env daytona --owner me --json > .daytona.json`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd)
	return cmd
}

func (o *envDaytonaCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return err
	}
	url, err := httpURL(ctx, c, cfg, daytonaService)
	if err != nil {
		return err
	}
	vars, err := certificateVariables(cfg, url)
	if err != nil {
		return err
	}
	key, err := o.findAPIKey(ctx, c, cfg, daytonaService)
	if err != nil {
		return err
	}
	url += "/api"
	return o.showVariables(a, append(vars,
		variable{"DAYTONA_API_URL", &url}, variable{"DAYTONA_API_KEY", &key},
		variable{"DAYTONA_JWT_TOKEN", nil}, variable{"DAYTONA_ORGANIZATION_ID", nil},
		variable{"DAYTONA_SERVER_URL", nil}, variable{"DAYTONA_TARGET", nil}))
}
