package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// imageRemoveCommand has the options of sandpit image rm.
type imageRemoveCommand struct {
	provider string
}

func newImageRemove(a *app) *cobra.Command {
	var o imageRemoveCommand
	cmd := &cobra.Command{
		Use:     "rm NAME|DIGEST...",
		Aliases: []string{"remove"},
		Short:   "Remove images from the cache",
		Long: `Remove images from the image cache of this machine, or from that of the server which
--server, SANDPIT_URL or the configuration names, by name or by the beginning of the
digest. Remove those of a docker engine with docker image rm.

An image is deleted with its last name. Sandboxes that run from it keep running.`,
		Example: `  sandpit image rm python:3.12-slim
  sandpit image rm 3f5a2c81d0b7`,
		Args:              wantArgs(1, -1, "the name of an image"),
		ValidArgsFunction: a.completeImages,
		RunE:              a.withoutClient(o.run),
	}
	addImageProvider(cmd, &o.provider)
	return cmd
}

func (o *imageRemoveCommand) run(cmd *cobra.Command, a *app, args []string) error {
	return a.withImages(cmd, o.provider, func(s remoteImages) error {
		for _, name := range args {
			if err := s.Remove(cmd.Context(), name); err != nil {
				return err
			}
			fmt.Fprintln(a.Out, name)
		}
		return nil
	}, func(store *image.Store) error {
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
}
