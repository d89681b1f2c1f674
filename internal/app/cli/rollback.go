package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func newRollback(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rollback SANDBOX SNAPSHOT",
		Short: "Make a sandbox what a snapshot of it was",
		Long: `Make a running or paused sandbox what a snapshot of it was. It keeps its ID, and runs
then. What it has become since is lost; take another snapshot first to keep that.
Whoever uses it is told to stop.`,
		Example: "  sandpit snapshot create work before\n  sandpit exec work -- make upgrade\n  sandpit rollback work before",
		Args:    wantArgs(2, 2, "the name of a sandbox or a snapshot"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return a.completeSnapshots(2)(cmd, args, begun)
			}
			return a.completeSandboxes(1)(cmd, args, begun)
		},
		RunE: a.withClient(runRollback),
	}
}

func runRollback(ctx context.Context, a *app, c *client.Client, args []string) error {
	return a.forEachSandbox(ctx, c, args[:1], func(ctx context.Context, id sandpit.ID) error {
		return c.Sandboxes.Rollback(ctx, id, strings.TrimPrefix(args[1], snapshotPrefix))
	})
}
