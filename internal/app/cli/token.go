package cli

import (
	"cmp"
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

func newToken(a *app) *cobra.Command {
	cmd := newGroup("token", "List and revoke the tokens that open sandboxes without an API key", `List and revoke the tokens that open sandboxes without an API key: preview URLs, and
the access tokens of E2B's clients. A token ends when it expires or is
revoked, and with its sandbox and the API key that requested it. Everything that it has
opened is then closed.`,
		"  sandpit token ls\n  sandpit token revoke --sandbox work")
	cmd.AddCommand(newTokenList(a), newTokenRemove(a), newTokenRevoke(a))
	return cmd
}

func newTokenRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "rm ID...",
		Aliases: []string{"remove"},
		Short:   "Revoke tokens", Example: "  sandpit token rm 5d41402abc4b2a76b971",
		Args:              wantArgs(1, -1, "the ID of a token"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(runTokenRemove),
	}
}

func runTokenRemove(ctx context.Context, a *app, c *client.Client, args []string) error {
	return a.forEachName(ctx, args, c.Tokens.Revoke)
}

// tokenListCommand has the options of sandpit token ls.
type tokenListCommand struct {
	output
	owner, sandbox string
}

func newTokenList(a *app) *cobra.Command {
	var o tokenListCommand
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the valid tokens without their secrets", Example: "  sandpit token ls --sandbox work",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print IDs only")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "list only the tokens of this `sandbox`")
	cmd.Flags().StringVar(&o.owner, "owner", "", "list the tokens of this `owner`'s sandboxes; only administrators may name another owner")
	return cmd
}

func (o *tokenListCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	var id sandpit.ID
	if o.sandbox != "" {
		var err error
		if id, err = findSandbox(ctx, c, o.sandbox); err != nil {
			return err
		}
	}
	list, err := c.Tokens.List(ctx, o.owner, id)
	if err != nil {
		return err
	}
	return a.showListing(o.output, tokenListing(list))
}

func tokenListing(list []api.Token) listing {
	if list == nil {
		list = []api.Token{}
	}
	l := listing{document: list, rows: [][]string{{"ID", "KIND", "SANDBOX", "PORT", "KEY", "NOTE", "CREATED", "USED", "EXPIRES"}}}
	for _, t := range list {
		port := "all"
		if t.Port > 0 {
			port = strconv.Itoa(t.Port)
		}
		l.ids = append(l.ids, t.ID)
		l.rows = append(l.rows, []string{
			t.ID, t.Kind, string(t.Sandbox), port, cmp.Or(t.Key, "-"), cmp.Or(t.Note, "-"), formatAge(t.CreatedAt), formatAge(t.LastUsedAt), formatWhen(t.ExpiresAt),
		})
	}
	return l
}

// tokenRevokeCommand has the options of sandpit token revoke.
type tokenRevokeCommand struct {
	sandbox string
}

func newTokenRevoke(a *app) *cobra.Command {
	var o tokenRevokeCommand
	cmd := &cobra.Command{
		Use:   "revoke --sandbox SANDBOX",
		Short: "Revoke all tokens and links of a sandbox",
		Long: `Revoke all tokens and links of a sandbox: access tokens, signed URLs of files, preview
URLs, tickets and one-time tokens for SSH. Everything that they have opened is closed.
Public ports stay public; API keys and SSH keys keep working.`,
		Example: "  sandpit token revoke --sandbox work",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && o.sandbox == "" {
				return usageError(cmd, "--sandbox is missing")
			}
			return wantArgs(0, 0, "")(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "revoke the tokens of this `sandbox`")
	return cmd
}

func (o *tokenRevokeCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	id, err := findSandbox(ctx, c, o.sandbox)
	if err != nil {
		return err
	}
	return c.Tokens.RevokeAll(ctx, id)
}
