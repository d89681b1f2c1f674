package cli

import (
	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

// serveCommand has the options of sandpit serve.
type serveCommand struct {
	listen, socket, tls, ssh, level, format string
}

func newServe(a *app) *cobra.Command {
	var o serveCommand
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Run the sandbox server",
		Long: `Run the sandbox server until SIGINT or SIGTERM. It then finishes open requests and exits; its
sandboxes keep running, and the next server with the same state directory manages them
again.

It listens at 127.0.0.1:8090 and at a socket that only this user can open. To reach it from
elsewhere, set another address; requests need an API key then: see sandpit key create. All
settings are in docs/configuration.md.`,
		Example: `  sandpit serve
  sandpit serve --listen 127.0.0.1:9000
  sandpit serve --listen none
  sandpit serve --tls=local --ssh 127.0.0.1:2222`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withoutClient(o.run),
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "", "`ADDRESS` to listen at, with port 0 for any free port, or none (default 127.0.0.1:8090)")
	f.StringVar(&o.socket, "socket", "", "`PATH` of the server's socket for this user, or none (default sandpit.sock in the runtime directory)")
	addChoice(cmd, &o.tls, "tls", "`KIND` of certificates: off, files (server.tls_cert), local or auto (default off); see docs/tls.md",
		config.TLSOff, config.TLSFiles, config.TLSLocal, config.TLSAuto)
	f.StringVar(&o.ssh, "ssh", "", "`ADDRESS` to listen at for SSH, such as 127.0.0.1:2222, or none (default none); see docs/ssh.md")
	addChoice(cmd, &o.level, "log-level", "`LEVEL` of the log (default info)", "debug", "info", "warn", "error")
	addChoice(cmd, &o.format, "log-format", "`FORMAT` of the log: console is for terminals, json for programs (default auto)", config.FormatAuto, config.FormatConsole, config.FormatJSON)
	return cmd
}

func (o *serveCommand) run(cmd *cobra.Command, a *app, _ []string) error {
	var overrides []config.Override
	for _, o := range []config.Override{
		{Flag: "--listen", Key: config.KeyListen, Value: o.listen},
		{Flag: "--socket", Key: config.KeySocket, Value: o.socket},
		{Flag: "--tls", Key: config.KeyTLS, Value: o.tls},
		{Flag: "--ssh", Key: config.KeySSHListen, Value: o.ssh},
		{Flag: "--log-level", Key: config.KeyLogLevel, Value: o.level},
		{Flag: "--log-format", Key: config.KeyLogFormat, Value: o.format},
	} {
		if o.Value != "" {
			overrides = append(overrides, o)
		}
	}
	cfg, err := a.loadConfig(overrides...)
	if err != nil {
		return err
	}
	_, terminal := terminalOf(a.Err)
	return daemon.Serve(cmd.Context(), cfg, daemon.Options{Out: a.Out, Log: a.Err, Terminal: terminal, ControlGroup: true})
}
