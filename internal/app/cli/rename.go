package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func newRename(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rename SANDBOX NAME",
		Short: "Give a sandbox another name",
		Long: `Give a sandbox another name, in any state. A name has at most 63 letters, digits and, after
the first character, also "-", "_" and dots. It must not look like an ID, and each owner can
use it once. An empty NAME removes the name.`,
		Example:           "  sandpit rename work old-work",
		Args:              wantArgs(2, 2, "the name of a sandbox or its new name"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withClient(runRename),
	}
}

func runRename(ctx context.Context, a *app, c *client.Client, args []string) error {
	if args[1] != "" {
		if err := sandpit.CheckName(args[1]); err != nil {
			return err
		}
	}
	return a.forEachSandbox(ctx, c, args[:1], func(ctx context.Context, id sandpit.ID) error { return c.Sandboxes.Rename(ctx, id, args[1]) })
}
