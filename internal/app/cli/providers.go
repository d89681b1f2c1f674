package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

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
		Use:   "providers [flags] [NAME]",
		Short: "Show the providers of a server",
		Long: `Show the providers of a server, their abilities and use, whether requests are sent to them,
and why one is not available. With a name, show that provider with its account and
what it cannot do. If no server is configured and none runs, show those of this
machine, which run uses.`,
		Example:           "  sandpit providers\n  sandpit providers e2b",
		Args:              wantArgs(0, 1, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print names only")
	return cmd
}

func (o *providersCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
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
	if len(args) > 0 {
		if list, err = findProvider(list, args[0]); err != nil {
			return err
		}
		if !o.quiet && !o.isJSON() {
			return printDetails(a.Out, list, describeProvider)
		}
	}
	l := listing{document: list, rows: [][]string{{"NAME", "DEFAULT", "AVAILABLE", "ENDPOINT", "CAN", "USE", "CIRCUIT", "REASON", "HINT"}}}
	for _, p := range list {
		l.ids = append(l.ids, p.Name)
		l.rows = append(l.rows, []string{
			p.Name, formatYesNo(p.Default), formatYesNo(p.Available), cmp.Or(p.Endpoint, "-"), cmp.Or(strings.Join(p.Abilities, ","), "-"),
			cmp.Or(formatUse(p), "-"), cmp.Or(p.Circuit, "-"), cmp.Or(p.Reason, "-"), cmp.Or(p.Hint, "-"),
		})
	}
	return a.showListing(o.output, l)
}

// findProvider returns the provider of a name alone.
func findProvider(list []api.Provider, name string) ([]api.Provider, error) {
	names := make([]string, len(list))
	for i, p := range list {
		if names[i] = p.Name; p.Name == name {
			return list[i : i+1], nil
		}
	}
	return nil, sandpit.Errorf(sandpit.NotFound, "Unsupported provider type: %q. Available providers: %s", name, strings.Join(names, ", "))
}

// formatUse returns how many sandboxes a provider has, and how long they have run, or "" if the
// server does not say.
func formatUse(p api.Provider) string {
	if p.Circuit == "" { // there is no server
		return ""
	}
	parts := []string{fmt.Sprintf("%d sandboxes", p.Sandboxes)}
	if p.MaxSandboxes > 0 {
		parts[0] = fmt.Sprintf("%d of %d sandboxes", p.Sandboxes, p.MaxSandboxes)
	}
	if p.MaxSandboxHours > 0 {
		parts = append(parts, fmt.Sprintf("%.1f of %d h", p.SandboxHours, p.MaxSandboxHours))
	}
	if p.Undeletable > 0 {
		parts = append(parts, fmt.Sprintf("%d cannot be deleted", p.Undeletable))
	}
	return strings.Join(parts, ", ")
}

// describeProvider returns the table of details of a provider.
func describeProvider(p api.Provider) [][]string {
	rows := [][]string{
		{"Name", p.Name},
		{"Default", formatYesNo(p.Default)},
		{"Available", formatYesNo(p.Available)},
		{"Reason", p.Reason},
		{"Hint", p.Hint},
		{"Endpoint", p.Endpoint},
		{"Use", formatUse(p)},
		{"Circuit", p.Circuit},
		{"Failure", p.CircuitReason},
		{"Can", strings.Join(p.Abilities, ", ")},
	}
	if p.CircuitSeconds > 0 {
		rows = append(rows, []string{"Next request", "in " + time.Duration(p.CircuitSeconds*float64(time.Second)).Round(time.Second).String()})
	}
	if account := p.Account; account != nil {
		rows = append(rows, []string{"Account", account.Name}, []string{"API", account.Endpoint})
		if account.MaxSandboxes > 0 {
			rows = append(rows, []string{"Account limit", fmt.Sprintf("%d of %d sandboxes", account.Sandboxes, account.MaxSandboxes)})
		}
		if account.MaxLifetime > 0 {
			rows = append(rows, []string{"Longest life", account.MaxLifetime.String()})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Missing)) {
		rows = append(rows, []string{"Cannot", name + ": " + p.Missing[name]})
	}
	return rows
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
		list[i] = p.ToDocument()
	}
	return list, err
}
