package cli

import (
	"github.com/spf13/cobra"
)

func newTemplate(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "template",
		Aliases: []string{"templates"},
		Short:   "Build images in sandboxes, and list and remove them",
		Long: `Build images in sandboxes, and list and remove them.

A template is an image that is built on this machine, without Docker: from a
sandpit.toml or a Dockerfile, each step in a sandbox. A step that was done before,
from the same base and with the same files, is not done again. Sandboxes are made of it
by the name template:NAME. With --server, or SANDPIT_URL, the server builds and keeps
templates, and those can have programs running from the beginning. Without either, your
own server does so if it runs.`,
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
