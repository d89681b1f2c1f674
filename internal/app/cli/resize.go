package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func newResize(a *app) *cobra.Command {
	var limits limitFlags
	cmd := &cobra.Command{
		Use:   "resize [flags] SANDBOX...",
		Short: "Change the limits of running or stopped sandboxes",
		Long: `Change the limits of running or stopped sandboxes. Limits without a flag do not change.

A running sandbox gets more memory and CPU time at once, but no more CPUs than it was started
with; its programs find the new size in /proc/meminfo after its next start. Less of both, and
another size of the disk or number of processes, need a stopped sandbox, whose limits apply
from its next start. Only sandboxes of gVisor can be resized.`,
		Example: `  sandpit resize work --memory 2g --cpus 2
  sandpit stop work && sandpit resize work --disk 20g && sandpit start work`,
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(0),
	}
	f := cmd.Flags()
	f.StringVarP(&limits.memory, "memory", "m", "", "`SIZE` of memory, such as 512m or 2g")
	f.StringVar(&limits.cpus, "cpus", "", "`NUMBER` of CPUs, such as 0.5")
	f.StringVar(&limits.disk, "disk", "", "`SIZE` of the disk space for writes")
	f.StringVar(&limits.pids, "pids", "", "`NUMBER` of processes and threads")
	cmd.RunE = a.withClient(func(ctx context.Context, a *app, c *client.Client, args []string) error {
		r, err := limits.toResources(a)
		if err != nil {
			return err
		}
		if r == (sandpit.Resources{}) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "no limit is given"), "for example: sandpit resize "+args[0]+" --memory 2g")
		}
		return a.forEachSandbox(ctx, c, args, func(ctx context.Context, id sandpit.ID) error { return c.Sandboxes.Resize(ctx, id, r) })
	})
	return cmd
}
