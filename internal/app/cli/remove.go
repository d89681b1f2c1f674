package cli

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

type removeCommand struct {
	force, all bool
	labels     []string
}

func newRemove(a *app) *cobra.Command {
	var o removeCommand
	cmd := &cobra.Command{
		Use:     "rm [flags] SANDBOX...\n  sandpit rm [flags] --all|--label NAME=VALUE",
		Aliases: []string{"remove", "delete"},
		Short:   "Delete sandboxes",
		Long: `Delete sandboxes with all their data, running or not.

--all and --label ask for confirmation; without a terminal they need -f.`,
		Example: `  sandpit rm work
  sandpit rm -f --label project=x`,
		ValidArgsFunction: a.completeSandboxes(0),
		Args: func(cmd *cobra.Command, args []string) error {
			if chosen := o.all || len(o.labels) > 0; chosen == (len(args) > 0) {
				return usageError(cmd, "name sandboxes, or give --all or --label")
			}
			return nil
		},
		RunE: a.withClient(o.run),
	}
	f := cmd.Flags()
	f.BoolP("recursive", "r", false, "accepted for compatibility: a sandbox is always deleted with all its data")
	f.BoolVarP(&o.force, "force", "f", false, "do not ask for confirmation, and ignore missing sandboxes")
	f.BoolVar(&o.all, "all", false, "all sandboxes that this key can use")
	f.StringArrayVar(&o.labels, "label", nil, "those with this `NAME=VALUE`; may be repeated")
	return cmd
}

func (o *removeCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	var ids []sandpit.ID
	var errs []error
	if len(args) > 0 {
		finder := &finder{client: c}
		for _, name := range args {
			id, err := finder.findID(ctx, name)
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
		if err := o.confirmRemoval(ctx, a, list); err != nil {
			return err
		}
		for _, s := range list {
			ids = append(ids, s.ID)
		}
	}
	err := a.forEachID(ctx, ids, func(ctx context.Context, id sandpit.ID) error {
		err := c.Sandboxes.Delete(ctx, id)
		if o.force && isMissing(err) {
			return nil
		}
		return err
	})
	return errors.Join(append(errs, err)...)
}

// confirmRemoval asks for confirmation unless --force is set.
func (o *removeCommand) confirmRemoval(ctx context.Context, a *app, list []sandpit.Sandbox) error {
	if o.force || len(list) == 0 {
		return nil
	}
	refused := sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "not confirmed; nothing removed (%s selected)", formatCount(len(list), "sandbox", "sandboxes")),
		"use -f to skip the question")
	ok, err := a.askYesNo(ctx, "Remove "+joinNames(list)+"?")
	switch {
	case err != nil:
		return err
	case !ok:
		return refused
	}
	return nil
}

func isMissing(err error) bool {
	code := sandpit.CodeOf(err)
	return code == sandpit.NotFound || code == sandpit.Gone
}
