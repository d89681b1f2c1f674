package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// imageUpdateCommand has the options of sandpit image update.
type imageUpdateCommand struct {
	pull, asJSON bool
}

func newImageUpdate(a *app) *cobra.Command {
	var o imageUpdateCommand
	cmd := &cobra.Command{
		Use:   "update [flags] [REF...]",
		Short: "Check whether registries have newer images",
		Long: `Check whether registries have newer images under the names in the image cache.

Without names, all images from registries are checked. Nothing is changed unless --pull is
given.`,
		Example: `  sandpit image update
  sandpit image update --pull python:3.12-slim`,
		ValidArgsFunction: a.completeImages,
		RunE:              a.withoutClient(o.run),
	}
	cmd.Flags().BoolVar(&o.pull, "pull", false, "fetch the newer images")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *imageUpdateCommand) run(cmd *cobra.Command, a *app, args []string) error {
	return a.withLocalImages(cmd, func(store *image.Store) (err error) {
		if len(args) == 0 {
			if args, err = store.Fetched(); err != nil {
				return err
			}
		}
		return o.updateImages(cmd.Context(), a, store, args)
	})
}

// updateImages checks each name, also after failures.
func (o *imageUpdateCommand) updateImages(ctx context.Context, a *app, store *image.Store, names []string) error {
	list := []image.Update{}
	rows := [][]string{{"NAME", "HAVE", "REGISTRY", ""}}
	var errs []error
	for _, name := range names {
		u, err := store.Check(ctx, name)
		if err == nil && u.Newer && o.pull {
			progress, clear := newProgress(a.Err, "Fetching "+name)
			_, err = store.Pull(ctx, name, true, progress)
			clear()
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		state := "up to date"
		switch {
		case u.Newer && o.pull:
			state = "fetched"
		case u.Newer:
			state = "newer"
		}
		list = append(list, u)
		rows = append(rows, []string{u.Name, shortDigest(u.Have), shortDigest(u.Latest), state})
	}
	var err error
	switch {
	case o.asJSON:
		err = printJSON(a.Out, list)
	case len(list) > 0:
		err = printTable(a.Out, rows)
	case len(errs) == 0:
		_, err = fmt.Fprintln(a.Out, "No image in the cache comes from a registry.")
	}
	return errors.Join(append(errs, err)...)
}
