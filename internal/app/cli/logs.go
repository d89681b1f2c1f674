package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// logsCommand has the options of sandpit logs.
type logsCommand struct {
	follow bool
}

func newLogs(a *app) *cobra.Command {
	var o logsCommand
	cmd := &cobra.Command{
		Use:   "logs [flags] SANDBOX [COMMAND]",
		Short: "Show the output of a command in a sandbox",
		Long: `Show the output of a command in a sandbox: its standard output on standard output, its
standard error on standard error. COMMAND is the ID that sandpit exec --detach or
sandpit ps -a prints, or the beginning of it; the default is the command that was started
last. The oldest part of very long output is dropped, which is reported.
-f waits for more output until the command ends, reconnects if the connection breaks, and
exits with the command's exit status.`,
		Example: `  id=$(sandpit exec --detach work make)
  sandpit logs -f work $id`,
		Args:              wantArgs(1, 2, "the name of a sandbox"),
		ValidArgsFunction: a.completeCommands,
		RunE:              a.withClient(o.run),
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "keep printing output until the command ends")
	return cmd
}

func (o *logsCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	journal, command, err := findNamedCommand(ctx, c, args)
	if err != nil {
		return err
	}
	return showLogs(ctx, a, journal, command, o.follow)
}

func showLogs(ctx context.Context, a *app, j sandpit.Journal, id string, follow bool) error {
	o := sandpit.FollowOptions{Stdout: a.Out, Stderr: a.Err, NoWait: !follow}
	o.Missing = func(stderr bool, _, n int64) {
		stream := "output"
		if stderr {
			stream = "error output"
		}
		fmt.Fprintf(a.Err, "sandpit: %d bytes of %s were dropped here\n", n, stream)
	}
	info, err := followWithRetry(ctx, j, id, o)
	if err == nil && follow && info.Status.Code != 0 {
		return exitStatus(info.Status.Code)
	}
	return err
}
