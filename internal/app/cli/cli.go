// Package cli is the command line. A command is a type with its options and a method run, in a
// file of its own; app has what commands share: streams, configuration, the client and output.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

// Streams are what a command talks to.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// app is what commands share: streams, configuration and the way to a server.
type app struct {
	Streams
	configFile string
	// server is the value of --server.
	server  string
	options config.Options
}

// Main runs the command line in args, without the program's name, and returns the exit status. It
// cleans up and returns early when ctx ends.
func Main(ctx context.Context, args []string) int {
	return Run(ctx, args, Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, config.FromProcess())
}

// Run is Main with other streams and another environment.
func Run(ctx context.Context, args []string, streams Streams, options config.Options) int {
	a := &app{Streams: streams, options: options}
	root := newCommand(a)
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	err := root.ExecuteContext(ctx)
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status)
	}
	if err == nil {
		return 0
	}
	printError(streams.Err, err)
	return exitCodeOf(err)
}

func newCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "sandpit",
		Short: "Safe computers for AI agents",
		Long: `sandpit runs code you do not trust in a sandbox with a kernel of its own (gVisor).
It needs no container engine, no KVM, no image and no root.

run creates a sandbox for one command and needs no server. A server keeps sandboxes between
commands: start one with "sandpit serve". Most other commands use a server. They find it by
--server, SANDPIT_URL or "url" in the configuration; otherwise they use your own server, by
its socket or by the address of "server.listen" (http://127.0.0.1:8090). The API key is
SANDPIT_API_KEY or "api_key" in the configuration. It is never an argument, because other
users of the machine can read arguments.
Name a sandbox by its ID, the beginning of its ID, or its name.

` + exitHelp,
		Example: `  sandpit run -- python3 -c 'print(42)'
  sandpit run script.py
  sandpit serve
  sandpit create --name work && sandpit shell work
  sandpit doctor`,
		Version:                    daemon.ReadVersions().Sandpit,
		SuggestionsMinimumDistance: 2,
		SilenceErrors:              true,
		SilenceUsage:               true,
		Args:                       noSuchCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&a.configFile, "config", "", "configuration `file` (default: "+
		"$XDG_CONFIG_HOME/sandpit/config.toml, for root /etc/sandpit/config.toml)")
	root.PersistentFlags().StringVar(&a.server, "server", "", "`URL` of the server, such as https://host:8090 or unix:///path (default $SANDPIT_URL)")
	root.SetVersionTemplate("sandpit {{.Version}}\n")
	root.SetFlagErrorFunc(explainFlag)
	a.addCommands(root)
	return root
}

// addCommands adds all commands, in groups for the help.
func (a *app) addCommands(root *cobra.Command) {
	groups := []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"local", "Commands for this machine:", []*cobra.Command{
			newRun(a), newAgent(a), newMCP(a), newImage(a), newTemplate(a), newDoctor(a), newServe(a), newTLS(a), newUpgradeState(a),
		}},
		{"sandbox", "Commands for sandboxes of a server:", []*cobra.Command{
			newCreate(a), newList(a), newInspect(a), newExec(a), newShell(a), newTool(a), newSSH(a), newCopy(a), newProcesses(a), newLogs(a),
			newStats(a), newTop(a), newNetwork(a), newTimeout(a), newPolicy(a), newLabel(a), newURL(a), newPause(a), newSnapshot(a), newFork(a),
			newRollback(a), newDiff(a), newExport(a), newImport(a), newRename(a), newResize(a), newKill(a), newWait(a), newRemove(a),
		}},
		{"server", "Commands for the server:", []*cobra.Command{
			newCheck(a), newEnv(a), newVolume(a), newEvents(a), newAudit(a), newQueue(a), newKey(a), newToken(a), newSSHKey(a), newProviders(a), newPools(a),
		}},
	}
	for _, ch := range stateChanges() {
		groups[1].commands = append(groups[1].commands, newChange(a, ch))
	}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.id
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newModelServer(a), newVersion(a), newDocs())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Run, help.RunE = nil, showHelp
	}
}

// showHelp prints the help of a command. Unlike cobra's own help command, it fails for an unknown
// command.
func showHelp(help *cobra.Command, args []string) error {
	cmd, rest, err := help.Root().Find(args)
	if err != nil || cmd == nil {
		return noSuchCommand(help.Root(), args)
	}
	if err := noSuchCommand(cmd, rest); err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	return cmd.Help()
}

// loadConfig reads the configuration; the given overrides take precedence.
func (a *app) loadConfig(overrides ...config.Override) (config.Config, error) {
	o := a.options
	o.File = a.configFile
	o.Overrides = overrides
	return config.Load(o)
}

// printError prints an error and its hint. Their texts may come from a server or a sandbox.
func printError(w io.Writer, err error) {
	// A server or a sandbox may have had a say in it.
	fmt.Fprintf(w, "sandpit: %s\n", escapeLines(err.Error()))
	if hint := sandpit.HintOf(err); hint != "" {
		fmt.Fprintf(w, "hint: %s\n", escapeLines(hint))
	}
}
