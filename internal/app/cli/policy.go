package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// policyCommand has the options of sandpit policy.
type policyCommand struct {
	output
	flags   policyFlags
	changed func(flag string) bool
}

func newPolicy(a *app) *cobra.Command {
	var o policyCommand
	cmd := &cobra.Command{
		Use:   "policy [flags] SANDBOX",
		Short: "Show and change the policy of a sandbox",
		Long: `Show and change the policy of a sandbox: what happens when it is idle or lost.

Flags change the policy; the rest stays. The policy is printed afterwards, by the names of
the flags. A change counts as activity.`,
		Example: `  sandpit policy work
  sandpit policy work --idle-timeout never
  sandpit policy work --idle-timeout 2h --on-idle stop --auto-delete 7d`,
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	o.changed = cmd.Flags().Changed
	cmd.RunE = a.withClient(o.run)
	o.addFlags(cmd, "")
	o.flags.addFlags(cmd, cmd.Flags())
	return cmd
}

func (o *policyCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	change, err := o.flags.toPolicy()
	if err != nil {
		return err
	}
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	s, err := c.Sandboxes.Get(ctx, id)
	if err != nil {
		return err
	}
	if mergePolicy(&s.Policy, change, o.changed) {
		if err := c.Sandboxes.SetPolicy(ctx, id, s.Policy); err != nil {
			return err
		}
		if s, err = c.Sandboxes.Get(ctx, id); err != nil {
			return err
		}
	}
	return a.showListing(o.output, policyListing(s.Policy))
}

// mergePolicy sets the fields of a policy whose flags were given, and reports whether there are
// any.
func mergePolicy(p *sandpit.Policy, change sandpit.Policy, given func(flag string) bool) bool {
	merged := false
	for flag, set := range map[string]func(){
		"idle-timeout":      func() { p.IdleTimeout = change.IdleTimeout },
		"on-idle":           func() { p.IdleAction = change.IdleAction },
		"auto-stop":         func() { p.AutoStop = change.AutoStop },
		"freeze":            func() { p.AutoSuspend = change.AutoSuspend },
		"wake-on-use":       func() { p.WakeOnUse = change.WakeOnUse },
		"checkpoint-every":  func() { p.CheckpointEvery = change.CheckpointEvery },
		"auto-archive":      func() { p.AutoArchive = change.AutoArchive },
		"auto-delete":       func() { p.AutoDelete = change.AutoDelete },
		"recreate":          func() { p.Recreate = change.Recreate },
		"ignore-background": func() { p.IgnoreBackground = change.IgnoreBackground },
	} {
		if given(flag) {
			set()
			merged = true
		}
	}
	return merged
}

func policyListing(p sandpit.Policy) listing {
	return listing{document: p, rows: [][]string{
		{"NAME", "VALUE"},
		{"idle-timeout", formatDurationOrNever(p.IdleTimeout)},
		{"on-idle", cmp.Or(string(p.IdleAction), "-")},
		{"auto-stop", formatDurationOrNever(p.AutoStop)},
		{"freeze", formatDurationOrNever(p.AutoSuspend)},
		{"wake-on-use", strconv.FormatBool(p.WakeOnUse)},
		{"checkpoint-every", formatDurationOrNever(p.CheckpointEvery)},
		{"auto-archive", formatDurationOrNever(p.AutoArchive)},
		{"auto-delete", formatDurationOrNever(p.AutoDelete)},
		{"recreate", strconv.Itoa(p.Recreate)},
		{"ignore-background", strconv.FormatBool(p.IgnoreBackground)},
	}}
}

// describePolicy returns the actions of a policy, one line for each.
func describePolicy(p sandpit.Policy) []string {
	var lines []string
	add := func(d time.Duration, format string) {
		if d > 0 {
			lines = append(lines, fmt.Sprintf(format, formatDuration(d)))
		}
	}
	add(p.IdleTimeout, string(p.IdleAction)+" after %s without use")
	add(p.AutoStop, "stop after %s without use")
	add(p.AutoSuspend, "suspend after %s without use or paused")
	add(p.AutoArchive, "archive after %s stopped")
	add(p.AutoDelete, "delete after %s stopped or archived")
	add(p.CheckpointEvery, "save files every %s")
	if p.Recreate > 0 {
		lines = append(lines, "recreate "+formatCount(p.Recreate, "time", "times"))
	}
	if p.WakeOnUse {
		lines = append(lines, "resume on use")
	}
	if p.IgnoreBackground {
		lines = append(lines, "ignore background programs")
	}
	return lines
}

// formatNext returns a short text about what happens to a sandbox next without a request; ""
// means nothing.
func formatNext(s sandpit.Sandbox) string {
	switch {
	case s.Next.Action != "":
		return string(s.Next.Action) + " " + formatWhen(s.Next.At)
	case s.ResumesOnUse:
		return "resume on use"
	case s.State == sandpit.StateRunning && s.Policy.IdleTimeout > 0: // the sandbox is in use
		return string(s.Policy.IdleAction) + " " + formatDuration(s.Policy.IdleTimeout) + " after use"
	default:
		return ""
	}
}

// policyFlags are the flags of a sandbox's policy.
type policyFlags struct {
	idle, action                      string
	autoStop, autoArchive, autoDelete string
	freeze, checkpointEvery           string
	recreate                          int
	ignoreBackground, wakeOnUse       bool
}

func (p *policyFlags) addFlags(cmd *cobra.Command, f *pflag.FlagSet) {
	f.StringVar(&p.idle, "idle-timeout", "", "`time` without use until --on-idle happens, or never (default the server's)")
	addChoice(cmd, &p.action, "on-idle", "`ACTION` when the sandbox is idle: suspend, stop, pause or kill; all but kill keep its files, and its next use resumes it (default the server's, which is suspend where that is possible)", actionNames()...)
	f.StringVar(&p.autoStop, "auto-stop", "", "`time` without use until it is stopped (default never)")
	f.StringVar(&p.freeze, "freeze", "", "`time` without use, or paused in memory, until it is suspended (default never)")
	f.BoolVar(&p.wakeOnUse, "wake-on-use", false, "resume on use, whatever paused or stopped the sandbox")
	f.StringVar(&p.checkpointEvery, "checkpoint-every", "", "`time` between two checkpoints of its files, for --recreate (default never)")
	f.StringVar(&p.autoArchive, "auto-archive", "", "`time` stopped until it is archived (default never)")
	f.StringVar(&p.autoDelete, "auto-delete", "", "`time` stopped or archived until it is deleted (default never)")
	f.IntVar(&p.recreate, "recreate", 0, "`number` of times that the sandbox is recreated after it was lost, with its saved files if there are any")
	f.BoolVar(&p.ignoreBackground, "ignore-background", false, "count the sandbox as idle even while programs run in it")
}

func (p *policyFlags) toPolicy() (sandpit.Policy, error) {
	var errs []error
	at := func(flag, text string) time.Duration {
		d, err := parseDurationOrNever(flag, text)
		errs = append(errs, err)
		return d
	}
	policy := sandpit.Policy{
		IdleTimeout: at("--idle-timeout", p.idle), IdleAction: sandpit.Action(p.action),
		AutoStop: max(0, at("--auto-stop", p.autoStop)), AutoArchive: max(0, at("--auto-archive", p.autoArchive)),
		AutoDelete: max(0, at("--auto-delete", p.autoDelete)), Recreate: p.recreate, IgnoreBackground: p.ignoreBackground,
		AutoSuspend: max(0, at("--freeze", p.freeze)), CheckpointEvery: max(0, at("--checkpoint-every", p.checkpointEvery)),
		WakeOnUse: p.wakeOnUse,
	}
	return policy, errors.Join(errs...)
}

// actionNames returns the actions of deadlines and idle policies.
func actionNames() []string {
	return []string{
		string(sandpit.ActionKill), string(sandpit.ActionStop), string(sandpit.ActionPause), string(sandpit.ActionSuspend),
	}
}
