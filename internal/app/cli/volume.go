package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func newVolume(a *app) *cobra.Command {
	cmd := newGroup("volume", "Create, list and remove the volumes of a server", `Create, list and remove the volumes of a server: directories that several sandboxes of one
owner can mount at the same time, and that outlive them. "-v NAME:/path" of create and run
mounts one, "-v NAME:/path:ro" read-only.`,
		"  sandpit volume create data\n  sandpit create --name work -v data:/data\n  sandpit volume rm data")
	cmd.AddCommand(newVolumeCreate(a), newVolumeList(a), newVolumeInspect(a), newVolumeRemove(a))
	return cmd
}

// volumeCreateCommand has the options of sandpit volume create.
type volumeCreateCommand struct {
	provider string
}

func newVolumeCreate(a *app) *cobra.Command {
	var o volumeCreateCommand
	cmd := &cobra.Command{
		Use:   "create [flags] NAME...",
		Short: "Create volumes",
		Long: `Create volumes and print their names. A name has letters, digits and, except at its ends,
also "-", "_" and dots.`,
		Example:           "  sandpit volume create data\n  sandpit volume create --provider docker cache",
		Args:              wantArgs(1, -1, "the name of a volume"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	cmd.Flags().StringVar(&o.provider, "provider", "", "`name` of the provider that stores them, see sandpit providers (default the server's)")
	return cmd
}

func (o *volumeCreateCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	return a.forEachName(ctx, args, func(ctx context.Context, name string) error {
		_, err := c.Volumes.Create(ctx, name, o.provider)
		return err
	})
}

// volumeRemoveCommand has the options of sandpit volume rm.
type volumeRemoveCommand struct {
	owner string
}

func newVolumeRemove(a *app) *cobra.Command {
	var o volumeRemoveCommand
	cmd := &cobra.Command{
		Use:     "rm [flags] NAME...",
		Aliases: []string{"remove"},
		Short:   "Remove volumes with all their files",
		Long: `Remove volumes with all their files. A volume that a sandbox mounts, even a stopped one,
is not removed.`,
		Example:           "  sandpit volume rm data",
		Args:              wantArgs(1, -1, "the name of a volume"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	addOwner(cmd, &o.owner)
	return cmd
}

func (o *volumeRemoveCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	return a.forEachName(ctx, args, func(ctx context.Context, name string) error { return c.Volumes.Delete(ctx, o.owner, name) })
}

// volumeListCommand has the options of sandpit volume ls.
type volumeListCommand struct {
	output
	owner string
}

func newVolumeList(a *app) *cobra.Command {
	var o volumeListCommand
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List volumes", Example: "  sandpit volume ls",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print names only")
	addOwnerFilter(cmd, &o.owner)
	return cmd
}

func (o *volumeListCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	list, err := c.Volumes.List(ctx, o.owner)
	if err != nil {
		return err
	}
	if list == nil {
		list = []sandpit.Volume{}
	}
	slices.SortFunc(list, func(a, b sandpit.Volume) int {
		return strings.Compare(a.Owner+"\x00"+a.Name, b.Owner+"\x00"+b.Name)
	})
	l := listing{document: list, rows: [][]string{{"NAME", "OWNER", "PROVIDER", "CREATED"}}}
	for _, v := range list {
		l.ids = append(l.ids, v.Name)
		l.rows = append(l.rows, []string{v.Name, cmp.Or(v.Owner, "-"), v.Provider, formatAge(v.CreatedAt)})
	}
	return a.showListing(o.output, l)
}

// volumeInspectCommand has the options of sandpit volume inspect.
type volumeInspectCommand struct {
	output
	owner string
}

func newVolumeInspect(a *app) *cobra.Command {
	var o volumeInspectCommand
	cmd := &cobra.Command{
		Use:               "inspect [flags] NAME...",
		Short:             "Show the sizes of volumes and the sandboxes that mount them",
		Long:              `Show the sizes of volumes and the sandboxes that mount them. As JSON it is always a list.`,
		Example:           "  sandpit volume inspect data",
		Args:              wantArgs(1, -1, "the name of a volume"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	addOwner(cmd, &o.owner)
	return cmd
}

func (o *volumeInspectCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	list, err := getEach(args, func(name string) (sandpit.Volume, error) {
		return c.Volumes.Get(ctx, o.owner, name)
	})
	if err != nil {
		return err
	}
	return showVolumes(a, o.output, list)
}

func showVolumes(a *app, o output, list []sandpit.Volume) error {
	if o.isJSON() {
		return a.showListing(o, listing{document: list})
	}
	return printDetails(a.Out, list, volumeRows)
}

func volumeRows(v sandpit.Volume) [][]string {
	size := "unknown"
	if v.Size != nil {
		size = formatBytes(*v.Size)
	}
	rows := [][]string{
		{"Name", v.Name}, {"Owner", v.Owner}, {"Provider", v.Provider}, {"Created", formatTime(v.CreatedAt)}, {"Size", size},
	}
	for _, id := range v.Sandboxes {
		rows = append(rows, []string{"Sandbox", string(id)})
	}
	return rows
}
