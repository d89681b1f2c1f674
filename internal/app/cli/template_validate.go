package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

func newTemplateValidate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "validate [DIRECTORY|FILE]",
		Short: "Check a template file",
		Example: `  sandpit template validate
  sandpit template validate ./Dockerfile`,
		Args: wantArgs(0, 1, ""),
		RunE: a.withoutClient(runTemplateValidate),
	}
}

func runTemplateValidate(_ *cobra.Command, a *app, args []string) error {
	t, _, err := daemon.ReadTemplate(directoryArgument(args), nil)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "%d steps from %s\n", len(t.Steps), t.From)
	return err
}
