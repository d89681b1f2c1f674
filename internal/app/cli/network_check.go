package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// networkTestCommand has the options of sandpit network test.
type networkTestCommand struct {
	output
}

func newNetworkTest(a *app) *cobra.Command {
	var o networkTestCommand
	cmd := &cobra.Command{
		Use:   "test [flags] SANDBOX HOST:PORT",
		Short: "Check whether a sandbox may reach a target, and by which rule",
		Long: `Check whether a sandbox may reach a target, and by which rule. Nothing is connected; a name
is resolved, and each of its addresses is one line. The exit status is 1 if none is allowed.`,
		Example: `  sandpit network test work pypi.org:443
  sandpit network test work 169.254.169.254:80`,
		Args:              wantArgs(2, 2, "the name of a sandbox, and HOST:PORT"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	return cmd
}

func (o *networkTestCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	list, err := c.Networks.Test(ctx, id, args[1])
	if err != nil {
		return err
	}
	if err := a.showListing(o.output, decisionListing(list)); err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(d sandpit.NetworkDecision) bool { return d.Allowed }) {
		return exitStatus(statusNo)
	}
	return nil
}
