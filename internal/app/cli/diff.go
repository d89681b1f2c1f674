package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// diffCommand has the options of sandpit diff.
type diffCommand struct {
	output
	patch bool
}

func newDiff(a *app) *cobra.Command {
	var o diffCommand
	cmd := &cobra.Command{
		Use:   "diff [flags] A [B]",
		Short: "Show which files differ between sandboxes, snapshots and their image",
		Long: `Show which files differ between A and B. Each is a running sandbox or a snapshot, named
snapshot:NAME or by its ID. With A alone, show its differences from its image.

A means added, C changed, D removed. If the image itself was not compared, W means written
(added, or changed from the image) and R restored (the same as in the image again). Mounts
are not compared.`,
		Example:           "  sandpit diff work\n  sandpit diff snapshot:before work\n  sandpit diff --patch snapshot:before work > changes.patch",
		Args:              wantArgs(1, 2, "a sandbox or a snapshot"),
		ValidArgsFunction: a.completeSides,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print paths only")
	cmd.Flags().BoolVarP(&o.patch, "patch", "p", false, "show the differences of small text files, as a unified diff")
	return cmd
}

func (o *diffCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	r := client.DiffRequest{Patch: o.patch}
	f := &finder{client: c}
	sides := make([]client.Side, len(args))
	for i, name := range args {
		var err error
		if sides[i], err = parseSide(ctx, f, name); err != nil {
			return err
		}
	}
	r.To = sides[len(sides)-1]
	if len(sides) > 1 {
		r.From = sides[0]
	}
	d, err := c.Sandboxes.Diff(ctx, r)
	if err != nil {
		return err
	}
	return showDiff(a, o.output, d, o.patch)
}

// parseSide parses one side of a comparison.
func parseSide(ctx context.Context, f *finder, name string) (client.Side, error) {
	if rest, ok := strings.CutPrefix(name, snapshotPrefix); ok {
		return client.Side{Snapshot: rest}, nil
	}
	if sandpit.SnapshotID(name).Validate() == nil {
		return client.Side{Snapshot: name}, nil
	}
	id, err := f.findID(ctx, name)
	return client.Side{Sandbox: id}, err
}

// showDiff prints a comparison. Control characters are escaped, except in a patch that does not
// go to a terminal, so that it can be applied.
func showDiff(a *app, o output, d sandpit.FileDiff, patch bool) error {
	l := listing{document: d, rows: [][]string{{"", "SIZE", "PATH"}}}
	for _, c := range d.Changes {
		l.ids = append(l.ids, c.Path)
		l.rows = append(l.rows, []string{kindLetter(c.Kind), formatChangeSize(c), c.Path})
	}
	if d.Truncated {
		defer fmt.Fprintln(a.Err, "sandpit: more files differ than are shown")
	}
	if !patch || o.quiet || o.isJSON() {
		return a.showListing(o, l)
	}
	_, terminal := terminalOf(a.Out)
	for _, c := range d.Changes {
		text := c.Patch
		switch {
		case text == "":
			text = fmt.Sprintf("# %s %s\n", c.Kind, escapeText(c.Path))
		case terminal:
			text = escapeLines(text)
		}
		if _, err := fmt.Fprint(a.Out, text); err != nil {
			return err
		}
	}
	return nil
}

func kindLetter(k sandpit.ChangeKind) string {
	switch k {
	case sandpit.DiffAdded:
		return "A"
	case sandpit.DiffChanged:
		return "C"
	case sandpit.DiffRemoved:
		return "D"
	case sandpit.DiffWritten:
		return "W"
	case sandpit.DiffRestored:
		return "R"
	}
	return "?"
}

func formatChangeSize(c sandpit.FileChange) string {
	if c.Type != "file" || c.Kind == sandpit.DiffRemoved || c.Kind == sandpit.DiffRestored {
		return "-"
	}
	return formatBytes(c.Size)
}
