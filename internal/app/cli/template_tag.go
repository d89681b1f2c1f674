package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// templateTagCommand has the options of sandpit template tag.
type templateTagCommand struct {
	remove bool
}

func newTemplateTag(a *app) *cobra.Command {
	var o templateTagCommand
	cmd := &cobra.Command{
		Use:   "tag [flags] NAME[:TAG] TAG...",
		Short: "Add tags to a build of a server's template",
		Long: `Add tags to a build of a server's template or, with --remove, remove them. A build without
a tag is removed some time later.`,
		Example: `  sandpit --server https://host:8090 template tag tools:v2 stable
  sandpit template tag --remove tools v1`,
		Args:              wantArgs(2, -1, "a template and a tag"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	cmd.Flags().BoolVar(&o.remove, "remove", false, "remove the tags")
	return cmd
}

func (o *templateTagCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	name := strings.TrimPrefix(args[0], sandpit.TemplatePrefix)
	if !o.remove {
		return c.Templates.Tag(ctx, name, args[1:]...)
	}
	for _, tag := range args[1:] {
		if err := c.Templates.Untag(ctx, name, tag); err != nil {
			return err
		}
	}
	return nil
}
