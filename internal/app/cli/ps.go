package cli

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// commandInfo is one line of ps, as JSON.
type commandInfo struct {
	ID        string    `json:"command_id,omitempty"`
	PID       int       `json:"pid,omitempty"`
	Args      []string  `json:"args"`
	Tag       string    `json:"tag,omitempty"`
	Terminal  bool      `json:"terminal,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	ExitCode  *int      `json:"exit_code,omitempty"` // once it has ended
	TimedOut  bool      `json:"timed_out,omitempty"`
	OOM       bool      `json:"out_of_memory,omitempty"`
	Stdout    int64     `json:"stdout_bytes"`
	Stderr    int64     `json:"stderr_bytes"`
}

// processesCommand has the options of sandpit ps.
type processesCommand struct {
	output
	all bool
}

func newProcesses(a *app) *cobra.Command {
	var o processesCommand
	cmd := &cobra.Command{
		Use:   "ps [flags] SANDBOX",
		Short: "List the running commands of a sandbox",
		Long: `List the commands that clients started in a sandbox and that still run. -a includes those
that have ended, with their exit codes. Times are by the sandbox's clock; the list is the
sandbox's own information and not verified.`,
		Example:           "  sandpit ps work\n  sandpit ps -a -o json work",
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print the IDs of commands only")
	cmd.Flags().BoolVarP(&o.all, "all", "a", false, "include those that have ended")
	return cmd
}

func (o *processesCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	list, err := listCommands(ctx, c.Sandboxes.Open(id).Guest(), o.all)
	if err != nil {
		return err
	}
	return a.showListing(o.output, commandListing(list))
}

// listCommands returns the commands that the guest reports. A guest without a command log reports
// running ones only.
func listCommands(ctx context.Context, guest sandpit.Guest, all bool) ([]commandInfo, error) {
	list := []commandInfo{}
	journaled, err := journalOf(guest).ListCommands(ctx)
	if err == nil {
		for _, i := range journaled {
			if all || !i.Ended {
				list = append(list, toCommandInfo(i))
			}
		}
		return list, nil
	}
	if sandpit.CodeOf(err) != sandpit.Unsupported || all {
		return nil, err
	}
	running, err := guest.ListProcesses(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range running {
		list = append(list, commandInfo{PID: p.PID, Args: p.Args, Tag: p.Tag})
	}
	return list, nil
}

func toCommandInfo(i sandpit.CommandInfo) commandInfo {
	c := commandInfo{
		ID: i.ID, PID: i.PID, Args: i.Args, Tag: i.Tag, Terminal: i.Terminal, StartedAt: i.StartedAt, EndedAt: i.EndedAt,
		TimedOut: i.TimedOut, OOM: i.Status.OutOfMemory, Stdout: i.Stdout.Size, Stderr: i.Stderr.Size,
	}
	if i.Ended {
		c.ExitCode = &i.Status.Code
	}
	return c
}

func commandListing(list []commandInfo) listing {
	l := listing{document: list, rows: [][]string{{"ID", "PID", "STARTED", "STATUS", "OUTPUT", "COMMAND"}}}
	for _, c := range list {
		if c.ID != "" {
			l.ids = append(l.ids, c.ID)
		}
		l.rows = append(l.rows, []string{
			cmp.Or(c.ID, "-"), strconv.Itoa(c.PID), formatAge(c.StartedAt), c.formatStatus(), formatBytes(c.Stdout + c.Stderr), formatCommandLine(c.Args),
		})
	}
	return l
}

func (c commandInfo) formatStatus() string {
	switch {
	case c.ExitCode == nil:
		return "running"
	case c.TimedOut:
		return "timed out"
	case c.OOM:
		return "out of memory"
	}
	return "exit " + strconv.Itoa(*c.ExitCode)
}

// formatCommandLine returns a command, shortened for a table.
func formatCommandLine(args []string) string {
	const most = 80
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = arg
		if arg == "" || strings.ContainsAny(arg, " \t\n\"'\\$") {
			words[i] = strconv.Quote(arg)
		}
	}
	text := []rune(strings.Join(words, " "))
	if len(text) > most {
		return string(text[:most]) + "..."
	}
	return string(text)
}
