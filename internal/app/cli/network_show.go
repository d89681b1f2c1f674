package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

// networkShowCommand has the options of sandpit network show.
type networkShowCommand struct {
	output
}

func newNetworkShow(a *app) *cobra.Command {
	var o networkShowCommand
	cmd := &cobra.Command{
		Use:   "show [flags] SANDBOX",
		Short: "Show the network rules and traffic of a sandbox",
		Long: `Show the network rules and traffic of a sandbox. The secrets that headers refer to are never
shown.`,
		Example:           "  sandpit network show work",
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	return cmd
}

func (o *networkShowCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	n, err := c.Networks.Get(ctx, id)
	if err != nil {
		return err
	}
	return a.showListing(o.output, networkListing(n))
}

func networkListing(n api.Network) listing {
	l := listing{document: n, rows: [][]string{{"WHAT", "VALUE"}}}
	add := func(what, value string) { l.rows = append(l.rows, []string{what, value}) }
	if !n.Policy.Online {
		add("network", "offline")
		return l
	}
	add("network", "online")
	for _, rule := range n.Policy.Allow {
		add("allow", rule)
	}
	for _, rule := range n.Policy.Deny {
		add("deny", rule)
	}
	for _, h := range n.Policy.Headers {
		add("header", h.Host+":"+h.Name+"="+h.Value)
	}
	limits := n.Policy.Limits
	for _, f := range []struct {
		what  string
		value int64
		show  func(int64) string
	}{
		{"receive", limits.Receive, formatRate},
		{"send", limits.Send, formatRate},
		{"connections", int64(limits.Connections), formatNumber},
		{"connection rate", int64(limits.ConnectionRate), func(n int64) string { return formatNumber(n) + "/s" }},
	} {
		if f.value > 0 {
			add(f.what, "at most "+f.show(f.value))
		}
	}
	add("received", formatBytes(n.Stats.Received))
	add("sent", formatBytes(n.Stats.Sent))
	add("open", strconv.Itoa(n.Stats.Connections))
	add("allowed", formatNumber(n.Stats.Allowed))
	add("denied", formatNumber(n.Stats.Denied))
	return l
}

func formatRate(n int64) string { return formatBytes(n) + "/s" }

func formatNumber(n int64) string { return strconv.FormatInt(n, 10) }
