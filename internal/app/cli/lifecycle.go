package cli

import (
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

func (a *app) newRename() *cobra.Command {
	return &cobra.Command{
		Use:   "rename SANDBOX NAME",
		Short: "Give a sandbox another name",
		Long: `Give a sandbox another name, in whatever state it is. A name has at most 63
letters, digits, and after the first one also "-", "_" and dots, does not look like
an ID, and belongs to one sandbox of an owner. An empty NAME takes the name off.`,
		Example:           "  sandpit rename work old-work",
		Args:              wantArgs(2, 2, "the name of a sandbox or its new name"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			if args[1] != "" {
				if err := sandpit.CheckName(args[1]); err != nil {
					return err
				}
			}
			return a.each(ctx, c, args[:1], func(ctx context.Context, id sandpit.ID) error { return c.Sandboxes.Rename(ctx, id, args[1]) })
		}),
	}
}

// restart stops a sandbox unless that has happened, and starts it.
func restart(c *client.Client) func(context.Context, sandpit.ID) error {
	return func(ctx context.Context, id sandpit.ID) error {
		s, err := c.Sandboxes.Get(ctx, id)
		if err != nil {
			return err
		}
		if s.State != sandpit.StateStopped {
			if err := c.Sandboxes.Stop(ctx, id); err != nil {
				return err
			}
		}
		return c.Sandboxes.Start(ctx, id)
	}
}

// signals are those that kill can send.
func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "KILL": syscall.SIGKILL, "USR1": syscall.SIGUSR1,
		"USR2": syscall.SIGUSR2, "TERM": syscall.SIGTERM, "CONT": syscall.SIGCONT, "STOP": syscall.SIGSTOP,
	}
}

// parseSignal reads a signal by its name, with or without SIG, or by its number.
func parseSignal(text string) (syscall.Signal, error) {
	known := signals()
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

func (a *app) newKill() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "kill [flags] SANDBOX [COMMAND...]",
		Short: "End all processes of a sandbox, or send a signal to commands in it",
		Long: `End all processes of a sandbox at once, and keep its files, as sandpit stop does. With
COMMANDs it sends them a signal instead: each is the ID or PID that sandpit ps
prints, or the beginning of the ID.`,
		Example: `  sandpit kill work
  sandpit kill -s INT work $id`,
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeCommands,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			sig, err := parseSignal(name)
			if err != nil {
				return err
			}
			if len(args) > 1 {
				return a.signalCommands(ctx, c, args[0], args[1:], sig)
			}
			if sig != syscall.SIGKILL {
				return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--signal %s: name the commands that it is for", name),
					"see: sandpit ps "+shellQuote(args[0]))
			}
			return a.each(ctx, c, args, c.Sandboxes.Stop)
		}),
	}
	cmd.Flags().StringVarP(&name, "signal", "s", "KILL", "`SIGNAL` for the commands, by its name or number")
	return cmd
}

func (a *app) signalCommands(ctx context.Context, c *client.Client, sandbox string, names []string, sig syscall.Signal) error {
	id, err := find(ctx, c, sandbox)
	if err != nil {
		return err
	}
	box := c.Sandboxes.Open(id)
	list, err := commands(ctx, box.Guest(), false)
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
		if err := (signaled{guest: box, process: process}).pass(ctx, sig); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(a.Out, orElse(command.ID, strconv.Itoa(command.PID))); err != nil {
			return err
		}
	}
	return nil
}

// runningCommand finds one of the commands that run, by its ID, the beginning of it, or its
// PID.
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
		return commandInfo{}, sandpit.Errorf(sandpit.NotFound, "no command %.80q runs", name)
	case 1:
		return found[0], nil
	}
	return commandInfo{}, sandpit.Errorf(sandpit.Conflict, "%.80q may be any of %d commands", name, len(found))
}

func (a *app) newWait() *cobra.Command {
	return &cobra.Command{
		Use:   "wait SANDBOX [COMMAND]",
		Short: "Wait until a command in a sandbox ends, and print its exit code",
		Long: `Wait until a command in a sandbox ends, and print its exit code. COMMAND is the ID
that sandpit exec --detach or sandpit ps prints, or the beginning of it; the default
is the command that was started last.`,
		Example: `  id=$(sandpit run --detach python:3.12-slim python3 work.py)
  sandpit wait $id`,
		Args:              wantArgs(1, 2, "the name of a sandbox"),
		ValidArgsFunction: a.completeCommands,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := find(ctx, c, args[0])
			if err != nil {
				return err
			}
			journal := journalOf(c.Sandboxes.Open(id).Guest())
			name := ""
			if len(args) > 1 {
				name = args[1]
			}
			command, err := findCommand(ctx, journal, name)
			if err != nil {
				return err
			}
			info, err := journal.GetCommand(ctx, command)
			if err != nil {
				return err
			}
			if !info.Ended {
				from := sandpit.Offsets{Stdout: info.Stdout.Size, Stderr: info.Stderr.Size} // its output is not needed
				if info, err = followPatiently(ctx, journal, command, sandpit.FollowOptions{From: from}); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintln(a.Out, info.Status.Code)
			return err
		}),
	}
}

// completeCommands offers a sandbox, then commands in it.
func (a *app) completeCommands(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return a.commandNames(cmd.Context(), args[0], begun), cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeSandboxes(1)(cmd, args, begun)
}
