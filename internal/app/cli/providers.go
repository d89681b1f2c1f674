package cli

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

// providersCommand has the options of sandpit providers.
type providersCommand struct {
	output
}

func newProviders(a *app) *cobra.Command {
	var o providersCommand
	cmd := &cobra.Command{
		Use:   "providers [flags]",
		Short: "Show the providers of a server",
		Long: `Show the providers of a server, their abilities, and why one is not available. If no server
is configured and none runs, show those of this machine, which run uses.`,
		Example:           "  sandpit providers",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print names only")
	return cmd
}

func (o *providersCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	list, err := c.Providers(ctx)
	if sandpit.CodeOf(err) == sandpit.Unavailable {
		list, err = localProviders(ctx, a, err)
	}
	if err != nil {
		return err
	}
	if list == nil {
		list = []api.Provider{}
	}
	l := listing{document: list, rows: [][]string{{"NAME", "DEFAULT", "AVAILABLE", "ENDPOINT", "CAN", "REASON", "HINT"}}}
	for _, p := range list {
		l.ids = append(l.ids, p.Name)
		l.rows = append(l.rows, []string{
			p.Name, formatYesNo(p.Default), formatYesNo(p.Available), cmp.Or(p.Endpoint, "-"),
			cmp.Or(strings.Join(p.Abilities, ","), "-"), cmp.Or(p.Reason, "-"), cmp.Or(p.Hint, "-"),
		})
	}
	return a.showListing(o.output, l)
}

// localProviders returns the providers of this machine, unless a server is configured: then the
// error of that server is returned.
func localProviders(ctx context.Context, a *app, why error) ([]api.Provider, error) {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return nil, err
	}
	if cfg.URL != "" {
		return nil, why
	}
	statuses, err := daemon.Providers(ctx, cfg)
	list := make([]api.Provider, len(statuses))
	for i, p := range statuses {
		list[i] = api.Provider{Name: p.Name, Default: p.Default, Available: p.Err == nil, Endpoint: p.Endpoint, Abilities: p.Abilities}
		if p.Err != nil {
			list[i].Reason, list[i].Hint = p.Err.Error(), sandpit.HintOf(p.Err)
		}
	}
	return list, err
}
