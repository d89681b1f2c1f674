package cli

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// imageListCommand has the options of sandpit image ls.
type imageListCommand struct {
	all, asJSON bool
	provider    string
}

func newImageList(a *app) *cobra.Command {
	var o imageListCommand
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
		RunE: a.withoutClient(o.run),
	}
	addImageProvider(cmd, &o.provider)
	cmd.Flags().BoolVarP(&o.all, "all", "a", false, "include sandpit's own images: the host image and its guest")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *imageListCommand) run(cmd *cobra.Command, a *app, _ []string) error {
	return a.withImages(cmd, o.provider, func(s remoteImages) error {
		list, err := s.List(cmd.Context())
		if err != nil {
			return err
		}
		return showRemoteImages(a, slices.DeleteFunc(list, func(i api.Image) bool {
			return !o.all && image.Entry{Kind: image.Kind(i.Kind)}.Own()
		}), o.asJSON)
	}, func(store *image.Store) error {
		list, err := store.List()
		if err != nil {
			return err
		}
		shown := []image.Entry{}
		for _, e := range list {
			if o.all || !e.Own() {
				shown = append(shown, e)
			}
		}
		return a.showImages(shown, o.asJSON)
	})
}

func (a *app) showImages(list []image.Entry, asJSON bool) error {
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
			name, shortDigest(cmp.Or(e.Digest, e.ID)), formatDecimalBytes(e.Size), formatAge(e.Created), formatAge(e.Used),
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
