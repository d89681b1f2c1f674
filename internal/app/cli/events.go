package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

type eventOptions struct {
	output
	filter  client.EventFilter
	sandbox string
	follow  bool
}

func (a *app) newEvents() *cobra.Command {
	var o eventOptions
	cmd := &cobra.Command{
		Use:   "events [flags]",
		Short: "Show what was done on a server, by whom and how it went",
		Long: `Show what was done on a server, by whom and how it went: the audit trail, as far
as it concerns this key's sandboxes. As JSON it is a list; with -f each event is a
line of JSON. -f goes on after the connection broke.`,
		Example: `  sandpit events --sandbox work
  sandpit events -f -o json | jq .action`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			if o.sandbox != "" {
				id, err := find(ctx, c, o.sandbox)
				if err != nil {
					return err
				}
				o.filter.Sandbox = id
			}
			if o.follow {
				return a.followEvents(ctx, c, o)
			}
			list, err := c.Events.List(ctx, o.filter)
			if err != nil {
				return err
			}
			return a.show(o.output, eventListing(list))
		}),
	}
	o.add(cmd, "")
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on as things happen")
	f.StringVar(&o.sandbox, "sandbox", "", "only what concerns this `SANDBOX`")
	f.StringVar(&o.filter.Actor, "actor", "", "only what this `actor` did")
	f.StringVar(&o.filter.Action, "action", "", "only this `action`")
	f.Int64Var(&o.filter.After, "after", 0, "only what comes after the event of this `number`")
	f.IntVar(&o.filter.Limit, "limit", 0, "at most this `number` of events")
	_ = cmd.RegisterFlagCompletionFunc("sandbox", a.completeSandboxes(0)) // the flag is there
	return cmd
}

// errEnough ends following events.
var errEnough = errors.New("enough")

func (a *app) followEvents(ctx context.Context, c *client.Client, o eventOptions) error {
	n := 0
	limit := o.filter.Limit
	enc := json.NewEncoder(a.Out)
	err := c.Events.Follow(ctx, o.filter, func(e api.Event) error {
		if o.json() {
			if err := enc.Encode(e); err != nil {
				return err
			}
		} else if _, err := fmt.Fprintln(a.Out, eventLine(e)); err != nil {
			return err
		}
		if n++; limit > 0 && n >= limit {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// eventLine is one event for people who watch.
func eventLine(e api.Event) string {
	text := e.At.Local().Format(time.DateTime) + "  " + safe(e.Action) + "  " + safe(orElse(string(e.Sandbox), "-")) +
		"  by " + safe(orElse(e.Actor, "-")) + "  " + safe(e.Result)
	if details := eventDetails(e); details != "" {
		text += ": " + safe(details)
	}
	return text
}

// eventDetails returns the message of an event, or its arguments if it has none.
func eventDetails(e api.Event) string {
	if e.Message != "" {
		return e.Message
	}
	words := make([]string, 0, len(e.Args))
	for _, name := range slices.Sorted(maps.Keys(e.Args)) {
		value := e.Args[name]
		if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r == '"' || unicode.IsSpace(r) }) {
			value = strconv.Quote(value)
		}
		words = append(words, name+"="+value)
	}
	return strings.Join(words, " ")
}

func eventListing(list []api.Event) listing {
	if list == nil {
		list = []api.Event{}
	}
	l := listing{document: list, rows: [][]string{{"NUMBER", "TIME", "ACTION", "SANDBOX", "ACTOR", "RESULT", "DETAILS"}}}
	for _, e := range list {
		l.rows = append(l.rows, []string{
			strconv.FormatInt(e.Seq, 10), e.At.Local().Format(time.DateTime), e.Action,
			orElse(string(e.Sandbox), "-"), orElse(e.Actor, "-"), e.Result, eventDetails(e),
		})
	}
	return l
}

func (a *app) newAudit() *cobra.Command {
	cmd := group("audit", "Check and export the audit trail of a server", `Check and export the audit trail of a server. sandpit events shows it.`,
		"  sandpit audit verify\n  sandpit audit export > events.jsonl")
	cmd.AddCommand(a.newAuditVerify(), a.newAuditExport())
	return cmd
}

// newAuditExport writes pages of events until there are no more.
func (a *app) newAuditExport() *cobra.Command {
	var after int64
	cmd := &cobra.Command{
		Use:   "export [flags]",
		Short: "Write all events of the audit trail as lines of JSON",
		Long: `Write all events of the audit trail as lines of JSON, oldest first. An administrator's
key exports all events, another key those of its owner. Events that the server has
removed because of audit.max_age or audit.max_size are in its directory
audit.export_dir.`,
		Example:           "  sandpit audit export > events.jsonl\n  sandpit audit export --after 1200 | gzip > more.jsonl.gz",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			out := bufio.NewWriter(a.Out)
			lines := json.NewEncoder(out)
			for {
				page, err := c.Events.List(ctx, client.EventFilter{After: after, Limit: exportPage})
				if err != nil {
					return err
				}
				for _, e := range page {
					if err := lines.Encode(e); err != nil {
						return err
					}
				}
				if len(page) < exportPage {
					return out.Flush()
				}
				after = page[len(page)-1].Seq
			}
		}),
	}
	cmd.Flags().Int64Var(&after, "after", 0, "only what comes after the event of this `number`")
	return cmd
}

// exportPage is how many events are asked for at a time.
const exportPage = 500

func (a *app) newAuditVerify() *cobra.Command {
	var o output
	verify := &cobra.Command{
		Use:   "verify [flags]",
		Short: "Find out whether anybody has changed the audit trail",
		Long: `Find out whether anybody has changed the audit trail: each event carries a digest
over all before it. The exit status is 1 if it is not whole. It wants a key of an
administrator.`,
		Example:           "  sandpit audit verify",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			v, err := c.Events.Verify(ctx)
			if err != nil {
				return err
			}
			switch {
			case o.json():
				err = printJSON(a.Out, v)
			case v.OK:
				_, err = fmt.Fprintf(a.Out, "The audit trail is whole: %s.\n", plural(int(v.Events), "event", "events"))
			default:
				_, err = fmt.Fprintf(a.Out, "The audit trail was changed: %s\n", safe(v.Reason))
			}
			if err == nil && !v.OK {
				err = exitStatus(statusNo)
			}
			return err
		}),
	}
	o.add(verify, "")
	return verify
}

// group is a command that only has others below it.
func group(name, short, long, example string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Long: long, Example: example,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

func (a *app) newQueue() *cobra.Command {
	cmd := group("queue", "See and repair what a server is to do later", `See and repair what a server is to do later: deadlines, deletions and retries.
What has failed too often is dead, and waits for somebody to retry or drop it. All
of it wants a key of an administrator.`, "  sandpit queue ls --dead\n  sandpit queue retry 17")
	var o output
	var dead bool
	list := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List what is to be done", Example: "  sandpit queue ls\n  sandpit queue ls --dead",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			messages, err := c.Queue.List(ctx, dead)
			if err != nil {
				return err
			}
			return a.show(o, messageListing(messages))
		}),
	}
	o.add(list, "print IDs only")
	list.Flags().BoolVar(&dead, "dead", false, "what failed for good")
	cmd.AddCommand(list,
		a.newMessageVerb("retry", "Have something that failed for good tried again",
			func(c *client.Client) func(context.Context, string) error { return c.Queue.Retry }),
		a.newMessageVerb("drop", "Forget something that failed for good",
			func(c *client.Client) func(context.Context, string) error { return c.Queue.Drop }))
	return cmd
}

func messageListing(list []api.Message) listing {
	if list == nil {
		list = []api.Message{}
	}
	l := listing{document: list, rows: [][]string{{"ID", "SANDBOX", "WHAT", "STATE", "DUE", "ATTEMPTS", "ERROR"}}}
	for _, m := range list {
		l.ids = append(l.ids, m.ID)
		l.rows = append(l.rows, []string{
			m.ID, orElse(string(m.Sandbox), "-"), m.Kind, m.State, showWhen(m.Due), strconv.Itoa(m.Attempts), orElse(m.LastError, "-"),
		})
	}
	return l
}

func (a *app) newMessageVerb(name, short string, do func(*client.Client) func(context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: name + " ID...", Short: short, Example: "  sandpit queue " + name + " 17",
		Args:              wantArgs(1, -1, "the ID of something in the queue"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.verb(func(ctx context.Context, c *client.Client, args []string) error { return a.eachName(ctx, args, do(c)) }),
	}
}

// eachName does something for every name, also when it fails for others.
func (a *app) eachName(ctx context.Context, names []string, do func(context.Context, string) error) error {
	var errs []error
	for _, name := range names {
		err := do(ctx, name)
		if err == nil {
			_, err = fmt.Fprintln(a.Out, safe(name))
		}
		if err != nil && len(names) > 1 {
			err = fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (a *app) newKey() *cobra.Command {
	cmd := group("key", "Make, list and take back the API keys of a server", `Make, list and take back the API keys of a server. It wants a key of an
administrator, or the server's own socket.`, "  sandpit key create --owner alice\n  sandpit key ls")
	cmd.AddCommand(a.newKeyCreate(), a.newKeyList(), &cobra.Command{
		Use:     "rm ID...",
		Aliases: []string{"remove"},
		Short:   "Take API keys back", Example: "  sandpit key rm k3x9",
		Args:              wantArgs(1, -1, "the ID of a key"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachName(ctx, args, c.Keys.Delete)
		}),
	})
	return cmd
}

func (a *app) newKeyCreate() *cobra.Command {
	var o output
	var owner, name, ttl string
	var admin bool
	cmd := &cobra.Command{
		Use:   "create [flags] --owner OWNER",
		Short: "Make an API key",
		Long: `Make an API key and print its secret, which is never told again. Who has it reaches
the sandboxes of OWNER.`,
		Example: `  sandpit key create --owner alice --name laptop
  SANDPIT_API_KEY=$(sandpit key create -q --owner ci --ttl 30d)`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && owner == "" {
				return usageError(cmd, "--owner is missing")
			}
			return wantArgs(0, 0, "")(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			d, err := parseSpan("--ttl", ttl)
			if err != nil {
				return err
			}
			key, err := c.Keys.Create(ctx, owner, name, max(0, d), admin)
			if err != nil {
				return err
			}
			if o.quiet || o.json() {
				return a.show(o, listing{document: key, ids: []string{key.Secret}})
			}
			if _, err := fmt.Fprintln(a.Out, safe(key.Secret)); err != nil {
				return err
			}
			fmt.Fprintf(a.Err, "sandpit: key %s of %s; the secret above is not told again\n", safe(key.ID), safe(key.Owner))
			return nil
		}),
	}
	o.add(cmd, "print the secret and nothing else")
	f := cmd.Flags()
	f.StringVar(&owner, "owner", "", "`name` of whose sandboxes it reaches")
	f.StringVar(&name, "name", "", "`name` of the key, for people")
	f.StringVar(&ttl, "ttl", "", "`time` that it is good for, such as 30d (default for ever)")
	f.BoolVar(&admin, "admin", false, "let it reach everything, also what belongs to the server itself")
	return cmd
}

func (a *app) newKeyList() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the API keys, without their secrets", Example: "  sandpit key ls",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Keys.List(ctx)
			if err != nil {
				return err
			}
			if list == nil {
				list = []api.Key{}
			}
			l := listing{document: list, rows: [][]string{{"ID", "NAME", "OWNER", "ADMIN", "CREATED", "USED", "EXPIRES"}}}
			for _, k := range list {
				l.ids = append(l.ids, k.ID)
				l.rows = append(l.rows, []string{
					k.ID, orElse(k.Name, "-"), k.Owner, yesNo(k.Admin), showAge(k.CreatedAt), showAge(k.LastUsedAt), showWhen(k.ExpiresAt),
				})
			}
			return a.show(o, l)
		}),
	}
	o.add(cmd, "print IDs only")
	return cmd
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
