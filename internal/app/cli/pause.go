package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func newPause(a *app) *cobra.Command {
	var disk bool
	cmd := newChange(a, stateChange{
		"pause", "Hold sandboxes still, with their memory",
		"With --disk the memory goes to disk, takes up none of the machine's any more, and\nsurvives the machine. One that is paused already may be put on disk as well.",
		func(c *client.Client) func(context.Context, sandpit.ID) error {
			if disk {
				return c.Sandboxes.Suspend
			}
			return c.Sandboxes.Pause
		},
	})
	cmd.Example += "\n  sandpit pause --disk work"
	cmd.Flags().BoolVar(&disk, "disk", false, "keep the memory on disk")
	return cmd
}
