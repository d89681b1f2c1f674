package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// stateChange is a command that brings sandboxes into another state.
type stateChange struct {
	name, short, long string
	do                func(*client.Client) func(context.Context, sandpit.ID) error
}

// stateChanges lists them.
func stateChanges() []stateChange {
	return []stateChange{
		{
			"stop", "End the processes of sandboxes and keep their files", "",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Stop },
		},
		{
			"start", "Start sandboxes that were stopped", "",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Start },
		},
		{
			"restart", "Stop sandboxes and start them again, with their files",
			"All processes end, also where the sandbox does not answer any more. A stopped sandbox is\nstarted.",
			restartSandbox,
		},
		{
			"resume", "Let paused sandboxes go on", "",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Resume },
		},
		{
			"checkpoint", "Save the files of running sandboxes, for when they break down",
			"A sandbox that was created with --recreate begins with the last files that were saved\nwhen what it runs in breaks down. See also create --checkpoint-every.",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Checkpoint },
		},
		{
			"archive", "Move the files of stopped sandboxes to where they cost little",
			"Until it is restored, an archived sandbox cannot be started.",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Archive },
		},
		{
			"restore", "Move the files of archived sandboxes back", "The sandbox is stopped then, and can be started.",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Restore },
		},
	}
}

func newChange(a *app, ch stateChange) *cobra.Command {
	long := ch.short + "."
	if ch.long != "" {
		long += "\n\n" + ch.long
	}
	return &cobra.Command{
		Use:   ch.name + " SANDBOX...",
		Short: ch.short,
		Long: long + `

A SANDBOX is called by its ID, the beginning of it, or its name. The IDs of those
that could be changed are printed.`,
		Example:           "  sandpit " + ch.name + " work",
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(0),
		RunE: a.withClient(func(ctx context.Context, a *app, c *client.Client, args []string) error {
			return a.forEachSandbox(ctx, c, args, ch.do(c))
		}),
	}
}

// restartSandbox stops a sandbox unless that has happened, and starts it.
func restartSandbox(c *client.Client) func(context.Context, sandpit.ID) error {
	return func(ctx context.Context, id sandpit.ID) error {
		s, err := c.Sandboxes.Get(ctx, id)
		if err != nil {
			return err
		}
		if s.State != sandpit.StateStopped {
			if err := c.Sandboxes.Stop(ctx, id); err != nil {
				return err
			}
		}
		return c.Sandboxes.Start(ctx, id)
	}
}
