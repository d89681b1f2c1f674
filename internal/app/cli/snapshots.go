package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// snapshotPrefix begins an image that is a snapshot, and a snapshot where a sandbox could
// be named as well.
const snapshotPrefix = "snapshot:"

func (a *app) newSnapshot() *cobra.Command {
	cmd := group("snapshot", "Save sandboxes, and list and remove what was saved", `Save sandboxes, and list and remove what was saved. A sandbox goes on when it is saved, and
its snapshots stay when it is removed. Sandboxes with the image snapshot:NAME, or
snapshot:ID, begin as it was: with its files, and with the programs that ran if its
provider saves memory, too. What was mounted is not part of it.`,
		"  sandpit snapshot create work before-upgrade\n  sandpit create snapshot:before-upgrade\n  sandpit rollback work before-upgrade")
	cmd.AddCommand(a.newSnapshotCreate(), a.newSnapshotList(), a.newSnapshotInspect(), a.newSnapshotRemove())
	return cmd
}

func (a *app) newSnapshotCreate() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "create [flags] SANDBOX [NAME]",
		Short: "Save a sandbox, which goes on",
		Long: `Save a running or paused sandbox, which goes on, and print the ID of the snapshot. A name
has letters, digits, and inside also "-", "_" and dots.`,
		Example:           "  sandpit snapshot create work\n  sandpit snapshot create work before-upgrade",
		Args:              wantArgs(1, 2, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := find(ctx, c, args[0])
			if err != nil {
				return err
			}
			s, err := c.Snapshots.Create(ctx, id, second(args))
			if err != nil {
				return err
			}
			return a.tellSnapshot(o, s)
		}),
	}
	o.add(cmd, "print the ID only, which is also the default")
	return cmd
}

// second returns the second argument, "" if there is none.
func second(args []string) string {
	if len(args) < 2 {
		return ""
	}
	return args[1]
}

// tellSnapshot tells of one that was made.
func (a *app) tellSnapshot(o output, s sandpit.Snapshot) error {
	if o.json() {
		return a.show(o, listing{document: s})
	}
	_, err := fmt.Fprintln(a.Out, s.ID)
	return err
}

func (a *app) newSnapshotRemove() *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:               "rm [flags] SNAPSHOT...",
		Aliases:           []string{"remove"},
		Short:             "Remove snapshots",
		Long:              "Remove snapshots, by their IDs or names. Sandboxes that were made of them go on.",
		Example:           "  sandpit snapshot rm before-upgrade",
		Args:              wantArgs(1, -1, "the name of a snapshot"),
		ValidArgsFunction: a.completeSnapshots(0),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachName(ctx, args, func(ctx context.Context, name string) error {
				return c.Snapshots.Delete(ctx, owner, strings.TrimPrefix(name, snapshotPrefix))
			})
		}),
	}
	addOwner(cmd, &owner)
	return cmd
}

func (a *app) newSnapshotList() *cobra.Command {
	var o output
	var owner, sandbox string
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List snapshots", Example: "  sandpit snapshot ls\n  sandpit snapshot ls --sandbox work",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			f := client.SnapshotFilter{Owner: owner}
			if sandbox != "" {
				var err error
				if f.Sandbox, err = find(ctx, c, sandbox); err != nil {
					return err
				}
			}
			list, err := c.Snapshots.List(ctx, f)
			if err != nil {
				return err
			}
			return a.show(o, snapshotListing(list))
		}),
	}
	o.add(cmd, "print IDs only")
	cmd.Flags().StringVar(&owner, "owner", "", "`name` of whose, for administrators (default everybody's)")
	cmd.Flags().StringVar(&sandbox, "sandbox", "", "`SANDBOX` that they were taken of (default any)")
	return cmd
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
			string(s.ID), orElse(s.Name, "-"), orElse(string(s.Sandbox), "-"), kind, size(s.Size), showAge(s.CreatedAt),
		})
	}
	return l
}

func (a *app) newSnapshotInspect() *cobra.Command {
	var o output
	var owner string
	cmd := &cobra.Command{
		Use:               "inspect [flags] SNAPSHOT...",
		Short:             "Show what is known of snapshots",
		Long:              "Show what is known of snapshots. As JSON it is a list, also for one.",
		Example:           "  sandpit snapshot inspect before-upgrade",
		Args:              wantArgs(1, -1, "the name of a snapshot"),
		ValidArgsFunction: a.completeSnapshots(0),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			list := make([]sandpit.Snapshot, len(args))
			errs := parallel(indices(args), func(i int) (err error) {
				list[i], err = c.Snapshots.Get(ctx, owner, strings.TrimPrefix(args[i], snapshotPrefix))
				if err != nil && len(args) > 1 {
					err = fmt.Errorf("%s: %w", args[i], err)
				}
				return err
			})
			if err := errors.Join(errs...); err != nil {
				return err
			}
			return a.showSnapshots(o, list)
		}),
	}
	o.add(cmd, "")
	addOwner(cmd, &owner)
	return cmd
}

func (a *app) showSnapshots(o output, list []sandpit.Snapshot) error {
	if o.json() {
		return a.show(o, listing{document: list})
	}
	for n, s := range list {
		if n > 0 {
			fmt.Fprintln(a.Out)
		}
		memory := "no"
		if s.Memory {
			memory = "yes"
		}
		rows := [][]string{
			{"ID", string(s.ID)},
			{"Name", s.Name},
			{"Owner", s.Owner},
			{"Provider", s.Provider},
			{"Sandbox", string(s.Sandbox)},
			{"Image", string(s.Spec.Image)},
			{"Memory", memory},
			{"Size", size(s.Size)},
			{"Created", showTime(s.CreatedAt)},
			{"Unusable", s.Unloadable},
		}
		rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
		if err := layTable(a.Out, rows, nil); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) newRollback() *cobra.Command {
	return &cobra.Command{
		Use:   "rollback SANDBOX SNAPSHOT",
		Short: "Make a sandbox what a snapshot of it was",
		Long: `Make a running or paused sandbox what a snapshot of it was. It keeps its ID, and runs
then. What it has become since is lost; take another snapshot first to keep that.
Whoever uses it is told to stop.`,
		Example: "  sandpit snapshot create work before\n  sandpit exec work -- make upgrade\n  sandpit rollback work before",
		Args:    wantArgs(2, 2, "the name of a sandbox or a snapshot"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return a.completeSnapshots(2)(cmd, args, begun)
			}
			return a.completeSandboxes(1)(cmd, args, begun)
		},
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			return a.each(ctx, c, args[:1], func(ctx context.Context, id sandpit.ID) error {
				return c.Sandboxes.Rollback(ctx, id, strings.TrimPrefix(args[1], snapshotPrefix))
			})
		}),
	}
}

func (a *app) newExport() *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:   "export [flags] SNAPSHOT FILE|-",
		Short: "Write a snapshot into a file, with all that it needs",
		Long: `Write a snapshot into a file, with all that it needs; "-" is standard output. The file is
replaced when the whole snapshot is there. It holds whatever the sandbox had, also its secrets,
so only its owner may read it. "sandpit import" reads it, also on another machine.`,
		Example:           "  sandpit export before-upgrade work.snapshot\n  sandpit export before-upgrade - | ssh other sandpit import - work",
		Args:              wantArgs(2, 2, "the name of a snapshot or a file"),
		ValidArgsFunction: a.completeSnapshotsAndFiles,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			name := strings.TrimPrefix(args[0], snapshotPrefix)
			if _, terminal := terminalOf(a.Out); terminal && args[1] == stream {
				return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "a snapshot is nothing for a terminal"), "name a file, or send it to a program")
			}
			if args[1] == stream {
				return c.Snapshots.Export(ctx, owner, name, a.Out)
			}
			return replaceFile(args[1], func(f io.Writer) error { return c.Snapshots.Export(ctx, owner, name, f) })
		}),
	}
	addOwner(cmd, &owner)
	return cmd
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

func (a *app) newImport() *cobra.Command {
	var o output
	var req client.ImportRequest
	cmd := &cobra.Command{
		Use:   "import [flags] FILE|- [NAME]",
		Short: "Add a snapshot that export wrote",
		Long: `Add a snapshot that "sandpit export" wrote, maybe on another machine, and print its new ID;
"-" is standard input. It is for administrators, and for what you trust: with its memory comes
the state of a sandbox's kernel, and one that was made up attacks that kernel from within.`,
		Example:           "  sandpit import work.snapshot work\n  sandpit create snapshot:work",
		Args:              wantArgs(1, 2, "the name of a file"),
		ValidArgsFunction: completeFirstFile,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			from, req := a.In, req
			req.Name = second(args)
			if args[0] != stream {
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
			return a.tellSnapshot(o, s)
		}),
	}
	o.add(cmd, "print the ID only, which is also the default")
	cmd.Flags().StringVar(&req.Provider, "provider", "", "`name` of who keeps it, see sandpit providers (default the server's choice)")
	cmd.Flags().StringVar(&req.Owner, "owner", "", "whose it shall be (default your own)")
	return cmd
}

// completeSnapshots offers names and IDs.
func (a *app) completeSnapshots(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if most > 0 && len(args) >= most {
			return nil, none
		}
		return a.snapshotNames(cmd.Context(), begun), none
	}
}

func (a *app) completeSnapshotsAndFiles(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeSnapshots(1)(cmd, args, begun)
	}
	return nil, cobra.ShellCompDirectiveDefault
}

func (a *app) snapshotNames(ctx context.Context, begun string) []string {
	c, err := a.dial()
	if err != nil {
		return nil
	}
	defer c.Close()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	const most = 1000
	list, err := c.Snapshots.List(ctx, client.SnapshotFilter{Limit: most})
	if err != nil {
		return nil
	}
	var names []string
	for _, s := range list {
		for _, name := range []string{s.Name, string(s.ID)} {
			if name != "" && strings.HasPrefix(name, begun) {
				names = append(names, name)
			}
		}
	}
	return names
}

// completeFirstFile offers files as the first argument only.
func completeFirstFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeImage offers the images that are snapshots; a registry is not asked.
func (a *app) completeImage(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || !strings.HasPrefix(begun, snapshotPrefix) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.snapshotImages(cmd.Context(), begun), cobra.ShellCompDirectiveNoFileComp
}

// snapshotImages returns snapshots as images.
func (a *app) snapshotImages(ctx context.Context, begun string) []string {
	names := a.snapshotNames(ctx, strings.TrimPrefix(begun, snapshotPrefix))
	for i := range names {
		names[i] = snapshotPrefix + names[i]
	}
	return names
}
