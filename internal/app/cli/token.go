package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

func (a *app) newToken() *cobra.Command {
	cmd := group("token", "List and revoke the tokens that open sandboxes without an API key", `List and revoke the tokens that open sandboxes without an API key: preview URLs, and
the access tokens of E2B's clients. A token ends when it expires or is
revoked, and with its sandbox and the API key that requested it. Everything that it has
opened is then closed.`,
		"  sandpit token ls\n  sandpit token revoke --sandbox work")
	remove := &cobra.Command{
		Use:     "rm ID...",
		Aliases: []string{"remove"},
		Short:   "Revoke tokens", Example: "  sandpit token rm 5d41402abc4b2a76b971",
		Args:              wantArgs(1, -1, "the ID of a token"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachName(ctx, args, c.Tokens.Revoke)
		}),
	}
	cmd.AddCommand(a.newTokenList(), remove, a.newTokenRevoke())
	return cmd
}

func (a *app) newTokenList() *cobra.Command {
	var o output
	var owner, sandbox string
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the valid tokens without their secrets", Example: "  sandpit token ls --sandbox work",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			var id sandpit.ID
			if sandbox != "" {
				var err error
				if id, err = find(ctx, c, sandbox); err != nil {
					return err
				}
			}
			list, err := c.Tokens.List(ctx, owner, id)
			if err != nil {
				return err
			}
			return a.show(o, tokenListing(list))
		}),
	}
	o.add(cmd, "print IDs only")
	cmd.Flags().StringVar(&sandbox, "sandbox", "", "list only the tokens of this `sandbox`")
	cmd.Flags().StringVar(&owner, "owner", "", "list the tokens of this `owner`'s sandboxes; only administrators may name another owner")
	return cmd
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
			t.ID, t.Kind, string(t.Sandbox), port, orElse(t.Key, "-"), orElse(t.Note, "-"), showAge(t.CreatedAt), showAge(t.LastUsedAt), showWhen(t.ExpiresAt),
		})
	}
	return l
}

func (a *app) newTokenRevoke() *cobra.Command {
	var sandbox string
	cmd := &cobra.Command{
		Use:   "revoke --sandbox SANDBOX",
		Short: "Revoke all tokens and links of a sandbox",
		Long: `Revoke all tokens and links of a sandbox: access tokens, signed URLs of files, preview
URLs, tickets and one-time tokens for SSH. Everything that they have opened is closed.
Public ports stay public; API keys and SSH keys keep working.`,
		Example: "  sandpit token revoke --sandbox work",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && sandbox == "" {
				return usageError(cmd, "--sandbox is missing")
			}
			return wantArgs(0, 0, "")(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			id, err := find(ctx, c, sandbox)
			if err != nil {
				return err
			}
			return c.Tokens.RevokeAll(ctx, id)
		}),
	}
	cmd.Flags().StringVar(&sandbox, "sandbox", "", "revoke the tokens of this `sandbox`")
	return cmd
}
