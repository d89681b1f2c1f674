package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func newTemplateShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show how a template was built, as JSON",
		Example:           `  sandpit template show tools`,
		Args:              wantArgs(1, 1, "the name of a template"),
		ValidArgsFunction: a.completeTemplates,
		RunE:              a.withoutClient(runTemplateShow),
	}
}

func runTemplateShow(cmd *cobra.Command, a *app, args []string) error {
	return a.withTemplates(cmd, func(ctx context.Context, c *client.Client) error {
		return showRemoteTemplate(ctx, a, c, args[0])
	}, func() error {
		store, err := a.openImages()
		if err != nil {
			return err
		}
		data, err := store.Template(cmd.Context(), templateRef(args[0]))
		if err != nil {
			return err
		}
		return printJSON(a.Out, data)
	})
}

// templateRef returns the image's name for a template's name with or without the prefix.
func templateRef(name string) sandpit.Image {
	return sandpit.Image(sandpit.TemplatePrefix + strings.TrimPrefix(name, sandpit.TemplatePrefix))
}

// shownTemplate is a template with its newest builds.
type shownTemplate struct {
	sandpit.Template

	Builds []sandpit.TemplateBuild `json:"builds,omitempty"`
}

// showRemote shows a template of a server, and its builds if it is the caller's own.
func showRemoteTemplate(ctx context.Context, a *app, c *client.Client, name string) error {
	name = strings.TrimPrefix(name, sandpit.TemplatePrefix)
	t, err := c.Templates.Get(ctx, name)
	if err != nil {
		return err
	}
	builds, err := c.Builds.List(ctx, name)
	if err != nil && !errors.Is(err, sandpit.PermissionDenied) {
		return err
	}
	if err := addRecipes(ctx, c, builds); err != nil {
		return err
	}
	return printJSON(a.Out, shownTemplate{t, builds})
}

// addRecipes adds the recipes of builds that have a tag, which a list omits because they may be
// large.
func addRecipes(ctx context.Context, c *client.Client, builds []sandpit.TemplateBuild) error {
	for i := range builds {
		if len(builds[i].Tags) == 0 {
			continue
		}
		b, err := c.Builds.Get(ctx, builds[i].ID)
		if err != nil {
			return err
		}
		builds[i].Recipe = b.Recipe
	}
	return nil
}
