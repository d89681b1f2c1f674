package cli

import (
	"github.com/spf13/cobra"
)

func newShell(a *app) *cobra.Command {
	o := execCommand{attachment: attachment{interactive: true, terminal: true, shell: true, signals: true}}
	cmd := &cobra.Command{
		Use:   "shell [flags] SANDBOX",
		Short: "Open an interactive shell in a sandbox of a server",
		Long: `Open an interactive shell in a sandbox of a server: bash if it has one, otherwise sh. The
exit status is the shell's. When the connection breaks, this program ends, because it is not
known which keys have arrived; the shell keeps running, as sandpit ps shows.`,
		Example:           "  sandpit shell work",
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withoutClient(o.runShell),
	}
	o.addFlags(cmd)
	return cmd
}

func (o *execCommand) runShell(cmd *cobra.Command, a *app, args []string) error {
	return o.runCommand(cmd.Context(), a, args[0], []string{
		"sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi",
	})
}
