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
		"pause", "Freeze sandboxes in memory",
		"With --disk they are suspended: their memory is saved to disk and freed, and survives a\nrestart of the machine. A paused sandbox can be suspended as well.",
		func(c *client.Client) func(context.Context, sandpit.ID) error {
			if disk {
				return c.Sandboxes.Suspend
			}
			return c.Sandboxes.Pause
		},
	})
	cmd.Example += "\n  sandpit pause --disk work"
	cmd.Flags().BoolVar(&disk, "disk", false, "save the memory to disk and free it (suspend)")
	return cmd
}
