package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func newTemplateRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove"},
		Short:   "Remove templates",
		Long: `Remove templates. Sandboxes created from them keep running. The steps of their builds stay
in the image cache while there is space.`,
		Example:           `  sandpit template rm tools`,
		Args:              wantArgs(1, -1, "the name of a template"),
		ValidArgsFunction: a.completeTemplates,
		RunE:              a.withoutClient(runTemplateRemove),
	}
}

func runTemplateRemove(cmd *cobra.Command, a *app, args []string) error {
	return a.withTemplates(cmd, func(ctx context.Context, c *client.Client) error {
		for _, name := range args {
			if err := c.Templates.Delete(ctx, strings.TrimPrefix(name, sandpit.TemplatePrefix)); err != nil {
				return err
			}
			fmt.Fprintln(a.Out, templateRef(name))
		}
		return nil
	}, func() error { return removeLocalTemplates(cmd.Context(), a, args) })
}

// removeLocal removes templates from this machine's cache.
func removeLocalTemplates(ctx context.Context, a *app, names []string) error {
	store, err := a.openImages()
	if err != nil {
		return err
	}
	for _, name := range names {
		ref := templateRef(name)
		if _, err := store.Remove(ctx, string(ref)); err != nil {
			return err
		}
		fmt.Fprintln(a.Out, ref)
	}
	return nil
}
