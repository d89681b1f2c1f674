package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// timeoutCommand has the options of sandpit timeout.
type timeoutCommand struct {
	action string
}

func newTimeout(a *app) *cobra.Command {
	var o timeoutCommand
	cmd := &cobra.Command{
		Use:   "timeout [flags] SANDBOX DURATION|never",
		Short: "Set how long a sandbox may exist from now on",
		Long: `Set how long a sandbox may exist from now on. The action at the deadline does not
change unless --action is given; for a new sandbox it is kill, which deletes the sandbox.`,
		Example: `  sandpit timeout work 2h
  sandpit timeout --action pause work 30m
  sandpit timeout work never`,
		Args: wantArgs(2, 2, "the name of a sandbox or a time"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"30m", "1h", "1d", never}, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeSandboxes(1)(cmd, args, begun)
		},
		RunE: a.withClient(o.run),
	}
	addChoice(cmd, &o.action, "action", "`ACTION` at the deadline: kill, stop, pause or suspend (default as before)", actionNames()...)
	return cmd
}

func (o *timeoutCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	d, err := parseDurationOrNever("the time", args[1])
	if err != nil {
		return err
	}
	if d == 0 {
		return sandpit.Errorf(sandpit.Invalid, "the time is empty: want a time such as 30m, 12h or 2d, or %s", never)
	}
	return a.forEachSandbox(ctx, c, args[:1], func(ctx context.Context, id sandpit.ID) error {
		return c.Sandboxes.SetTimeout(ctx, id, d, sandpit.Action(o.action))
	})
}
