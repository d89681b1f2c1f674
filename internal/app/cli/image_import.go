package cli

import (
	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// imageImportCommand has the options of sandpit image import.
type imageImportCommand struct {
	name   string
	asJSON bool
}

func newImageImport(a *app) *cobra.Command {
	var o imageImportCommand
	cmd := &cobra.Command{
		Use:   "import [flags] FILE|DIRECTORY|-",
		Short: "Import an image from a file, a directory or standard input",
		Long: `Import an image from a file, a directory or standard input.

It may be the output of "docker save", an OCI layout (a directory or a tar of one), or a
root file system (a directory, or a tar such as "docker export" writes). Archives may be
compressed with gzip or zstd. If it contains several images, add a colon and the tag.`,
		Example: `  docker save python:3.12-slim | sandpit image import -
  sandpit image import ./layout:v1 --name tool:v1
  sandpit image import rootfs.tar.gz --name my-system`,
		Args: wantArgs(1, 1, "a file or directory"),
		RunE: a.withoutClient(o.run),
	}
	cmd.Flags().StringVar(&o.name, "name", "", "`NAME` of the image (default: what the archive says)")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *imageImportCommand) run(cmd *cobra.Command, a *app, args []string) error {
	return a.withLocalImages(cmd, func(store *image.Store) (err error) {
		progress, clear := newProgress(a.Err, "Importing")
		var list []image.Entry
		if args[0] == "-" {
			list, err = store.ImportFrom(cmd.Context(), a.In, o.name, progress)
		} else {
			list, err = store.Import(cmd.Context(), args[0], o.name, progress)
		}
		clear()
		if err != nil {
			return err
		}
		return a.showImages(list, o.asJSON)
	})
}
