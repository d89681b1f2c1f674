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
		Short: "Roll a sandbox back to one of its snapshots",
		Long: `Roll a running or paused sandbox back to one of its snapshots. It keeps its ID, and runs
afterwards. Changes since then are lost; create another snapshot first to keep them.
Its open connections are closed.`,
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
