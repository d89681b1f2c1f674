package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// networkLogCommand has the options of sandpit network log.
type networkLogCommand struct {
	output
	follow bool
	limit  int
}

func newNetworkLog(a *app) *cobra.Command {
	var o networkLogCommand
	cmd := &cobra.Command{
		Use:   "log [flags] SANDBOX",
		Short: "Show the network log of a sandbox",
		Long: `Show the network log of a sandbox: its connections, the decisions about them and the rules.
Equal decisions are combined into one line with a count. -f prints a decision again each
time it is repeated; with -o json, as one line of JSON.`,
		Example: `  sandpit network log work
  sandpit network log -f -o json work | jq 'select(.allowed | not)'`,
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "keep printing new decisions")
	cmd.Flags().IntVar(&o.limit, "limit", 100, "the last `number` of decisions")
	return cmd
}

func (o *networkLogCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	list, err := c.Networks.Log(ctx, id, 0, o.limit)
	if err != nil {
		return err
	}
	if o.follow {
		return o.printNew(ctx, a, c, id, list)
	}
	return a.showListing(o.output, decisionListing(list))
}

// printNew prints a list of decisions, and then new ones until ctx ends.
func (o *networkLogCommand) printNew(ctx context.Context, a *app, c *client.Client, id sandpit.ID, list []sandpit.NetworkDecision) error {
	enc := json.NewEncoder(a.Out)
	tell := func(d sandpit.NetworkDecision) error {
		if o.isJSON() {
			return enc.Encode(d)
		}
		_, err := fmt.Fprintln(a.Out, strings.Join(decisionRow(d), "  "))
		return err
	}
	var after int64
	for _, d := range list {
		if err := tell(d); err != nil {
			return err
		}
		after = max(after, d.Seq)
	}
	return c.Networks.FollowLog(ctx, id, after, tell)
}

func decisionListing(list []sandpit.NetworkDecision) listing {
	if list == nil {
		list = []sandpit.NetworkDecision{}
	}
	l := listing{document: list, rows: [][]string{{"TIME", "COUNT", "DECISION", "PROTOCOL", "ADDRESS", "NAME", "REASON"}}}
	for _, d := range list {
		l.rows = append(l.rows, decisionRow(d))
	}
	return l
}

func decisionRow(d sandpit.NetworkDecision) []string {
	decision := "denied"
	if d.Allowed {
		decision = "allowed"
	}
	return []string{
		d.At.Local().Format(time.DateTime), formatNumber(d.Count), decision, escapeText(d.Protocol), escapeText(cmp.Or(d.Address, "-")), escapeText(cmp.Or(d.Name, "-")), escapeText(d.Reason),
	}
}
