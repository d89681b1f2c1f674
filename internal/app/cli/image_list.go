package cli

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

func (a *app) newImageList() *cobra.Command {
	var all, asJSON bool
	var provider string
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List images",
		Long: `List the images in the cache of this machine, or in that of the server which
--server, SANDPIT_URL or the configuration names, or, for provider docker, in its
engine.`,
		Example: `  sandpit image ls
  sandpit image ls --json | jq -r '.[].name'`,
		Args: wantArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withShelf(cmd, provider, func(s shelf) error {
				list, err := s.List(cmd.Context())
				if err != nil {
					return err
				}
				return a.showShelf(slices.DeleteFunc(list, func(i api.Image) bool {
					return !all && daemon.ImageEntry{Kind: daemon.ImageKind(i.Kind)}.Own()
				}), asJSON)
			}, func(store *daemon.Images) error {
				list, err := store.List()
				if err != nil {
					return err
				}
				shown := []daemon.ImageEntry{}
				for _, e := range list {
					if all || !e.Own() {
						shown = append(shown, e)
					}
				}
				return a.showImages(shown, asJSON)
			})
		},
	}
	addImageProvider(cmd, &provider)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also sandpit's own: the host image and its guest")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) showImages(list []daemon.ImageEntry, asJSON bool) error {
	if asJSON {
		return printJSON(a.Out, list)
	}
	rows := [][]string{{"NAME", "DIGEST", "SIZE", "CREATED", "USED"}}
	for _, e := range list {
		name := ownedName(e.Name, e.Owner)
		if name == "" {
			name = fmt.Sprintf("(%s)", cmp.Or(e.Source, string(e.Kind)))
		}
		rows = append(rows, []string{
			name, shortDigest(cmp.Or(e.Digest, e.ID)), showSize(e.Size), showAge(e.Created), showAge(e.Used),
		})
	}
	return printTable(a.Out, rows)
}

// ownedName returns the name of an image for people, with its owner if it has one.
func ownedName(name, owner string) string {
	if owner == "" {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, owner)
}

func (a *app) newImageRemove() *cobra.Command {
	var provider string
	cmd := &cobra.Command{
		Use:     "rm NAME|DIGEST...",
		Aliases: []string{"remove"},
		Short:   "Remove images from the cache",
		Long: `Remove images from the cache of this machine, or from that of the server which
--server, SANDPIT_URL or the configuration names, by name or by the beginning of the
digest. Those of a docker engine are removed by docker image rm.

An image goes with its last name. Sandboxes that run from it go on.`,
		Example: `  sandpit image rm python:3.12-slim
  sandpit image rm 3f5a2c81d0b7`,
		Args:              wantArgs(1, -1, "the name of an image"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withShelf(cmd, provider, func(s shelf) error {
				for _, name := range args {
					if err := s.Remove(cmd.Context(), name); err != nil {
						return err
					}
					fmt.Fprintln(a.Out, name)
				}
				return nil
			}, func(store *daemon.Images) error {
				for _, name := range args {
					gone, err := store.Remove(cmd.Context(), name)
					if err != nil {
						return err
					}
					for _, e := range gone {
						fmt.Fprintln(a.Out, cmp.Or(e.Name, shortDigest(cmp.Or(e.Digest, e.ID))))
					}
				}
				return nil
			})
		},
	}
	addImageProvider(cmd, &provider)
	return cmd
}

func (a *app) newImagePrune() *cobra.Command {
	var o daemon.PruneOptions
	var age, size string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Make room in the cache",
		Long: `Make room in the cache: remove images that have no name, or others as the flags
say, and half-fetched layers. An image that a sandbox uses stays.`,
		Example: `  sandpit image prune
  sandpit image prune --older-than 30d
  sandpit image prune --max-size 5g --dry-run`,
		Args: wantArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.OlderThan, err = parseAge("--older-than", age); err != nil {
				return err
			}
			if size != "" {
				if o.MaxSize, err = config.ParseSize(size); err != nil {
					return usageError(cmd, "--max-size: "+err.Error())
				}
			}
			return a.onlyCache(cmd, func(store *daemon.Images) error {
				done, err := store.Prune(cmd.Context(), o)
				if err != nil {
					return err
				}
				return a.showPruned(done, o.DryRun, asJSON)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.All, "all", "a", false, "every image that no sandbox uses")
	f.StringVar(&age, "older-than", "", "images not used for this `time`, such as 30d or 12h")
	f.StringVar(&size, "max-size", "", "those used least recently, until the cache has no more than this `size`")
	f.BoolVar(&o.DryRun, "dry-run", false, "only say what would go")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) showPruned(done daemon.Pruned, dry, asJSON bool) error {
	if asJSON {
		return printJSON(a.Out, done)
	}
	if len(done.Images) > 0 {
		if err := a.showImages(done.Images, false); err != nil {
			return err
		}
	}
	verb := "Freed"
	if dry {
		verb = "Would free"
	}
	_, err := fmt.Fprintf(a.Out, "%s %s.\n", verb, showSize(done.Size))
	return err
}
