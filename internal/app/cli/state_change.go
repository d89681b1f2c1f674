package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// stateChange is a command that changes the state of sandboxes.
type stateChange struct {
	name, short, long string
	do                func(*client.Client) func(context.Context, sandpit.ID) error
}

// stateChanges returns the commands that change the state of sandboxes and have no options.
func stateChanges() []stateChange {
	return []stateChange{
		{
			"stop", "End the processes of sandboxes and keep their files", "",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Stop },
		},
		{
			"start", "Start stopped sandboxes", "",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Start },
		},
		{
			"restart", "Stop sandboxes and start them again, with their files",
			"All processes end, even if the sandbox does not respond any more. A stopped sandbox is\nstarted.",
			restartSandbox,
		},
		{
			"resume", "Resume paused or suspended sandboxes", "",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Resume },
		},
		{
			"checkpoint", "Save the files of running sandboxes for recovery",
			"A sandbox that was created with --recreate and ends unexpectedly is recreated with the\nfiles that were saved last. See also create --checkpoint-every.",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Checkpoint },
		},
		{
			"archive", "Move the files of stopped sandboxes to other storage",
			"An archived sandbox cannot be started until it is restored.",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Archive },
		},
		{
			"restore", "Move the files of archived sandboxes back", "The sandbox is stopped afterwards, and can be started.",
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

Name a SANDBOX by its ID, the beginning of its ID, or its name. The command prints the IDs
of the changed sandboxes.`,
		Example:           "  sandpit " + ch.name + " work",
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(0),
		RunE: a.withClient(func(ctx context.Context, a *app, c *client.Client, args []string) error {
			return a.forEachSandbox(ctx, c, args, ch.do(c))
		}),
	}
}

// restartSandbox stops a sandbox unless it is stopped, and starts it.
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
