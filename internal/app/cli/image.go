package cli

import (
	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/app/daemon"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

func newImage(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Fetch, import, list and remove images",
		Long: `Fetch, import, list and remove images.

An image is the root file system that a sandbox starts from. Images of registries are
fetched once and then used from the image cache, without network access. When it grows
beyond image.cache_size, the cache removes the least recently used images.

pull, ls and rm use the images of a server if --server, SANDPIT_URL or the configuration
names one, or if your own server runs. With the provider docker they use the images of its
engine. Otherwise they use the image cache of this machine.`,
		Example: `  sandpit image pull python:3.12-slim
  sandpit image ls
  sandpit image prune --older-than 30d`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImagePull(a), newImageImport(a), newImageUpdate(a),
		newImageList(a), newImageRemove(a), newImagePrune(a))
	return cmd
}

func (a *app) openImages() (*image.Store, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return nil, err
	}
	return daemon.OpenImages(cfg)
}
