package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

// inspected is everything that is known about a sandbox.
type inspected struct {
	sandpit.Sandbox
	// Stats are there while it runs or is paused, and its provider can measure it.
	Stats *sandpit.Stats `json:"stats,omitempty"`
	// Pool is where another sandbox of its kind would come from.
	Pool *api.Pool `json:"pool,omitempty"`
}

func (a *app) newInspect() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "inspect [flags] SANDBOX...",
		Short: "Show everything that is known about sandboxes",
		Long: `Show everything that is known about sandboxes, also of those that were deleted a
short while ago. As JSON it is a list, also for one.`,
		Example: `  sandpit inspect work
  sandpit inspect -o json work | jq '.[0].lease'`,
		Args:              wantArgs(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(0),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			ids, missing := (&finder{client: c}).findAll(ctx, args)
			pools, _ := c.Pools(ctx) // they are an extra
			list := make([]inspected, len(ids))
			errs := parallel(indices(ids), func(i int) error {
				var err error
				list[i], err = inspect(ctx, c, ids[i], pools)
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
			return errors.Join(append(errs, missing, a.showInspected(o, found))...)
		}),
	}
	o.add(cmd, "print IDs only")
	return cmd
}

// showState is a state, and where what is paused is.
func showState(s sandpit.Sandbox) string {
	if s.State == sandpit.StatePaused && s.Suspended {
		return string(s.State) + " on disk"
	}
	return string(s.State)
}

func indices[T any](list []T) []int {
	all := make([]int, len(list))
	for i := range list {
		all[i] = i
	}
	return all
}

func inspect(ctx context.Context, c *client.Client, id sandpit.ID, pools []api.Pool) (inspected, error) {
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

func (a *app) showInspected(o output, list []inspected) error {
	if o.quiet || o.json() {
		var ids []string
		for _, i := range list {
			ids = append(ids, string(i.ID))
		}
		return a.show(o, listing{document: list, ids: ids})
	}
	for n, i := range list {
		if n > 0 {
			fmt.Fprintln(a.Out)
		}
		if err := layTable(a.Out, append([][]string{{"ID", string(i.ID)}}, i.facts()...), nil); err != nil {
			return err
		}
	}
	return nil
}

// facts are for people: what is not known, or not said, is left out.
func (i inspected) facts() [][]string {
	spec := i.Spec
	rows := [][]string{
		{"Name", spec.Name},
		{"State", showState(i.Sandbox)},
		{"Reason", i.Reason},
		{"Image", cmp.Or(string(spec.Image), string(sandpit.HostImage))},
		{"Provider", i.Provider},
		{"Owner", i.Lease.Owner},
		{"Created", showTime(i.CreatedAt)},
		{"Last used", showTime(i.LastUsedAt)},
		{"Deadline", i.deadline()},
		{"Next", i.next()},
		{"Files saved", showTime(i.CheckpointedAt)},
		{"User", spec.User},
		{"Directory", spec.WorkDir},
		{"Host name", spec.Hostname},
		{"Labels", showLabels(spec.Labels)},
		{"Environment", showLabels(spec.Env)},
		{"Secrets", strings.Join(spec.Secrets, ", ")},
	}
	for _, line := range policyLines(i.Policy) {
		rows = append(rows, []string{"Policy", line})
	}
	rows = append(rows, networkFacts(spec.Network)...)
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
		rows = append(rows, []string{"Mount", cmp.Or(m.Source, m.Volume) + ":" + m.Target + ":" + access})
	}
	for _, p := range spec.Ports {
		rows = append(rows, []string{"Port", p.Address() + " -> " + strconv.Itoa(p.Port)})
	}
	if i.Stats != nil {
		rows = append(rows, statFacts(*i.Stats)...)
	} else {
		rows = append(rows, limitFacts(spec.Resources)...)
	}
	if i.Pool != nil {
		rows = append(rows, []string{"Pool", fmt.Sprintf("%d ready, %d being made, at least %d", i.Pool.Ready, i.Pool.Making, i.Pool.Size)})
	}
	return slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
}

func (i inspected) deadline() string {
	if i.Lease.Deadline.IsZero() {
		return "none"
	}
	return showTime(i.Lease.Deadline) + ", " + string(cmp.Or(i.Lease.Action, sandpit.ActionKill))
}

// next says what happens to a sandbox next without a request.
func (i inspected) next() string {
	if i.Next.Action == "" {
		return showNext(i.Sandbox)
	}
	text := string(i.Next.Action) + " " + showTime(i.Next.At) + ", " + i.Next.Cause
	if i.ResumesOnUse {
		text += "; resumes when it is used"
	}
	return text
}

// networkFacts say what a sandbox may reach. The values of headers are left out: beside the
// names of secrets they may hold text that is meant for the host only.
func networkFacts(p sandpit.NetworkPolicy) [][]string {
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
	return append(rows, []string{"Network limits", showNetworkLimits(p.Limits)})
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

func showNetworkLimits(l sandpit.NetworkLimits) string {
	var parts []string
	if l.Receive > 0 {
		parts = append(parts, "receive "+size(l.Receive)+"/s")
	}
	if l.Send > 0 {
		parts = append(parts, "send "+size(l.Send)+"/s")
	}
	if l.Connections > 0 {
		parts = append(parts, plural(l.Connections, "connection", "connections"))
	}
	if l.ConnectionRate > 0 {
		parts = append(parts, plural(l.ConnectionRate, "new connection", "new connections")+" a second")
	}
	return strings.Join(parts, ", ")
}

func statFacts(s sandpit.Stats) [][]string {
	return [][]string{
		{"CPU", s.CPU.Round(time.Millisecond).String() + ofCPUs(s.Limits.CPUs)},
		{"Memory", size(s.Memory) + peak(s.MemoryPeak) + of(s.Limits.Memory, size)},
		{"Disk", size(s.Disk) + of(s.Limits.Disk, size)},
		{"Processes", strconv.Itoa(s.PIDs) + of(int64(s.Limits.PIDs), func(n int64) string { return strconv.FormatInt(n, 10) })},
	}
}

func limitFacts(r sandpit.Resources) [][]string {
	var parts []string
	if r.CPUs > 0 {
		parts = append(parts, strconv.FormatFloat(r.CPUs, 'g', -1, 64)+" CPUs")
	}
	if r.Memory > 0 {
		parts = append(parts, size(r.Memory)+" of memory")
	}
	if r.Disk > 0 {
		parts = append(parts, size(r.Disk)+" of disk")
	}
	if r.PIDs > 0 {
		parts = append(parts, plural(r.PIDs, "process", "processes"))
	}
	return [][]string{{"Limits", strings.Join(parts, ", ")}}
}

// showTime is a time, and how far it is.
func showTime(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Local().Format(time.DateTime) + " (" + showWhen(at) + ")"
}
