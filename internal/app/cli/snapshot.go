package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// snapshotPrefix begins an image that is a snapshot, and a snapshot where sandboxes can be named
// as well.
const snapshotPrefix = "snapshot:"

func newSnapshot(a *app) *cobra.Command {
	cmd := newGroup("snapshot", "Create, list and remove snapshots of sandboxes", `Create, list and remove snapshots of sandboxes. A sandbox keeps running when it is saved,
and its snapshots stay when it is deleted. Sandboxes with the image snapshot:NAME, or
snapshot:ID, begin in the saved state: with its files and, if its provider saves memory,
with its running programs. Mounts are not part of it.`,
		"  sandpit snapshot create work before-upgrade\n  sandpit create snapshot:before-upgrade\n  sandpit rollback work before-upgrade")
	cmd.AddCommand(newSnapshotCreate(a), newSnapshotList(a), newSnapshotInspect(a), newSnapshotRemove(a))
	return cmd
}

// snapshotCreateCommand has the options of sandpit snapshot create.
type snapshotCreateCommand struct {
	output
}

func newSnapshotCreate(a *app) *cobra.Command {
	var o snapshotCreateCommand
	cmd := &cobra.Command{
		Use:   "create [flags] SANDBOX [NAME]",
		Short: "Create a snapshot of a sandbox",
		Long: `Create a snapshot of a running or paused sandbox, which keeps running, and print its ID. A
name has letters, digits and, except at its ends, also "-", "_" and dots.`,
		Example:           "  sandpit snapshot create work\n  sandpit snapshot create work before-upgrade",
		Args:              wantArgs(1, 2, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print the ID only (the default)")
	return cmd
}

func (o *snapshotCreateCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	s, err := c.Snapshots.Create(ctx, id, secondArgument(args))
	if err != nil {
		return err
	}
	return printSnapshot(a, o.output, s)
}

// printSnapshot prints a new snapshot.
func printSnapshot(a *app, o output, s sandpit.Snapshot) error {
	if o.isJSON() {
		return a.showListing(o, listing{document: s})
	}
	_, err := fmt.Fprintln(a.Out, s.ID)
	return err
}

// snapshotRemoveCommand has the options of sandpit snapshot rm.
type snapshotRemoveCommand struct {
	owner string
}

func newSnapshotRemove(a *app) *cobra.Command {
	var o snapshotRemoveCommand
	cmd := &cobra.Command{
		Use:               "rm [flags] SNAPSHOT...",
		Aliases:           []string{"remove"},
		Short:             "Remove snapshots",
		Long:              `Remove snapshots, by ID or name. Sandboxes created from them keep running.`,
		Example:           "  sandpit snapshot rm before-upgrade",
		Args:              wantArgs(1, -1, "the name of a snapshot"),
		ValidArgsFunction: a.completeSnapshots(0),
		RunE:              a.withClient(o.run),
	}
	addOwner(cmd, &o.owner)
	return cmd
}

func (o *snapshotRemoveCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	return a.forEachName(ctx, args, func(ctx context.Context, name string) error {
		return c.Snapshots.Delete(ctx, o.owner, strings.TrimPrefix(name, snapshotPrefix))
	})
}

// snapshotListCommand has the options of sandpit snapshot ls.
type snapshotListCommand struct {
	output
	owner, sandbox string
}

func newSnapshotList(a *app) *cobra.Command {
	var o snapshotListCommand
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List snapshots", Example: "  sandpit snapshot ls\n  sandpit snapshot ls --sandbox work",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print IDs only")
	addOwnerFilter(cmd, &o.owner)
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "only snapshots of this `SANDBOX`")
	return cmd
}

func (o *snapshotListCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	f := client.SnapshotFilter{Owner: o.owner}
	if o.sandbox != "" {
		var err error
		if f.Sandbox, err = findSandbox(ctx, c, o.sandbox); err != nil {
			return err
		}
	}
	list, err := c.Snapshots.List(ctx, f)
	if err != nil {
		return err
	}
	return a.showListing(o.output, snapshotListing(list))
}

func snapshotListing(list []sandpit.Snapshot) listing {
	if list == nil {
		list = []sandpit.Snapshot{}
	}
	slices.SortFunc(list, func(a, b sandpit.Snapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	l := listing{document: list, rows: [][]string{{"ID", "NAME", "SANDBOX", "KIND", "SIZE", "CREATED"}}}
	for _, s := range list {
		kind := "files"
		if s.Memory {
			kind = "files, memory"
		}
		if s.Unloadable != "" {
			kind = "unusable"
		}
		l.ids = append(l.ids, string(s.ID))
		l.rows = append(l.rows, []string{
			string(s.ID), cmp.Or(s.Name, "-"), cmp.Or(string(s.Sandbox), "-"), kind, formatBytes(s.Size), formatAge(s.CreatedAt),
		})
	}
	return l
}

// snapshotInspectCommand has the options of sandpit snapshot inspect.
type snapshotInspectCommand struct {
	output
	owner string
}

func newSnapshotInspect(a *app) *cobra.Command {
	var o snapshotInspectCommand
	cmd := &cobra.Command{
		Use:               "inspect [flags] SNAPSHOT...",
		Short:             "Show all details of snapshots",
		Long:              `Show all details of snapshots. As JSON it is always a list.`,
		Example:           "  sandpit snapshot inspect before-upgrade",
		Args:              wantArgs(1, -1, "the name of a snapshot"),
		ValidArgsFunction: a.completeSnapshots(0),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	addOwner(cmd, &o.owner)
	return cmd
}

func (o *snapshotInspectCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	list, err := getEach(args, func(name string) (sandpit.Snapshot, error) {
		return c.Snapshots.Get(ctx, o.owner, strings.TrimPrefix(name, snapshotPrefix))
	})
	if err != nil {
		return err
	}
	return showSnapshots(a, o.output, list)
}

func showSnapshots(a *app, o output, list []sandpit.Snapshot) error {
	if o.isJSON() {
		return a.showListing(o, listing{document: list})
	}
	return printDetails(a.Out, list, snapshotRows)
}

func snapshotRows(s sandpit.Snapshot) [][]string {
	memory := "no"
	if s.Memory {
		memory = "yes"
	}
	return [][]string{
		{"ID", string(s.ID)},
		{"Name", s.Name},
		{"Owner", s.Owner},
		{"Provider", s.Provider},
		{"Sandbox", string(s.Sandbox)},
		{"Image", string(s.Spec.Image)},
		{"Memory", memory},
		{"Size", formatBytes(s.Size)},
		{"Created", formatTime(s.CreatedAt)},
		{"Unusable", s.Unloadable},
	}
}
