package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// knownSignals returns the signals that kill can send.
func knownSignals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "KILL": syscall.SIGKILL, "USR1": syscall.SIGUSR1,
		"USR2": syscall.SIGUSR2, "TERM": syscall.SIGTERM, "CONT": syscall.SIGCONT, "STOP": syscall.SIGSTOP,
	}
}

// parseSignal parses a signal by name, with or without SIG, or by number.
func parseSignal(text string) (syscall.Signal, error) {
	known := knownSignals()
	if sig, ok := known[strings.TrimPrefix(strings.ToUpper(text), "SIG")]; ok {
		return sig, nil
	}
	n, err := strconv.Atoi(text)
	for _, sig := range known {
		if err == nil && int(sig) == n {
			return sig, nil
		}
	}
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return 0, sandpit.Errorf(sandpit.Invalid, "unknown signal %.40q: want one of %s", text, strings.Join(names, ", "))
}

// killCommand has the options of sandpit kill.
type killCommand struct {
	signal string
}

func newKill(a *app) *cobra.Command {
	var o killCommand
	cmd := &cobra.Command{
		Use:   "kill [flags] SANDBOX [COMMAND...]",
		Short: "End all processes of a sandbox, or send a signal to commands in it",
		Long: `End all processes of a sandbox at once, and keep its files, as sandpit stop does. With
COMMANDs, send a signal to them instead: each is the ID or PID that sandpit ps prints, or
the beginning of the ID.`,
		Example: `  sandpit kill work
  sandpit kill -s INT work $id`,
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeCommands,
		RunE:              a.withClient(o.run),
	}
	cmd.Flags().StringVarP(&o.signal, "signal", "s", "KILL", "`SIGNAL` for the commands, by name or number")
	return cmd
}

func (o *killCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	sig, err := parseSignal(o.signal)
	if err != nil {
		return err
	}
	if len(args) > 1 {
		return sendSignals(ctx, a, c, args, sig)
	}
	if sig != syscall.SIGKILL {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--signal %s: name the commands that it is for", o.signal),
			"see: sandpit ps "+shellQuote(args[0]))
	}
	return a.forEachSandbox(ctx, c, args, c.Sandboxes.Stop)
}

// sendSignals sends a signal to commands of a sandbox, args being its name and theirs.
func sendSignals(ctx context.Context, a *app, c *client.Client, args []string, sig syscall.Signal) error {
	sandbox, names := args[0], args[1:]
	id, err := findSandbox(ctx, c, sandbox)
	if err != nil {
		return err
	}
	box := c.Sandboxes.Open(id)
	list, err := listCommands(ctx, box.Guest(), false)
	if err != nil {
		return err
	}
	for _, name := range names {
		command, err := runningCommand(list, name)
		if err != nil {
			return sandpit.WithHint(err, "see: sandpit ps "+shellQuote(sandbox))
		}
		process, err := box.Guest().Connect(ctx, command.PID, sandpit.Streams{})
		if err != nil {
			return err
		}
		if err := (signalTarget{guest: box, process: process}).sendSignal(ctx, sig); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(a.Out, cmp.Or(command.ID, strconv.Itoa(command.PID))); err != nil {
			return err
		}
	}
	return nil
}

// runningCommand finds a running command by its ID, the beginning of it, or its PID.
func runningCommand(list []commandInfo, name string) (commandInfo, error) {
	var found []commandInfo
	for _, c := range list {
		if c.ID == name && name != "" || strconv.Itoa(c.PID) == name {
			return c, nil
		}
		if name != "" && strings.HasPrefix(c.ID, name) {
			found = append(found, c)
		}
	}
	switch len(found) {
	case 0:
		return commandInfo{}, sandpit.Errorf(sandpit.NotFound, "no running command %.80q", name)
	case 1:
		return found[0], nil
	}
	return commandInfo{}, sandpit.Errorf(sandpit.Conflict, "%.80q matches %d commands", name, len(found))
}
