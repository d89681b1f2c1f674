package cli

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// statsCommand has the options of sandpit stats.
type statsCommand struct {
	output
}

func newStats(a *app) *cobra.Command {
	var o statsCommand
	cmd := &cobra.Command{
		Use:   "stats [flags] [SANDBOX...]",
		Short: "Show the resource usage of sandboxes, or the load of the server",
		Long: `Show the resource usage of sandboxes. CPU is the time used since the start. As JSON it is
a list, and without a SANDBOX one document about the server.`,
		Example: `  sandpit stats
  sandpit stats work
  sandpit stats -o json $(sandpit ls -q --state running)`,
		ValidArgsFunction: a.completeSandboxes(0),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	return cmd
}

func (o *statsCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	if len(args) == 0 {
		return showServerStats(ctx, a, c, o.output)
	}
	ids, missing := (&finder{client: c}).findIDs(ctx, args)
	list := make([]sandboxUsage, len(ids))
	errs := runParallel(len(ids), func(i int) error {
		box, err := c.Sandboxes.Get(ctx, ids[i])
		if err != nil {
			return err
		}
		list[i] = sandboxUsage{ID: ids[i], Name: box.Spec.Name}
		list[i].Stats, err = box.Stats(ctx)
		return err
	})
	var found []sandboxUsage
	for i, err := range errs {
		if err == nil {
			found = append(found, list[i])
		}
	}
	if len(found) > 0 {
		errs = append(errs, a.showListing(o.output, measuredListing(found, false)))
	}
	return errors.Join(append(errs, missing)...)
}

func showServerStats(ctx context.Context, a *app, c *client.Client, o output) error {
	s, err := c.Stats(ctx)
	if err != nil {
		return err
	}
	seconds := func(n float64) string { return time.Duration(n * float64(time.Second)).String() }
	return a.showListing(o, listing{document: s, rows: [][]string{
		{"Sandboxes", strconv.Itoa(s.TotalSandboxes) + " of " + strconv.Itoa(s.MaxSandboxes)},
		{"Operations", strconv.Itoa(s.ActiveOperations)},
		{"Idle timeout", seconds(s.IdleTimeout)},
		{"Cleanup", "every " + seconds(s.CleanupInterval)},
		{"Shutting down", strconv.FormatBool(s.IsShuttingDown)},
	}})
}

// sandboxUsage is the resource usage of a sandbox.
type sandboxUsage struct {
	ID   sandpit.ID `json:"id"`
	Name string     `json:"name,omitempty"`
	sandpit.Stats

	// cpus is the number of CPUs that were busy since the previous measurement; below zero is
	// unknown.
	cpus float64
}

func measuredListing(list []sandboxUsage, live bool) listing {
	cpu := "CPU TIME"
	if live {
		cpu = "CPU"
	}
	l := listing{document: list, rows: [][]string{{"SANDBOX", "NAME", cpu, "MEMORY", "LIMIT", "DISK", "PIDS", "IN", "OUT", "KILLED"}}}
	for _, m := range list {
		used := m.CPU.Round(time.Millisecond).String()
		if live {
			used = formatPercent(m.cpus)
		}
		limit := "none"
		if m.Limits.Memory > 0 {
			limit = formatBytes(m.Limits.Memory)
		}
		l.rows = append(l.rows, []string{
			string(m.ID), cmp.Or(m.Name, "-"), used, formatBytes(m.Memory), limit, formatBytes(m.Disk),
			strconv.Itoa(m.PIDs), formatBytes(m.Received), formatBytes(m.Sent), strconv.FormatInt(m.OOMKills, 10),
		})
	}
	return l
}

func formatPercent(cpus float64) string {
	if cpus < 0 {
		return "-"
	}
	return strconv.FormatFloat(cpus*100, 'f', 1, 64) + " %"
}
