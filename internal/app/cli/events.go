package cli

import (
	"cmp"
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

type eventsCommand struct {
	output
	filter  client.EventFilter
	sandbox string
	follow  bool
}

func newEvents(a *app) *cobra.Command {
	var o eventsCommand
	cmd := &cobra.Command{
		Use:   "events [flags]",
		Short: "Show the audit trail of a server",
		Long: `Show the audit trail of a server: what was done, by which actor and with which result, as
far as it concerns this key's sandboxes. As JSON it is a list; with -f each event is a
line of JSON. -f reconnects after the connection broke.`,
		Example: `  sandpit events --sandbox work
  sandpit events -f -o json | jq .action`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "keep printing new events")
	f.StringVar(&o.sandbox, "sandbox", "", "only events of this `SANDBOX`")
	f.StringVar(&o.filter.Actor, "actor", "", "only actions of this `actor`")
	f.StringVar(&o.filter.Action, "action", "", "only this `action`")
	f.Int64Var(&o.filter.After, "after", 0, "only events after the one with this `number`")
	f.IntVar(&o.filter.Limit, "limit", 0, "at most this `number` of events")
	_ = cmd.RegisterFlagCompletionFunc("sandbox", a.completeSandboxes(0)) // the flag exists
	return cmd
}

func (o *eventsCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	if o.sandbox != "" {
		id, err := findSandbox(ctx, c, o.sandbox)
		if err != nil {
			return err
		}
		o.filter.Sandbox = id
	}
	if o.follow {
		return o.followEvents(ctx, a, c)
	}
	list, err := c.Events.List(ctx, o.filter)
	if err != nil {
		return err
	}
	return a.showListing(o.output, eventListing(list))
}

// errEnough ends following events at the limit.
var errEnough = errors.New("enough")

func (o *eventsCommand) followEvents(ctx context.Context, a *app, c *client.Client) error {
	n := 0
	limit := o.filter.Limit
	enc := json.NewEncoder(a.Out)
	err := c.Events.Follow(ctx, o.filter, func(e api.Event) error {
		if o.isJSON() {
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

// eventLine returns one event as a line of text.
func eventLine(e api.Event) string {
	text := e.At.Local().Format(time.DateTime) + "  " + escapeText(e.Action) + "  " + escapeText(cmp.Or(string(e.Sandbox), "-")) +
		"  by " + escapeText(cmp.Or(e.Actor, "-")) + "  " + escapeText(e.Result)
	if details := eventDetails(e); details != "" {
		text += ": " + escapeText(details)
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
			cmp.Or(string(e.Sandbox), "-"), cmp.Or(e.Actor, "-"), e.Result, eventDetails(e),
		})
	}
	return l
}
