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
		Short: "Be a server that keeps sandboxes",
		Long: `Be a server that keeps sandboxes, until it is sent SIGINT or SIGTERM. Then it lets
requests finish and ends; its sandboxes go on, and the next server in the same state
directory takes them up again.

It listens on 127.0.0.1:8090 and on a socket that only this user can open. From
elsewhere it can be reached when it is told to listen there, and only with a key: see
sandpit key create. All settings are in docs/configuration.md.`,
		Example: `  sandpit serve
  sandpit serve --listen 127.0.0.1:9000
  sandpit serve --listen none
  sandpit serve --tls=local --ssh 127.0.0.1:2222`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withoutClient(o.run),
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "", "`ADDRESS` to listen at, port 0 being any free one, or none (default 127.0.0.1:8090)")
	f.StringVar(&o.socket, "socket", "", "`PATH` of the socket of this user's own, or none (default sandpit.sock in the runtime directory)")
	addChoice(cmd, &o.tls, "tls", "`KIND` of certificates: off, files (server.tls_cert), local or auto (default off); see docs/tls.md",
		config.TLSOff, config.TLSFiles, config.TLSLocal, config.TLSAuto)
	f.StringVar(&o.ssh, "ssh", "", "`ADDRESS` where sandboxes are reached by SSH, such as 127.0.0.1:2222, or none (default none); see docs/ssh.md")
	addChoice(cmd, &o.level, "log-level", "`LEVEL`: the least that is logged (default info)", "debug", "info", "warn", "error")
	addChoice(cmd, &o.format, "log-format", "`FORMAT`: console for people, json for machines, or auto (default auto)", config.FormatAuto, config.FormatConsole, config.FormatJSON)
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
