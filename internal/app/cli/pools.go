package cli

import (
	"cmp"
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

// poolsCommand has the options of sandpit pools.
type poolsCommand struct {
	output
}

func newPools(a *app) *cobra.Command {
	var o poolsCommand
	cmd := &cobra.Command{
		Use:               "pools [flags]",
		Short:             "Show the pools of a server",
		Example:           "  sandpit pools",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	return cmd
}

func (o *poolsCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	list, err := c.Pools(ctx)
	if err != nil {
		return err
	}
	if list == nil {
		list = []api.Pool{}
	}
	l := listing{document: list, rows: [][]string{{"PROVIDER", "IMAGE", "LIMITS", "READY", "MAKING", "SIZE", "MAX"}}}
	for _, p := range list {
		l.rows = append(l.rows, []string{
			p.Provider, cmp.Or(string(p.Spec.Image), string(sandpit.HostImage)), cmp.Or(limitRows(p.Spec.Resources)[0][1], "-"),
			strconv.Itoa(p.Ready), strconv.Itoa(p.Making), strconv.Itoa(p.Size), strconv.Itoa(p.Max),
		})
	}
	return a.showListing(o.output, l)
}
