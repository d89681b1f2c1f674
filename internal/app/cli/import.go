package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/client"
)

// importCommand has the options of sandpit import.
type importCommand struct {
	output
	request client.ImportRequest
}

func newImport(a *app) *cobra.Command {
	var o importCommand
	cmd := &cobra.Command{
		Use:   "import [flags] FILE|- [NAME]",
		Short: "Import a snapshot from a file",
		Long: `Import a snapshot that "sandpit export" wrote, possibly on another machine, and print its
new ID; "-" is standard input. It is for administrators. Import only files that you trust:
a snapshot with memory contains the state of a sandbox's kernel, and a forged one attacks
that kernel from within.`,
		Example:           "  sandpit import work.snapshot work\n  sandpit create snapshot:work",
		Args:              wantArgs(1, 2, "the name of a file"),
		ValidArgsFunction: completeFirstFile,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print the ID only (the default)")
	cmd.Flags().StringVar(&o.request.Provider, "provider", "", "`name` of the provider that stores it, see sandpit providers (default the server's)")
	cmd.Flags().StringVar(&o.request.Owner, "owner", "", "`name` of its owner (default your own)")
	return cmd
}

func (o *importCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	from, req := a.In, o.request
	req.Name = secondArgument(args)
	if args[0] != stdioName {
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	s, err := c.Snapshots.Import(ctx, req, from)
	if err != nil {
		return err
	}
	return printSnapshot(a, o.output, s)
}
