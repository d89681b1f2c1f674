package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func (a *app) newVolume() *cobra.Command {
	cmd := group("volume", "Make, list and remove the volumes of a server", `Make, list and remove the volumes of a server: directories that several sandboxes
of one owner can have at the same time, and that outlive them. "-v NAME:/path" of create and
run shows one in a sandbox, "-v NAME:/path:ro" without letting it write.`,
		"  sandpit volume create data\n  sandpit create --name work -v data:/data\n  sandpit volume rm data")
	cmd.AddCommand(a.newVolumeCreate(), a.newVolumeList(), a.newVolumeInspect(), a.newVolumeRemove())
	return cmd
}

func (a *app) newVolumeCreate() *cobra.Command {
	var provider string
	cmd := &cobra.Command{
		Use:   "create [flags] NAME...",
		Short: "Make volumes",
		Long: `Make volumes and print their names. A name has letters, digits, and inside also
"-", "_" and dots.`,
		Example:           "  sandpit volume create data\n  sandpit volume create --provider docker cache",
		Args:              wantArgs(1, -1, "the name of a volume"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachName(ctx, args, func(ctx context.Context, name string) error {
				_, err := c.Volumes.Create(ctx, name, provider)
				return err
			})
		}),
	}
	cmd.Flags().StringVar(&provider, "provider", "", "`name` of who keeps them, see sandpit providers (default the server's choice)")
	return cmd
}

func (a *app) newVolumeRemove() *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:               "rm [flags] NAME...",
		Aliases:           []string{"remove"},
		Short:             "Remove volumes with all of their files",
		Long:              "Remove volumes with all of their files. One that a sandbox has, be that stopped, stays.",
		Example:           "  sandpit volume rm data",
		Args:              wantArgs(1, -1, "the name of a volume"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachName(ctx, args, func(ctx context.Context, name string) error { return c.Volumes.Delete(ctx, owner, name) })
		}),
	}
	addOwner(cmd, &owner)
	return cmd
}

func addOwner(cmd *cobra.Command, owner *string) {
	cmd.Flags().StringVar(owner, "owner", "", "`name` of whose, for administrators (default one's own)")
}

func (a *app) newVolumeList() *cobra.Command {
	var o output
	var owner string
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List volumes", Example: "  sandpit volume ls",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Volumes.List(ctx, owner)
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
				l.rows = append(l.rows, []string{v.Name, orElse(v.Owner, "-"), v.Provider, showAge(v.CreatedAt)})
			}
			return a.show(o, l)
		}),
	}
	o.add(cmd, "print names only")
	cmd.Flags().StringVar(&owner, "owner", "", "`name` of whose, for administrators (default everybody's)")
	return cmd
}

func (a *app) newVolumeInspect() *cobra.Command {
	var o output
	var owner string
	cmd := &cobra.Command{
		Use:               "inspect [flags] NAME...",
		Short:             "Show how large volumes are, and which sandboxes have them",
		Long:              "Show how large volumes are, and which sandboxes have them. As JSON it is a list, also for one.",
		Example:           "  sandpit volume inspect data",
		Args:              wantArgs(1, -1, "the name of a volume"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			list := make([]sandpit.Volume, len(args))
			errs := parallel(indices(args), func(i int) (err error) {
				list[i], err = c.Volumes.Get(ctx, owner, args[i])
				if err != nil && len(args) > 1 {
					err = fmt.Errorf("%s: %w", args[i], err)
				}
				return err
			})
			if err := errors.Join(errs...); err != nil {
				return err
			}
			return a.showVolumes(o, list)
		}),
	}
	o.add(cmd, "")
	addOwner(cmd, &owner)
	return cmd
}

func (a *app) showVolumes(o output, list []sandpit.Volume) error {
	if o.json() {
		return a.show(o, listing{document: list})
	}
	for n, v := range list {
		if n > 0 {
			fmt.Fprintln(a.Out)
		}
		rows := [][]string{
			{"Name", v.Name}, {"Owner", v.Owner}, {"Provider", v.Provider}, {"Created", showTime(v.CreatedAt)}, {"Size", "not known"},
		}
		if v.Size != nil {
			rows[len(rows)-1][1] = size(*v.Size)
		}
		for _, id := range v.Sandboxes {
			rows = append(rows, []string{"Sandbox", string(id)})
		}
		rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
		if err := layTable(a.Out, rows, nil); err != nil {
			return err
		}
	}
	return nil
}
