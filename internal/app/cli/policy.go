package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func (a *app) newPolicy() *cobra.Command {
	var o output
	var p policyFlags
	cmd := &cobra.Command{
		Use:   "policy [flags] SANDBOX",
		Short: "Show and change what happens to a sandbox when nobody uses it",
		Long: `Show and change what happens to a sandbox when nobody uses it, or when it is lost.

Flags change the policy, and what they do not name stays. The policy is printed
then, by the names of the flags. A change counts as a use.`,
		Example: `  sandpit policy work
  sandpit policy work --idle-timeout never
  sandpit policy work --idle-timeout 2h --on-idle stop --auto-delete 7d`,
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.RunE = a.verb(func(ctx context.Context, c *client.Client, args []string) error {
		change, err := p.policy()
		if err != nil {
			return err
		}
		id, err := find(ctx, c, args[0])
		if err != nil {
			return err
		}
		s, err := c.Sandboxes.Get(ctx, id)
		if err != nil {
			return err
		}
		if changed := cmd.Flags().Changed; mergePolicy(&s.Policy, change, changed) {
			if err := c.Sandboxes.SetPolicy(ctx, id, s.Policy); err != nil {
				return err
			}
			if s, err = c.Sandboxes.Get(ctx, id); err != nil {
				return err
			}
		}
		return a.show(o, policyListing(s.Policy))
	})
	o.add(cmd, "")
	p.add(cmd, cmd.Flags())
	return cmd
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
		{"idle-timeout", spanOrNever(p.IdleTimeout)},
		{"on-idle", orElse(string(p.IdleAction), "-")},
		{"auto-stop", spanOrNever(p.AutoStop)},
		{"freeze", spanOrNever(p.AutoSuspend)},
		{"wake-on-use", strconv.FormatBool(p.WakeOnUse)},
		{"checkpoint-every", spanOrNever(p.CheckpointEvery)},
		{"auto-archive", spanOrNever(p.AutoArchive)},
		{"auto-delete", spanOrNever(p.AutoDelete)},
		{"recreate", strconv.Itoa(p.Recreate)},
		{"ignore-background", strconv.FormatBool(p.IgnoreBackground)},
	}}
}

// policyLines say what a policy has happen, one line for each.
func policyLines(p sandpit.Policy) []string {
	var lines []string
	add := func(d time.Duration, format string) {
		if d > 0 {
			lines = append(lines, fmt.Sprintf(format, showSpan(d)))
		}
	}
	add(p.IdleTimeout, string(p.IdleAction)+" after %s without use")
	add(p.AutoStop, "stop after %s without use")
	add(p.AutoSuspend, "suspend after %s without use or paused")
	add(p.AutoArchive, "archive after %s stopped")
	add(p.AutoDelete, "delete after %s stopped or archived")
	add(p.CheckpointEvery, "save files every %s")
	if p.Recreate > 0 {
		lines = append(lines, "recreate "+plural(p.Recreate, "time", "times"))
	}
	if p.WakeOnUse {
		lines = append(lines, "resume on use")
	}
	if p.IgnoreBackground {
		lines = append(lines, "ignore background programs")
	}
	return lines
}

// showNext says in few words what happens to a sandbox next without a request, "" for nothing.
func showNext(s sandpit.Sandbox) string {
	switch {
	case s.Next.Action != "":
		return string(s.Next.Action) + " " + showWhen(s.Next.At)
	case s.ResumesOnUse:
		return "resume on use"
	case s.State == sandpit.StateRunning && s.Policy.IdleTimeout > 0: // it is in use
		return string(s.Policy.IdleAction) + " " + showSpan(s.Policy.IdleTimeout) + " after use"
	default:
		return ""
	}
}

func spanOrNever(d time.Duration) string {
	if d <= 0 {
		return never
	}
	return showSpan(d)
}

// showSpan writes a duration as flags take it, such as 2d, 1h or 1h30m.
func showSpan(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
