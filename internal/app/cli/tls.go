package cli

import (
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

func newTLS(a *app) *cobra.Command {
	cmd := newGroup("tls", "Manage the certificates of this machine's server", `Manage the certificates of this machine's server.`,
		"  sandpit tls ca > ca.pem")
	cmd.AddCommand(newTLSCA(a))
	return cmd
}

func newTLSCA(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "ca",
		Short: "Print the certificate of the server's own authority",
		Long: `Print the certificate of the authority of a server that was started with --tls=local, in
PEM form, for its clients: sandpit reads it from the file SANDPIT_CA, other programs from an
option of their own. Run it on the server's machine, as the same user.

Do not add it to the trusted certificates of a whole machine: any program that can read the
server's state directory could then pretend to be any server.`,
		Example: `  sandpit tls ca > ca.pem
  SANDPIT_CA=$PWD/ca.pem sandpit --server https://localhost:8090 ls
  curl --cacert ca.pem https://localhost:8090/healthz`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withoutClient(runTLSCA),
	}
}

func runTLSCA(_ *cobra.Command, a *app, _ []string) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(daemon.AuthorityFile(cfg))
	if errors.Is(err, fs.ErrNotExist) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "the server of this machine has no certificate authority"),
			"create one by starting the server with: sandpit serve --tls=local")
	}
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "read the certificate: %w", err)
	}
	_, err = a.Out.Write(text)
	return err
}
