package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// change is a command that brings sandboxes into another state.
type change struct {
	name, short, long string
	do                func(*client.Client) func(context.Context, sandpit.ID) error
}

// changes lists them.
func changes() []change {
	return []change{
		{
			"stop", "End the processes of sandboxes and keep their files", "",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Stop },
		},
		{
			"start", "Start sandboxes that were stopped", "",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Start },
		},
		{
			"restart", "Stop sandboxes and start them again, with their files",
			"All processes end, also where the sandbox does not answer any more. A stopped sandbox is\nstarted.",
			restart,
		},
		{
			"resume", "Let paused sandboxes go on", "",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Resume },
		},
		{
			"checkpoint", "Save the files of running sandboxes, for when they break down",
			"A sandbox that was created with --recreate begins with the last files that were saved\nwhen what it runs in breaks down. See also create --checkpoint-every.",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Checkpoint },
		},
		{
			"archive", "Move the files of stopped sandboxes to where they cost little",
			"Until it is restored, an archived sandbox cannot be started.",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Archive },
		},
		{
			"restore", "Move the files of archived sandboxes back", "The sandbox is stopped then, and can be started.",
			func(c *client.Client) func(context.Context, sandpit.ID) error { return c.Sandboxes.Restore },
		},
	}
}

func (a *app) newChange(ch change) *cobra.Command {
	long := ch.short + "."
	if ch.long != "" {
		long += "\n\n" + ch.long
	}
	return &cobra.Command{
		Use:   ch.name + " SANDBOX...",
		Short: ch.short,
		Long: long + `

A SANDBOX is called by its ID, the beginning of it, or its name. The IDs of those
that could be changed are printed.`,
		Example:           "  sandpit " + ch.name + " work",
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(0),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			return a.each(ctx, c, args, ch.do(c))
		}),
	}
}

func (a *app) newPause() *cobra.Command {
	var disk bool
	cmd := a.newChange(change{
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

func (a *app) newTimeout() *cobra.Command {
	var action string
	cmd := &cobra.Command{
		Use:   "timeout [flags] SANDBOX DURATION|never",
		Short: "Say how long a sandbox may go on from now",
		Long: `Say how long a sandbox may go on from now. What happens to it then stays what was
chosen before, unless --action changes it. A new sandbox is removed then (kill).`,
		Example: `  sandpit timeout work 2h
  sandpit timeout --action pause work 30m
  sandpit timeout work never`,
		Args: wantArgs(2, 2, "the name of a sandbox or a time"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"30m", "1h", "1d", never}, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeSandboxes(1)(cmd, args, begun)
		},
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			d, err := parseSpan("the time", args[1])
			if err != nil {
				return err
			}
			if d == 0 {
				return sandpit.Errorf(sandpit.Invalid, "the time is empty: want a time such as 30m, 12h or 2d, or %s", never)
			}
			return a.each(ctx, c, args[:1], func(ctx context.Context, id sandpit.ID) error {
				return c.Sandboxes.SetTimeout(ctx, id, d, sandpit.Action(action))
			})
		}),
	}
	addChoice(cmd, &action, "action", "what happens then: `ACTION` kill, stop, pause or suspend (default what was chosen before)", actions()...)
	return cmd
}

func (a *app) newLabel() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "label [flags] SANDBOX [NAME=VALUE...] [NAME-...]",
		Short: "Show, set and take off the labels of a sandbox",
		Long: `Show, set and take off the labels of a sandbox.

NAME=VALUE sets a label, NAME- takes it off. All labels are printed then.`,
		Example: `  sandpit label work
  sandpit label work project=x stage-`,
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := find(ctx, c, args[0])
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
			return a.show(o, labelListing(labels))
		}),
	}
	o.add(cmd, "print names only")
	return cmd
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

// plural is for messages that count.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
