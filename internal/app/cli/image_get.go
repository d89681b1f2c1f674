package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

func (a *app) newImagePull() *cobra.Command {
	var always, asJSON bool
	var provider string
	cmd := &cobra.Command{
		Use:   "pull [flags] REF...",
		Short: "Fetch images from a registry",
		Long: `Fetch images from a registry, unless they are there: into the cache of this
machine, or into that of the server which --server, SANDPIT_URL or the
configuration names, or, for provider docker, into its engine.

REF is written as for docker pull: docker.io and the tag latest go without
saying. Logins are those of "docker login". A fetch that was broken off goes on
where it was.`,
		Example: `  sandpit image pull python:3.12-slim
  sandpit image pull ghcr.io/owner/name@sha256:0123...
  sandpit image pull --always alpine
  sandpit image pull --server https://host:8090 python:3.12-slim`,
		Args:              wantArgs(1, -1, "the name of an image"),
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withShelf(cmd, provider, func(s shelf) error {
				list, err := pullAll(cmd.Context(), a.Err, args, always, s.Pull)
				if err != nil {
					return err
				}
				return a.showShelf(list, asJSON)
			}, func(store *daemon.Images) error {
				list, err := pullAll(cmd.Context(), a.Err, args, always, store.Pull)
				if err != nil {
					return err
				}
				return a.showImages(list, asJSON)
			})
		},
	}
	addImageProvider(cmd, &provider)
	cmd.Flags().BoolVar(&always, "always", false, "ask the registry whether the tag means another image by now")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// pullAll fetches one after the other, and returns those that came before an error.
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

func (a *app) newImageImport() *cobra.Command {
	var name string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "import [flags] FILE|DIRECTORY|-",
		Short: "Take an image from a file, a directory or standard input",
		Long: `Take an image from a file, a directory or standard input.

It may be what "docker save" writes, an OCI layout (a directory or a tar of one),
or a root file system (a directory, or a tar such as "docker export" writes).
Archives may be packed with gzip or zstd. If there are several images in it, add
a colon and the tag.`,
		Example: `  docker save python:3.12-slim | sandpit image import -
  sandpit image import ./layout:v1 --name tool:v1
  sandpit image import rootfs.tar.gz --name my-system`,
		Args: wantArgs(1, 1, "a file or directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onlyCache(cmd, func(store *daemon.Images) (err error) {
				progress, clear := newProgress(a.Err, "Importing")
				var list []daemon.ImageEntry
				if args[0] == "-" {
					list, err = store.ImportFrom(cmd.Context(), a.In, name, progress)
				} else {
					list, err = store.Import(cmd.Context(), args[0], name, progress)
				}
				clear()
				if err != nil {
					return err
				}
				return a.showImages(list, asJSON)
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`NAME` of the image (default: what the archive says)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) newImageUpdate() *cobra.Command {
	var pull, asJSON bool
	cmd := &cobra.Command{
		Use:   "update [flags] [REF...]",
		Short: "Find out whether registries have newer images",
		Long: `Find out whether registries have newer images under the names in the cache.

Without names, all that were fetched from a registry are looked at. Nothing is
changed unless --pull is given.`,
		Example: `  sandpit image update
  sandpit image update --pull python:3.12-slim`,
		ValidArgsFunction: a.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onlyCache(cmd, func(store *daemon.Images) (err error) {
				if len(args) == 0 {
					if args, err = store.Fetched(); err != nil {
						return err
					}
				}
				return a.update(cmd, store, args, pull, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&pull, "pull", false, "fetch those that are newer")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// update looks at each name, also when another one fails.
func (a *app) update(cmd *cobra.Command, store *daemon.Images, names []string, pull, asJSON bool) error {
	list := []daemon.ImageUpdate{}
	rows := [][]string{{"NAME", "HAVE", "REGISTRY", ""}}
	var errs []error
	for _, name := range names {
		u, err := store.Check(cmd.Context(), name)
		if err == nil && u.Newer && pull {
			progress, clear := newProgress(a.Err, "Fetching "+name)
			_, err = store.Pull(cmd.Context(), name, true, progress)
			clear()
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		state := "up to date"
		switch {
		case u.Newer && pull:
			state = "fetched"
		case u.Newer:
			state = "newer"
		}
		list = append(list, u)
		rows = append(rows, []string{u.Name, shortDigest(u.Have), shortDigest(u.Latest), state})
	}
	var err error
	switch {
	case asJSON:
		err = printJSON(a.Out, list)
	case len(list) > 0:
		err = printTable(a.Out, rows)
	case len(errs) == 0:
		_, err = fmt.Fprintln(a.Out, "No image in the cache comes from a registry.")
	}
	return errors.Join(append(errs, err)...)
}
