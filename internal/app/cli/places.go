package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

func (a *app) newProviders() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "providers [flags]",
		Short: "Show which places make sandboxes, what they can do, and why one cannot be used",
		Long: `Show which places make the sandboxes of a server, what they can do, and why one
cannot be used. Where no server is named and none is up, it is told of this
machine, for run.`,
		Example:           "  sandpit providers",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Providers(ctx)
			if sandpit.CodeOf(err) == sandpit.Unavailable {
				list, err = a.localProviders(ctx, err)
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
					p.Name, yesNo(p.Default), yesNo(p.Available), orElse(p.Endpoint, "-"),
					orElse(strings.Join(p.Abilities, ","), "-"), orElse(p.Reason, "-"), orElse(p.Hint, "-"),
				})
			}
			return a.show(o, l)
		}),
	}
	o.add(cmd, "print names only")
	return cmd
}

// localProviders tells of this machine, unless somebody has named a server, who then
// wants to know why it does not answer.
func (a *app) localProviders(ctx context.Context, why error) ([]api.Provider, error) {
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

func (a *app) newPools() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:               "pools [flags]",
		Short:             "Show the sandboxes that a server has made ahead",
		Example:           "  sandpit pools",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
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
					p.Provider, cmp.Or(string(p.Spec.Image), string(sandpit.HostImage)), orElse(limitFacts(p.Spec.Resources)[0][1], "-"),
					strconv.Itoa(p.Ready), strconv.Itoa(p.Making), strconv.Itoa(p.Size), strconv.Itoa(p.Max),
				})
			}
			return a.show(o, l)
		}),
	}
	o.add(cmd, "")
	return cmd
}

// checked is what check found out.
type checked struct {
	Endpoint string `json:"endpoint"`
	OK       bool   `json:"ok"`
	// Version is the server's.
	Version *api.Version `json:"version,omitempty"`
	// Home is the home directory in a sandbox, System what uname -a says there.
	Home   string `json:"home,omitempty"`
	System string `json:"system,omitempty"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

func (a *app) newCheck() *cobra.Command {
	var o output
	var wait time.Duration
	var quick bool
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Find out whether a server is up and makes sandboxes",
		Long: `Find out whether a server is up and makes sandboxes. It makes one, runs two
commands in it and removes it. The exit status is 0 if that worked, else 1.`,
		Example:           "  sandpit check\n  sandpit check --wait 2m",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return sandpit.Errorf(sandpit.Invalid, "--wait %s: want a positive time", wait)
			}
			c, err := a.dial()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx := cmd.Context()
			result := checked{Endpoint: c.URL()}
			if err = a.check(ctx, c, wait, quick, &result); err != nil {
				if status, ok := signalStatus(ctx); ok {
					return status
				}
				result.Error, result.Hint = err.Error(), sandpit.HintOf(err)
			}
			result.OK = err == nil
			return a.showChecked(o, result, err)
		},
	}
	o.add(cmd, "print nothing")
	cmd.Flags().DurationVar(&wait, "wait", 0, "`time` to wait for a server that is not up yet")
	cmd.Flags().BoolVar(&quick, "no-sandbox", false, "make no sandbox: only ask the server whether it could")
	return cmd
}

func (a *app) showChecked(o output, r checked, err error) error {
	var told error
	switch {
	case o.json():
		told = printJSON(a.Out, r)
	case !o.quiet:
		told = a.tellChecked(r, err)
	}
	if told != nil {
		return told
	}
	if err != nil {
		return exitStatus(statusNo)
	}
	return nil
}

func (a *app) tellChecked(r checked, err error) error {
	rows := [][]string{{"Endpoint", r.Endpoint}}
	if r.Version != nil {
		rows = append(rows, []string{"Version", r.Version.Sandpit})
	}
	if r.Home != "" {
		rows = append(rows, []string{"Home", r.Home})
	}
	if r.System != "" {
		rows = append(rows, []string{"System", r.System})
	}
	if e := layTable(a.Out, rows, nil); e != nil {
		return e
	}
	if err != nil {
		printError(a.Err, err)
		return nil
	}
	_, e := fmt.Fprintln(a.Out, "The server is up.")
	return e
}

func (a *app) check(ctx context.Context, c *client.Client, wait time.Duration, quick bool, r *checked) error {
	if err := awaitReady(ctx, c, wait); err != nil {
		return err
	}
	v, err := c.Version(ctx)
	if err != nil {
		return err
	}
	r.Version = &v
	if quick {
		return nil
	}
	// Nobody waits for this sandbox: should the deletion be lost, its time is short.
	const life = 5 * time.Minute
	return c.WithSandbox(ctx, client.CreateRequest{Timeout: life}, func(ctx context.Context, s *client.Sandbox) error {
		if r.Home, err = line(ctx, s, `printf '%s\n' "$HOME"`); err != nil {
			return err
		}
		r.System, err = line(ctx, s, "uname -a")
		return err
	})
}

// line returns what a command prints.
func line(ctx context.Context, s *client.Sandbox, command string) (string, error) {
	res, err := s.Run(ctx, command)
	if err == nil && res.ExitCode != 0 {
		err = sandpit.Errorf(sandpit.Internal, "%s in a new sandbox: exit status %d: %s", command, res.ExitCode, strings.TrimSpace(res.Stderr))
	}
	return strings.TrimSpace(res.Stdout), err
}

// awaitReady asks until the server says that it is ready, or the time is up.
func awaitReady(ctx context.Context, c *client.Client, wait time.Duration) error {
	const pause = 250 * time.Millisecond
	end := time.Now().Add(wait)
	for {
		err := c.Ready(ctx)
		if err == nil || sandpit.CodeOf(err) != sandpit.Unavailable || time.Now().Add(pause).After(end) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
