package cli

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// labelCommand has the options of sandpit label.
type labelCommand struct {
	output
}

func newLabel(a *app) *cobra.Command {
	var o labelCommand
	cmd := &cobra.Command{
		Use:   "label [flags] SANDBOX [NAME=VALUE...] [NAME-...]",
		Short: "Show, set and remove the labels of a sandbox",
		Long: `Show, set and remove the labels of a sandbox.

NAME=VALUE sets a label, NAME- removes it. All labels are printed afterwards.`,
		Example: `  sandpit label work
  sandpit label work project=x stage-`,
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print names only")
	return cmd
}

func (o *labelCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	s, err := c.Sandboxes.Get(ctx, id)
	if err != nil {
		return err
	}
	labels := maps.Clone(s.Spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	if err := changeLabels(labels, args[1:]); err != nil {
		return err
	}
	if len(args) > 1 {
		if err := c.Sandboxes.SetLabels(ctx, id, labels); err != nil {
			return err
		}
	}
	return a.showListing(o.output, labelListing(labels))
}

func changeLabels(labels map[string]string, changes []string) error {
	for _, ch := range changes {
		name, value, ok := strings.Cut(ch, "=")
		switch {
		case ok && name != "":
			labels[name] = value
		case !ok && len(ch) > 1 && strings.HasSuffix(ch, "-"):
			delete(labels, strings.TrimSuffix(ch, "-"))
		default:
			return sandpit.Errorf(sandpit.Invalid, "label %q: want NAME=VALUE, or NAME- to take it off", ch)
		}
	}
	return nil
}

func labelListing(labels map[string]string) listing {
	l := listing{document: labels, rows: [][]string{{"NAME", "VALUE"}}}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		l.ids, l.rows = append(l.ids, name), append(l.rows, []string{name, labels[name]})
	}
	return l
}
