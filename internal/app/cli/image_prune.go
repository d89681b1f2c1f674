package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// imagePruneCommand has the options of sandpit image prune.
type imagePruneCommand struct {
	prune     image.PruneOptions
	age, size string
	asJSON    bool
}

func newImagePrune(a *app) *cobra.Command {
	var o imagePruneCommand
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Free space in the image cache",
		Long: `Free space in the image cache: remove images without a name, or those that the flags
select, and partially fetched layers. Images that a sandbox uses stay.`,
		Example: `  sandpit image prune
  sandpit image prune --older-than 30d
  sandpit image prune --max-size 5g --dry-run`,
		Args: wantArgs(0, 0, ""),
		RunE: a.withoutClient(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.prune.All, "all", "a", false, "all images that no sandbox uses")
	f.StringVar(&o.age, "older-than", "", "images not used for this `time`, such as 30d or 12h")
	f.StringVar(&o.size, "max-size", "", "the least recently used images, until the cache has at most this `size`")
	f.BoolVar(&o.prune.DryRun, "dry-run", false, "only print what would be removed")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *imagePruneCommand) run(cmd *cobra.Command, a *app, _ []string) error {
	var err error
	if o.prune.OlderThan, err = parseAge("--older-than", o.age); err != nil {
		return err
	}
	if o.size != "" {
		if o.prune.MaxSize, err = config.ParseSize(o.size); err != nil {
			return usageError(cmd, "--max-size: "+err.Error())
		}
	}
	return a.withLocalImages(cmd, func(store *image.Store) error {
		done, err := store.Prune(cmd.Context(), o.prune)
		if err != nil {
			return err
		}
		return showPruned(a, done, o.prune.DryRun, o.asJSON)
	})
}

func showPruned(a *app, done image.Pruned, dry, asJSON bool) error {
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
	_, err := fmt.Fprintf(a.Out, "%s %s.\n", verb, formatDecimalBytes(done.Size))
	return err
}
