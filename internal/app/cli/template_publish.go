package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// templatePublishCommand has the options of sandpit template publish.
type templatePublishCommand struct {
	private bool
}

func newTemplatePublish(a *app) *cobra.Command {
	var o templatePublishCommand
	cmd := &cobra.Command{
		Use:   "publish [flags] NAME",
		Short: "Let every owner create sandboxes of a server's template",
		Long: `Let every owner create sandboxes of a server's template, as template:OWNER/NAME. When an
administrator publishes their own template, template:NAME also means it, for every owner
that has no template of that name.`,
		Example:           "  sandpit template publish tools\n  sandpit template publish --private tools",
		Args:              wantArgs(1, 1, "the name of a template"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	cmd.Flags().BoolVar(&o.private, "private", false, "allow only its owner to use it again")
	return cmd
}

func (o *templatePublishCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	return c.Templates.SetPublic(ctx, strings.TrimPrefix(args[0], sandpit.TemplatePrefix), !o.private)
}
