package cli

import (
	"github.com/spf13/cobra"
)

func newTemplate(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "template",
		Aliases: []string{"templates"},
		Short:   "Build, list and remove templates",
		Long: `Build, list and remove templates.

A template is an image that is built on this machine, without Docker: from a sandpit.toml
or a Dockerfile, each step in a sandbox. A step is not repeated if its base and files have
not changed. Create sandboxes from it with the image template:NAME. With --server, or
SANDPIT_URL, the server builds and stores templates, and their sandboxes can begin with
running programs. Otherwise your own server does so if it runs.`,
		Example: `  sandpit template build -t tools .
  sandpit run template:tools -- make
  sandpit template ls`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTemplateBuild(a), newTemplateValidate(a), newTemplateList(a), newTemplateShow(a), newTemplateRemove(a),
		newTemplateTag(a), newTemplatePublish(a))
	return cmd
}
