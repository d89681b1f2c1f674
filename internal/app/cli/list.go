package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

type listCommand struct {
	output
	labels, states []string
	owner          string
	limit          int
	all, wide      bool
}

func newList(a *app) *cobra.Command {
	var o listCommand
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the sandboxes of a server",
		Example: `  sandpit ls
  sandpit ls --label project=x --state stopped
  sandpit rm $(sandpit ls -q --state error)`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print IDs only")
	f := cmd.Flags()
	f.StringArrayVar(&o.labels, "label", nil, "only those with this `NAME=VALUE`; may be repeated")
	f.StringArrayVar(&o.states, "state", nil, "only those in this `STATE`; may be repeated")
	f.StringVar(&o.owner, "owner", "", "only those of this `owner`; other owners are for administrators")
	f.IntVar(&o.limit, "limit", 0, "at most this `number`")
	f.BoolVarP(&o.all, "all", "a", false, "include those that were deleted a short while ago")
	f.BoolVar(&o.wide, "wide", false, "show more columns")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

func (o *listCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	filter, err := o.toFilter()
	if err != nil {
		return err
	}
	list, err := c.Sandboxes.List(ctx, filter)
	if err != nil {
		return err
	}
	return a.showListing(o.output, o.toListing(list))
}

// stateNames returns all states of sandboxes.
func stateNames() []string {
	var names []string
	for _, s := range allStates() {
		names = append(names, string(s))
	}
	return names
}

func allStates() []sandpit.State {
	return []sandpit.State{
		sandpit.StateCreating, sandpit.StateRunning, sandpit.StatePausing, sandpit.StatePaused, sandpit.StateResuming,
		sandpit.StateStopping, sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived,
		sandpit.StateRestoring, sandpit.StateError, sandpit.StateDeleting, sandpit.StateDeleted,
	}
}

func (o *listCommand) toFilter() (client.Filter, error) {
	f := client.Filter{Owner: o.owner, Limit: o.limit}
	var err error
	if f.Labels, err = parseLabels(o.labels); err != nil {
		return f, err
	}
	if o.limit < 0 {
		return f, sandpit.Errorf(sandpit.Invalid, "--limit %d: want a number above 0", o.limit)
	}
	for _, name := range o.states {
		if !sandpit.State(name).Valid() {
			return f, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--state %q: unknown state", name),
				"valid states: "+strings.Join(stateNames(), ", "))
		}
		f.States = append(f.States, sandpit.State(name))
	}
	if o.all && len(f.States) == 0 {
		f.States = allStates()
	}
	return f, nil
}

func (o *listCommand) toListing(list []sandpit.Sandbox) listing {
	if list == nil {
		list = []sandpit.Sandbox{}
	}
	slices.SortStableFunc(list, func(x, y sandpit.Sandbox) int { return y.CreatedAt.Compare(x.CreatedAt) })
	l := listing{document: list, rows: [][]string{{"ID", "NAME", "IMAGE", "STATE", "CREATED", "NEXT"}}, paint: paintState}
	if o.wide {
		l.rows[0] = append(l.rows[0], "OWNER", "PROVIDER", "LABELS", "POLICY", "REASON")
	}
	for _, s := range list {
		row := []string{
			string(s.ID), cmp.Or(s.Spec.Name, "-"), cmp.Or(string(s.Spec.Image), string(sandpit.HostImage)),
			formatState(s), formatAge(s.CreatedAt), cmp.Or(formatNext(s), "-"),
		}
		if o.wide {
			row = append(row, cmp.Or(s.Lease.Owner, "-"), cmp.Or(s.Provider, "-"),
				cmp.Or(formatLabels(s.Spec.Labels), "-"),
				cmp.Or(strings.Join(describePolicy(s.Policy), ", "), "-"), cmp.Or(s.Reason, "-"))
		}
		l.ids, l.rows = append(l.ids, string(s.ID)), append(l.rows, row)
	}
	return l
}
