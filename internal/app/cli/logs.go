package cli

import (
	"context"
	"fmt"
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

func (a *app) newProcesses() *cobra.Command {
	var o output
	var all bool
	cmd := &cobra.Command{
		Use:   "ps [flags] SANDBOX",
		Short: "List the commands that run in a sandbox",
		Long: `List the commands that were started in a sandbox from outside and still run. With
-a it lists those that have ended too, with their exit codes. Times are by the
sandbox's clock, and all of it is what the sandbox says.`,
		Example:           "  sandpit ps work\n  sandpit ps -a -o json work",
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := find(ctx, c, args[0])
			if err != nil {
				return err
			}
			list, err := commands(ctx, c.Sandboxes.Open(id).Guest(), all)
			if err != nil {
				return err
			}
			return a.show(o, commandListing(list))
		}),
	}
	o.add(cmd, "print the IDs of commands only")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that have ended")
	return cmd
}

// commands lists what the guest knows. One that keeps no journal knows only what runs.
func commands(ctx context.Context, guest sandpit.Guest, all bool) ([]commandInfo, error) {
	list := []commandInfo{}
	journaled, err := journalOf(guest).ListCommands(ctx)
	if err == nil {
		for _, i := range journaled {
			if all || !i.Ended {
				list = append(list, describe(i))
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

// journalOf returns what a guest keeps of its commands.
func journalOf(guest sandpit.Guest) sandpit.Journal {
	if j, ok := guest.(sandpit.Journal); ok {
		return j
	}
	return noJournal{}
}

// noJournal is for guests that keep nothing.
type noJournal struct{}

var errNoJournal = sandpit.Errorf(sandpit.Unsupported, "this sandbox keeps nothing of its commands")

func (noJournal) ListCommands(context.Context) ([]sandpit.CommandInfo, error) {
	return nil, errNoJournal
}

func (noJournal) GetCommand(context.Context, string) (sandpit.CommandInfo, error) {
	return sandpit.CommandInfo{}, errNoJournal
}

func (noJournal) Follow(context.Context, string, sandpit.FollowOptions) (sandpit.Followed, error) {
	return sandpit.Followed{}, errNoJournal
}

func (noJournal) ForgetCommand(context.Context, string) error { return errNoJournal }

func describe(i sandpit.CommandInfo) commandInfo {
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
			orElse(c.ID, "-"), strconv.Itoa(c.PID), showAge(c.StartedAt), c.status(), size(c.Stdout + c.Stderr), commandLine(c.Args),
		})
	}
	return l
}

func (c commandInfo) status() string {
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

// commandLine is as much of a command as fits into a table.
func commandLine(args []string) string {
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

func (a *app) newLogs() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs [flags] SANDBOX [COMMAND]",
		Short: "Show what a command in a sandbox has put out",
		Long: `Show what a command in a sandbox has put out, each stream on its own. COMMAND is
the ID that sandpit exec --detach or sandpit ps -a prints, or the beginning of it;
the default is the command that was started last.
Of very much output the oldest is dropped, which is said. With -f it goes on until
the command ends, also when the connection breaks meanwhile, and ends with its exit
status.`,
		Example: `  id=$(sandpit exec --detach work make)
  sandpit logs -f work $id`,
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
			return a.logs(ctx, journal, command, follow)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the command ends")
	return cmd
}

// findCommand finds a command by its ID or the beginning of it, or the newest.
func findCommand(ctx context.Context, j sandpit.Journal, name string) (string, error) {
	list, err := j.ListCommands(ctx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, i := range list {
		if i.ID == name {
			return i.ID, nil
		}
		if strings.HasPrefix(i.ID, name) {
			found = append(found, i.ID)
		}
	}
	switch {
	case len(found) == 0 && name == "":
		return "", sandpit.Errorf(sandpit.NotFound, "no command was started in this sandbox")
	case len(found) == 0:
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "there is no command %q", name), "see: sandpit ps -a SANDBOX")
	case len(found) > 1 && name != "":
		return "", sandpit.WithHint(
			sandpit.Errorf(sandpit.Conflict, "%q may be any of %d commands: %s", name, len(found), strings.Join(found[:min(len(found), 10)], ", ")),
			"give more of the ID")
	}
	return found[len(found)-1], nil
}

// patientFor is how long logs -f tries to reach a server again.
const patientFor = time.Minute

func (a *app) logs(ctx context.Context, j sandpit.Journal, id string, follow bool) error {
	o := sandpit.FollowOptions{Stdout: a.Out, Stderr: a.Err, NoWait: !follow}
	o.Missing = func(stderr bool, _, n int64) {
		stream := "output"
		if stderr {
			stream = "error output"
		}
		fmt.Fprintf(a.Err, "sandpit: %d bytes of %s are missing here: there was too much\n", n, stream)
	}
	info, err := followPatiently(ctx, j, id, o)
	if err == nil && follow && info.Status.Code != 0 {
		return exitStatus(info.Status.Code)
	}
	return err
}

// followPatiently is Follow, which continues after the connection broke if it waits for the
// end of the command.
func followPatiently(ctx context.Context, j sandpit.Journal, id string, o sandpit.FollowOptions) (sandpit.CommandInfo, error) {
	var lost time.Time
	for {
		from := o.From
		f, err := j.Follow(ctx, id, o)
		o.From = f.Next
		if err == nil || o.NoWait || sandpit.CodeOf(err) != sandpit.Unavailable {
			return f.Command, err
		}
		if lost.IsZero() || o.From != from {
			lost = time.Now()
		}
		if time.Since(lost) > patientFor {
			return f.Command, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return f.Command, ctx.Err()
		}
	}
}

// commandNames offers the IDs of commands.
func (a *app) commandNames(ctx context.Context, sandbox, begun string) []string {
	c, err := a.dial()
	if err != nil {
		return nil
	}
	defer c.Close()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	id, err := find(ctx, c, sandbox)
	if err != nil {
		return nil
	}
	list, err := journalOf(c.Sandboxes.Open(id).Guest()).ListCommands(ctx)
	if err != nil {
		return nil
	}
	var names []string
	for _, i := range list {
		if sandpit.ValidateCommandID(i.ID) == nil && strings.HasPrefix(i.ID, begun) {
			names = append(names, cobra.CompletionWithDesc(i.ID, safe(commandLine(i.Args))))
		}
	}
	return names
}
