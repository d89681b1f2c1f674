package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

func newKey(a *app) *cobra.Command {
	cmd := newGroup("key", "Create, list and delete the API keys of a server", `Create, list and delete the API keys of a server. It needs an administrator's key or the
server's own socket.`, "  sandpit key create --owner alice\n  sandpit key ls")
	cmd.AddCommand(newKeyCreate(a), newKeyList(a), newKeyRemove(a))
	return cmd
}

// keyCreateCommand has the options of sandpit key create.
type keyCreateCommand struct {
	output
	owner, name, ttl string
	admin            bool
}

func newKeyCreate(a *app) *cobra.Command {
	var o keyCreateCommand
	cmd := &cobra.Command{
		Use:   "create [flags] --owner OWNER",
		Short: "Create an API key",
		Long: `Create an API key and print its secret, which cannot be shown again. The secret opens the
sandboxes of OWNER.`,
		Example: `  sandpit key create --owner alice --name laptop
  SANDPIT_API_KEY=$(sandpit key create -q --owner ci --ttl 30d)`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && o.owner == "" {
				return usageError(cmd, "--owner is missing")
			}
			return wantArgs(0, 0, "")(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print the secret only")
	f := cmd.Flags()
	f.StringVar(&o.owner, "owner", "", "`name` of the owner whose sandboxes it opens")
	f.StringVar(&o.name, "name", "", "`name` of the key, a comment")
	f.StringVar(&o.ttl, "ttl", "", "`time` that it is valid, such as 30d (default unlimited)")
	f.BoolVar(&o.admin, "admin", false, "give it all rights, including those over the server itself")
	return cmd
}

func (o *keyCreateCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	d, err := parseDurationOrNever("--ttl", o.ttl)
	if err != nil {
		return err
	}
	key, err := c.Keys.Create(ctx, o.owner, o.name, max(0, d), o.admin)
	if err != nil {
		return err
	}
	if o.quiet || o.isJSON() {
		return a.showListing(o.output, listing{document: key, ids: []string{key.Secret}})
	}
	if _, err := fmt.Fprintln(a.Out, escapeText(key.Secret)); err != nil {
		return err
	}
	fmt.Fprintf(a.Err, "sandpit: key %s of %s; the secret above cannot be shown again\n", escapeText(key.ID), escapeText(key.Owner))
	return nil
}

// keyListCommand has the options of sandpit key ls.
type keyListCommand struct {
	output
}

func newKeyList(a *app) *cobra.Command {
	var o keyListCommand
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the API keys, without their secrets", Example: "  sandpit key ls",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print IDs only")
	return cmd
}

func (o *keyListCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	list, err := c.Keys.List(ctx)
	if err != nil {
		return err
	}
	if list == nil {
		list = []api.Key{}
	}
	l := listing{document: list, rows: [][]string{{"ID", "NAME", "OWNER", "ADMIN", "CREATED", "USED", "EXPIRES"}}}
	for _, k := range list {
		l.ids = append(l.ids, k.ID)
		l.rows = append(l.rows, []string{
			k.ID, cmp.Or(k.Name, "-"), k.Owner, formatYesNo(k.Admin), formatAge(k.CreatedAt), formatAge(k.LastUsedAt), formatWhen(k.ExpiresAt),
		})
	}
	return a.showListing(o.output, l)
}

func newKeyRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "rm ID...",
		Aliases: []string{"remove"},
		Short:   "Delete API keys", Example: "  sandpit key rm k3x9",
		Args:              wantArgs(1, -1, "the ID of a key"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(runKeyRemove),
	}
}

func runKeyRemove(ctx context.Context, a *app, c *client.Client, args []string) error {
	return a.forEachName(ctx, args, c.Keys.Delete)
}
