package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// imagePullCommand has the options of sandpit image pull.
type imagePullCommand struct {
	always, asJSON bool
	provider       string
}

func newImagePull(a *app) *cobra.Command {
	var o imagePullCommand
	cmd := &cobra.Command{
		Use:   "pull [flags] REF...",
		Short: "Fetch images from a registry",
		Long: `Fetch images from a registry, unless they are cached: into the image cache of this
machine, or into that of the server which --server, SANDPIT_URL or the configuration
names, or, for provider docker, into its engine.

REF is written as for docker pull: docker.io and the tag latest may be omitted. Logins are
those of "docker login". An interrupted fetch continues where it stopped.`,
		Example: `  sandpit image pull python:3.12-slim
  sandpit image pull ghcr.io/owner/name@sha256:0123...
  sandpit image pull --always alpine
  sandpit image pull --server https://host:8090 python:3.12-slim`,
		Args:              wantArgs(1, -1, "the name of an image"),
		ValidArgsFunction: a.completeImages,
		RunE:              a.withoutClient(o.run),
	}
	addImageProvider(cmd, &o.provider)
	cmd.Flags().BoolVar(&o.always, "always", false, "check whether the tag refers to another image now")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *imagePullCommand) run(cmd *cobra.Command, a *app, args []string) error {
	return a.withImages(cmd, o.provider, func(s remoteImages) error {
		list, err := pullAll(cmd.Context(), a.Err, args, o.always, s.Pull)
		if err != nil {
			return err
		}
		return showRemoteImages(a, list, o.asJSON)
	}, func(store *image.Store) error {
		list, err := pullAll(cmd.Context(), a.Err, args, o.always, store.Pull)
		if err != nil {
			return err
		}
		return a.showImages(list, o.asJSON)
	})
}

// pullAll fetches images one after the other, and returns those fetched before an error.
func pullAll[E any, P ~func(done, total int64)](
	ctx context.Context, out io.Writer, names []string, always bool, pull func(context.Context, string, bool, P) (E, error),
) ([]E, error) {
	var list []E
	for _, name := range names {
		progress, clear := newProgress(out, "Fetching "+name)
		e, err := pull(ctx, name, always, progress)
		clear()
		if err != nil {
			return list, err
		}
		list = append(list, e)
	}
	return list, nil
}
