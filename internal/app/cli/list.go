package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

type listOptions struct {
	output
	labels, states []string
	owner          string
	limit          int
	all, wide      bool
}

func (a *app) newList() *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the sandboxes of a server",
		Example: `  sandpit ls
  sandpit ls --label project=x --state stopped
  sandpit rm $(sandpit ls -q --state error)`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			filter, err := o.filter()
			if err != nil {
				return err
			}
			list, err := c.Sandboxes.List(ctx, filter)
			if err != nil {
				return err
			}
			return a.show(o.output, o.listing(list))
		}),
	}
	o.add(cmd, "print IDs only")
	f := cmd.Flags()
	f.StringArrayVar(&o.labels, "label", nil, "only those with this `NAME=VALUE`; may be repeated")
	f.StringArrayVar(&o.states, "state", nil, "only those in this `STATE`; may be repeated")
	f.StringVar(&o.owner, "owner", "", "only those of this `owner`, for who may see everybody's")
	f.IntVar(&o.limit, "limit", 0, "at most this `number`")
	f.BoolVarP(&o.all, "all", "a", false, "also those that were deleted a short while ago")
	f.BoolVar(&o.wide, "wide", false, "more columns")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states(), cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	return cmd
}

// states are all that a sandbox can be in.
func states() []string {
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

func (o *listOptions) filter() (client.Filter, error) {
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
			return f, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--state %q: there is no such state", name),
				"there are: "+strings.Join(states(), ", "))
		}
		f.States = append(f.States, sandpit.State(name))
	}
	if o.all && len(f.States) == 0 {
		f.States = allStates()
	}
	return f, nil
}

func (o *listOptions) listing(list []sandpit.Sandbox) listing {
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
			string(s.ID), orElse(s.Spec.Name, "-"), cmp.Or(string(s.Spec.Image), string(sandpit.HostImage)),
			showState(s), showAge(s.CreatedAt), orElse(showNext(s), "-"),
		}
		if o.wide {
			row = append(row, orElse(s.Lease.Owner, "-"), orElse(s.Provider, "-"),
				orElse(showLabels(s.Spec.Labels), "-"),
				orElse(strings.Join(policyLines(s.Policy), ", "), "-"), orElse(s.Reason, "-"))
		}
		l.ids, l.rows = append(l.ids, string(s.ID)), append(l.rows, row)
	}
	return l
}

type removeOptions struct {
	force, all bool
	labels     []string
}

func (a *app) newRemove() *cobra.Command {
	var o removeOptions
	cmd := &cobra.Command{
		Use:     "rm [flags] SANDBOX...\n  sandpit rm [flags] --all|--label NAME=VALUE",
		Aliases: []string{"remove", "delete"},
		Short:   "Remove sandboxes with everything in them",
		Long: `Remove sandboxes with everything in them, whether they run or not.

--all and --label ask first, and without a terminal they want -f.`,
		Example: `  sandpit rm work
  sandpit rm -f --label project=x`,
		ValidArgsFunction: a.completeSandboxes(0),
		Args: func(cmd *cobra.Command, args []string) error {
			if chosen := o.all || len(o.labels) > 0; chosen == (len(args) > 0) {
				return usageError(cmd, "name sandboxes, or give --all or --label")
			}
			return nil
		},
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error { return a.remove(ctx, c, o, args) }),
	}
	f := cmd.Flags()
	f.BoolP("recursive", "r", false, "accepted out of habit: a sandbox is removed with everything in it")
	f.BoolVarP(&o.force, "force", "f", false, "do not ask, and say nothing of those that are not there")
	f.BoolVar(&o.all, "all", false, "all sandboxes that this key reaches")
	f.StringArrayVar(&o.labels, "label", nil, "those with this `NAME=VALUE`; may be repeated")
	return cmd
}

func (a *app) remove(ctx context.Context, c *client.Client, o removeOptions, args []string) error {
	var ids []sandpit.ID
	var errs []error
	if len(args) > 0 {
		finder := &finder{client: c}
		for _, name := range args {
			id, err := finder.find(ctx, name)
			if err != nil && (!o.force || !isMissing(err)) {
				errs = append(errs, err)
			} else if err == nil && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	} else {
		labels, err := parseLabels(o.labels)
		if err != nil {
			return err
		}
		list, err := c.Sandboxes.List(ctx, client.Filter{Labels: labels})
		if err != nil {
			return err
		}
		if err := a.confirmRemoval(ctx, o, list); err != nil {
			return err
		}
		for _, s := range list {
			ids = append(ids, s.ID)
		}
	}
	err := a.eachID(ctx, ids, func(ctx context.Context, id sandpit.ID) error {
		err := c.Sandboxes.Delete(ctx, id)
		if o.force && isMissing(err) {
			return nil
		}
		return err
	})
	return errors.Join(append(errs, err)...)
}

func isMissing(err error) bool {
	code := sandpit.CodeOf(err)
	return code == sandpit.NotFound || code == sandpit.Gone
}

// confirmRemoval has a person say yes.
func (a *app) confirmRemoval(ctx context.Context, o removeOptions, list []sandpit.Sandbox) error {
	if o.force || len(list) == 0 {
		return nil
	}
	refused := sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "not confirmed; nothing removed (%s selected)", plural(len(list), "sandbox", "sandboxes")),
		"-f skips the question")
	ok, err := a.ask(ctx, "Remove "+listed(list)+"?")
	switch {
	case err != nil:
		return err
	case !ok:
		return refused
	}
	return nil
}
