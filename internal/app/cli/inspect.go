package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

// inspected has all details of a sandbox.
type inspected struct {
	sandpit.Sandbox
	// Stats are present while it runs or is paused, and its provider can measure it.
	Stats *sandpit.Stats `json:"stats,omitempty"`
	// Pool is the pool from which another sandbox of this kind would be claimed.
	Pool *api.Pool `json:"pool,omitempty"`
}

// inspectCommand has the options of sandpit inspect.
type inspectCommand struct {
	output
}

func newInspect(a *app) *cobra.Command {
	var o inspectCommand
	cmd := &cobra.Command{
		Use:   "inspect [flags] SANDBOX...",
		Short: "Show all details of sandboxes",
		Long: `Show all details of sandboxes, also of those that were deleted a short while ago. As JSON
it is always a list.`,
		Example: `  sandpit inspect work
  sandpit inspect -o json work | jq '.[0].lease'`,
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(0),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print IDs only")
	return cmd
}

func (o *inspectCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	ids, missing := (&finder{client: c}).findIDs(ctx, args)
	pools, _ := c.Pools(ctx) // optional
	list := make([]inspected, len(ids))
	errs := runParallel(len(ids), func(i int) error {
		var err error
		list[i], err = inspectSandbox(ctx, c, ids[i], pools)
		return err
	})
	found := []inspected{}
	for i, err := range errs {
		if err == nil {
			found = append(found, list[i])
		}
	}
	if len(found) == 0 && len(ids) > 0 || len(ids) == 0 {
		return errors.Join(append(errs, missing)...)
	}
	return errors.Join(append(errs, missing, showInspected(a, o.output, found))...)
}

func inspectSandbox(ctx context.Context, c *client.Client, id sandpit.ID, pools []api.Pool) (inspected, error) {
	s, err := c.Sandboxes.Get(ctx, id)
	if err != nil {
		return inspected{}, err
	}
	i := inspected{Sandbox: s.Sandbox}
	if s.State == sandpit.StateRunning || s.State == sandpit.StatePaused && !s.Suspended {
		if stats, err := c.Sandboxes.Stats(ctx, id); err == nil {
			i.Stats = &stats
		}
	}
	for _, p := range pools {
		if (s.Provider == "" || s.Provider == p.Provider) && s.Spec.SameMachine(p.Spec) {
			i.Pool = &p
		}
	}
	return i, nil
}

func showInspected(a *app, o output, list []inspected) error {
	if o.quiet || o.isJSON() {
		var ids []string
		for _, i := range list {
			ids = append(ids, string(i.ID))
		}
		return a.showListing(o, listing{document: list, ids: ids})
	}
	return printDetails(a.Out, list, inspected.detailRows)
}

// detailRows returns the table of details. Unknown ones are empty.
func (i inspected) detailRows() [][]string {
	spec := i.Spec
	rows := [][]string{
		{"ID", string(i.ID)},
		{"Name", spec.Name},
		{"State", formatState(i.Sandbox)},
		{"Reason", i.Reason},
		{"Image", cmp.Or(string(spec.Image), string(sandpit.HostImage))},
		{"Provider", i.Provider},
		{"Owner", i.Lease.Owner},
		{"Created", formatTime(i.CreatedAt)},
		{"Last used", formatTime(i.LastUsedAt)},
		{"Deadline", i.formatDeadline()},
		{"Next", i.formatNext()},
		{"Files saved", formatTime(i.CheckpointedAt)},
		{"User", spec.User},
		{"Directory", spec.WorkDir},
		{"Host name", spec.Hostname},
		{"Labels", formatLabels(spec.Labels)},
		{"Environment", formatLabels(spec.Env)},
		{"Secrets", strings.Join(spec.Secrets, ", ")},
	}
	for _, line := range describePolicy(i.Policy) {
		rows = append(rows, []string{"Policy", line})
	}
	rows = append(rows, networkRows(spec.Network)...)
	for _, m := range spec.Mounts {
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		switch {
		case m.Keep:
			access += ", temporary, kept"
		case m.Temporary:
			access += ", temporary"
		}
		rows = append(rows, []string{"Mount", cmp.Or(m.Source, path.Join(m.Volume, m.Subpath)) + ":" + m.Target + ":" + access})
	}
	for _, p := range spec.Ports {
		rows = append(rows, []string{"Port", p.Address() + " -> " + strconv.Itoa(p.Port)})
	}
	if i.Stats != nil {
		rows = append(rows, usageRows(*i.Stats)...)
	} else {
		rows = append(rows, limitRows(spec.Resources)...)
	}
	if i.Pool != nil {
		rows = append(rows, []string{"Pool", fmt.Sprintf("%d ready, %d being made, at least %d", i.Pool.Ready, i.Pool.Making, i.Pool.Size)})
	}
	return rows
}

func (i inspected) formatDeadline() string {
	if i.Lease.Deadline.IsZero() {
		return "none"
	}
	return formatTime(i.Lease.Deadline) + ", " + string(cmp.Or(i.Lease.Action, sandpit.ActionKill))
}

// formatNext returns what happens to a sandbox next without a request.
func (i inspected) formatNext() string {
	if i.Next.Action == "" {
		return formatNext(i.Sandbox)
	}
	text := string(i.Next.Action) + " " + formatTime(i.Next.At) + ", " + i.Next.Cause
	if i.ResumesOnUse {
		text += "; resumes when it is used"
	}
	return text
}

// networkRows returns what a sandbox may reach. The values of headers are left out: they may
// contain text that is meant for the host only.
func networkRows(p sandpit.NetworkPolicy) [][]string {
	if !p.Online {
		return [][]string{{"Network", "offline"}}
	}
	access := "online"
	if len(p.Allow) > 0 {
		access = "online, only what is allowed"
	}
	rows := [][]string{
		{"Network", access},
		{"Allowed", strings.Join(p.Allow, ", ")},
		{"Denied", strings.Join(p.Deny, ", ")},
	}
	for _, h := range p.Headers {
		rows = append(rows, []string{"Header", h.Host + ": " + h.Name + headerSecrets(h.Value)})
	}
	return append(rows, []string{"Network limits", formatNetworkLimits(p.Limits)})
}

// headerSecrets names the secrets that a header's value refers to.
func headerSecrets(value string) string {
	var names []string
	for _, part := range strings.Split(value, "${")[1:] {
		if name, _, ok := strings.Cut(part, "}"); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " (secret " + strings.Join(names, ", ") + ")"
}

func formatNetworkLimits(l sandpit.NetworkLimits) string {
	var parts []string
	if l.Receive > 0 {
		parts = append(parts, "receive "+formatBytes(l.Receive)+"/s")
	}
	if l.Send > 0 {
		parts = append(parts, "send "+formatBytes(l.Send)+"/s")
	}
	if l.Connections > 0 {
		parts = append(parts, formatCount(l.Connections, "connection", "connections"))
	}
	if l.ConnectionRate > 0 {
		parts = append(parts, formatCount(l.ConnectionRate, "new connection", "new connections")+" a second")
	}
	return strings.Join(parts, ", ")
}

func usageRows(s sandpit.Stats) [][]string {
	return [][]string{
		{"CPU", s.CPU.Round(time.Millisecond).String() + formatCPULimit(s.Limits.CPUs)},
		{"Memory", formatBytes(s.Memory) + formatPeak(s.MemoryPeak) + formatLimit(s.Limits.Memory, formatBytes)},
		{"Disk", formatBytes(s.Disk) + formatLimit(s.Limits.Disk, formatBytes)},
		{"Processes", strconv.Itoa(s.PIDs) + formatLimit(int64(s.Limits.PIDs), func(n int64) string { return strconv.FormatInt(n, 10) })},
	}
}

func limitRows(r sandpit.Resources) [][]string {
	var parts []string
	if r.CPUs > 0 {
		parts = append(parts, strconv.FormatFloat(r.CPUs, 'g', -1, 64)+" CPUs")
	}
	if r.Memory > 0 {
		parts = append(parts, formatBytes(r.Memory)+" of memory")
	}
	if r.Disk > 0 {
		parts = append(parts, formatBytes(r.Disk)+" of disk")
	}
	if r.PIDs > 0 {
		parts = append(parts, formatCount(r.PIDs, "process", "processes"))
	}
	return [][]string{{"Limits", strings.Join(parts, ", ")}}
}
