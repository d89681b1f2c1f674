package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

type execCommand struct {
	attachment
	detach        bool
	env           []string
	workDir, user string
	timeout       time.Duration
}

func (o *execCommand) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVarP(&o.env, "env", "e", nil, "environment `NAME=VALUE`, or NAME to pass this shell's value")
	f.StringVarP(&o.workDir, "workdir", "w", "", "`directory` where it starts (default the sandbox's)")
	f.StringVarP(&o.user, "user", "u", "", "`user` inside: a name, a uid or uid:gid (default the sandbox's)")
}

// commandTimeout returns the time limit of the command. Detached commands and commands with a
// terminal have none by default.
func (o *execCommand) commandTimeout() time.Duration {
	if o.timeout == client.DefaultTimeout && (o.detach || o.terminal) {
		return 0
	}
	return o.timeout
}

func newExec(a *app) *cobra.Command {
	o := execCommand{attachment: attachment{signals: true}}
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] COMMAND [ARG...]",
		Short: "Run a command in a sandbox of a server",
		Long: `Run a command in a sandbox of a server.

The exit status is the command's; 124 means that it timed out, 125 that sandpit failed,
127 that there is no such program. Signals are passed on to the command; after the third
one this program ends and the command keeps running. The command also keeps running when
the connection breaks or this program is killed. After a broken connection this program
reconnects and continues without losing output, unless there was input that may not have
arrived.
With --detach the command is started and its ID printed: see sandpit logs.`,
		Example: `  sandpit exec work -- python3 -V
  sandpit exec -it work bash
  tar c . | sandpit exec -i work tar x -C /workspace
  sandpit exec --detach work -- sh -c 'make > log 2>&1'`,
		Args:              wantArgs(2, -1, "the name of a sandbox or a command"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withoutClient(o.run),
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	o.attachment.addFlags(f)
	o.addFlags(cmd)
	f.BoolVarP(&o.detach, "detach", "d", false, "start the command, print its ID and exit")
	f.DurationVar(&o.timeout, "timeout", 0, "kill it after this `time`; 0 means never (default the server's sandbox.timeout; none with -d or -t)")
	return cmd
}

func (o *execCommand) run(cmd *cobra.Command, a *app, args []string) error {
	if !cmd.Flags().Changed("timeout") {
		o.timeout = client.DefaultTimeout
	} else if o.timeout < 0 {
		return sandpit.Errorf(sandpit.Invalid, "--timeout %s: want a positive time, or 0 for none", o.timeout)
	}
	if o.detach && (o.interactive || o.terminal) {
		return usageError(cmd, "--detach cannot be combined with -i or -t")
	}
	if args[1] == "--" && len(args) > 2 {
		args = append(args[:1:1], args[2:]...)
	}
	return o.runCommand(cmd.Context(), a, args[0], args[1:])
}

// runCommand runs a command in a sandbox. A failure of sandpit itself has its own exit status,
// because other statuses may be the command's.
func (o *execCommand) runCommand(ctx context.Context, a *app, name string, args []string) error {
	c, err := a.newClient()
	if err != nil {
		return err
	}
	defer c.Close()
	id, err := findSandbox(ctx, c, name)
	if err != nil {
		return a.signalOr(ctx, err)
	}
	command := sandpit.Command{
		Args: args, Dir: o.workDir, User: o.user, Timeout: o.commandTimeout(), Stdout: a.Out, Stderr: a.Err,
	}
	if command.Env, err = a.parseEnv(o.env); err != nil {
		return err
	}
	box := c.Sandboxes.Open(id)
	if o.detach {
		err := startUnattended(ctx, a, box.Guest(), command)
		return a.signalOr(ctx, executedCommand{c, id, name, command}.explainError(ctx, a, err))
	}
	status, err := o.execute(ctx, a, box, command)
	if err != nil {
		return a.signalOr(ctx, executedCommand{c, id, name, command}.explainError(ctx, a, err))
	}
	if status.OutOfMemory {
		fmt.Fprintln(a.Err, "sandpit: out of memory: the command was killed")
	}
	if status.Code != 0 {
		return exitStatus(status.Code)
	}
	return nil
}

// startUnattended starts a command and prints its ID without waiting for it.
func startUnattended(ctx context.Context, a *app, guest sandpit.Guest, command sandpit.Command) error {
	command.Stdout, command.Stderr = nil, nil
	command.ID = newCommandID()
	if _, err := guest.Start(ctx, command); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.Out, command.ID)
	return err
}

// newCommandID returns a random ID for a command that is found again by it.
func newCommandID() string { return strings.ToLower(rand.Text()) }

// executedCommand is a command and the sandbox that should run it.
type executedCommand struct {
	client  *client.Client
	id      sandpit.ID
	name    string
	command sandpit.Command
}

// explainError tells a sandbox that cannot be used from a program that cannot be executed.
func (x executedCommand) explainError(ctx context.Context, a *app, err error) error {
	switch sandpit.CodeOf(err) {
	case sandpit.Timeout:
		if x.command.Timeout == 0 {
			return err
		}
		if x.command.Timeout == client.DefaultTimeout {
			fmt.Fprintln(a.Err, "sandpit: timeout: the command was killed after the server's time limit (sandbox.timeout)")
			fmt.Fprintln(a.Err, "hint: run it without a limit: sandpit exec --timeout 0 "+shellQuote(x.name)+" COMMAND")
			return exitStatus(statusTimeout)
		}
		fmt.Fprintf(a.Err, "sandpit: timeout: the command was killed after %s (--timeout)\n", x.command.Timeout)
		return exitStatus(statusTimeout)
	case sandpit.PermissionDenied, sandpit.NotFound:
		s, e := x.client.Sandboxes.Get(context.WithoutCancel(ctx), x.id)
		if e != nil {
			return e
		}
		if s.State != sandpit.StateRunning {
			return err
		}
		printError(a.Err, explainProgram(err, "sandpit exec "+shellQuote(x.name), x.command.Args))
		if sandpit.CodeOf(err) == sandpit.NotFound {
			return exitStatus(statusNotFound)
		}
		return exitStatus(statusNotExecutable)
	case sandpit.Unavailable:
		if sandpit.HintOf(err) == "" {
			return sandpit.WithHint(err, "see what runs: sandpit ps "+string(x.id))
		}
		return err
	case sandpit.Conflict:
		return explainState(ctx, x.client, x.id, x.name, err)
	default:
		return err
	}
}
