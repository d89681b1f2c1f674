package cli

import (
	"cmp"
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

func newQueue(a *app) *cobra.Command {
	cmd := newGroup("queue", "Show and repair the queue of a server", `Show and repair the queue of a server: the operations that it performs later, such as
deadlines, deletions and retries. An operation that failed too often is dead until it is
retried or dropped. These commands need an administrator's key.`, "  sandpit queue ls --dead\n  sandpit queue retry 17")
	cmd.AddCommand(newQueueList(a),
		newMessageVerb(a, "retry", "Retry operations that failed permanently",
			func(c *client.Client) func(context.Context, string) error { return c.Queue.Retry }),
		newMessageVerb(a, "drop", "Remove operations that failed permanently",
			func(c *client.Client) func(context.Context, string) error { return c.Queue.Drop }))
	return cmd
}

// queueListCommand has the options of sandpit queue ls.
type queueListCommand struct {
	output
	dead bool
}

func newQueueList(a *app) *cobra.Command {
	var o queueListCommand
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the operations in the queue", Example: "  sandpit queue ls\n  sandpit queue ls --dead",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print IDs only")
	cmd.Flags().BoolVar(&o.dead, "dead", false, "only operations that failed permanently")
	return cmd
}

func (o *queueListCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	messages, err := c.Queue.List(ctx, o.dead)
	if err != nil {
		return err
	}
	return a.showListing(o.output, messageListing(messages))
}

func messageListing(list []api.Message) listing {
	if list == nil {
		list = []api.Message{}
	}
	l := listing{document: list, rows: [][]string{{"ID", "SANDBOX", "WHAT", "STATE", "DUE", "ATTEMPTS", "ERROR"}}}
	for _, m := range list {
		l.ids = append(l.ids, m.ID)
		l.rows = append(l.rows, []string{
			m.ID, cmp.Or(string(m.Sandbox), "-"), m.Kind, m.State, formatWhen(m.Due), strconv.Itoa(m.Attempts), cmp.Or(m.LastError, "-"),
		})
	}
	return l
}

func newMessageVerb(a *app, name, short string, do func(*client.Client) func(context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: name + " ID...", Short: short, Example: "  sandpit queue " + name + " 17",
		Args:              wantArgs(1, -1, "the ID of something in the queue"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.withClient(func(ctx context.Context, a *app, c *client.Client, args []string) error {
			return a.forEachName(ctx, args, do(c))
		}),
	}
}
