package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func newWait(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "wait SANDBOX [COMMAND]",
		Short: "Wait for the end of a command in a sandbox, and print its exit code",
		Long: `Wait for the end of a command in a sandbox, and print its exit code. COMMAND is the ID that
sandpit exec --detach or sandpit ps prints, or the beginning of it; the default is the
command that was started last.`,
		Example: `  id=$(sandpit run --detach python:3.12-slim python3 work.py)
  sandpit wait $id`,
		Args:              wantArgs(1, 2, "the name of a sandbox"),
		ValidArgsFunction: a.completeCommands,
		RunE:              a.withClient(runWait),
	}
}

func runWait(ctx context.Context, a *app, c *client.Client, args []string) error {
	journal, command, err := findNamedCommand(ctx, c, args)
	if err != nil {
		return err
	}
	info, err := journal.GetCommand(ctx, command)
	if err != nil {
		return err
	}
	if !info.Ended {
		from := sandpit.Offsets{Stdout: info.Stdout.Size, Stderr: info.Stderr.Size} // skip the existing output
		if info, err = followWithRetry(ctx, journal, command, sandpit.FollowOptions{From: from}); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(a.Out, info.Status.Code)
	return err
}
