package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// exportCommand has the options of sandpit export.
type exportCommand struct {
	owner string
}

func newExport(a *app) *cobra.Command {
	var o exportCommand
	cmd := &cobra.Command{
		Use:   "export [flags] SNAPSHOT FILE|-",
		Short: "Export a snapshot to a file",
		Long: `Export a snapshot to a file, with everything it needs; "-" is standard output. The file is
replaced when the export is complete. It contains everything that the sandbox had,
including its secrets, so only its owner may read it. "sandpit import" reads it, also on
another machine.`,
		Example:           "  sandpit export before-upgrade work.snapshot\n  sandpit export before-upgrade - | ssh other sandpit import - work",
		Args:              wantArgs(2, 2, "the name of a snapshot or a file"),
		ValidArgsFunction: a.completeSnapshotsAndFiles,
		RunE:              a.withClient(o.run),
	}
	addOwner(cmd, &o.owner)
	return cmd
}

func (o *exportCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	name := strings.TrimPrefix(args[0], snapshotPrefix)
	if _, terminal := terminalOf(a.Out); terminal && args[1] == stdioName {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "cannot write a snapshot to a terminal"), "name a file, or pipe it to a program")
	}
	if args[1] == stdioName {
		return c.Snapshots.Export(ctx, o.owner, name, a.Out)
	}
	return atomicfile.WriteFunc(args[1], 0o600, func(f io.Writer) error { return c.Snapshots.Export(ctx, o.owner, name, f) })
}
