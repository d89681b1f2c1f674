package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// exportCommand has the options of sandpit export.
type exportCommand struct {
	owner string
}

func newExport(a *app) *cobra.Command {
	var o exportCommand
	cmd := &cobra.Command{
		Use:   "export [flags] SNAPSHOT FILE|-",
		Short: "Write a snapshot into a file, with all that it needs",
		Long: `Write a snapshot into a file, with all that it needs; "-" is standard output. The file is
replaced when the whole snapshot is there. It holds whatever the sandbox had, also its secrets,
so only its owner may read it. "sandpit import" reads it, also on another machine.`,
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
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "a snapshot is nothing for a terminal"), "name a file, or send it to a program")
	}
	if args[1] == stdioName {
		return c.Snapshots.Export(ctx, o.owner, name, a.Out)
	}
	return replaceFile(args[1], func(f io.Writer) error { return c.Snapshots.Export(ctx, o.owner, name, f) })
}

// replaceFile writes a file that only its owner may read, as a whole or not at all.
func replaceFile(name string, fill func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
