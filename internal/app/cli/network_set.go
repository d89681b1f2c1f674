package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

// networkSetCommand has the options of sandpit network set.
type networkSetCommand struct {
	output
	rules networkFlags
	given func(flag string) bool
}

func newNetworkSet(a *app) *cobra.Command {
	var o networkSetCommand
	cmd := &cobra.Command{
		Use:   "set [flags] SANDBOX",
		Short: "Replace the network rules of a running sandbox",
		Long: `Replace the network rules of a running sandbox. Connections that the new rules forbid are
closed, all others stay open. Only the kinds of rules whose flags are given change; an empty
value, as in --allow '' or --connections 0, removes all rules of its kind. Secrets are added
to the existing ones.`,
		Example: `  sandpit network set work --allow '*.python.org:443' --allow '*.pythonhosted.org:443'
  sandpit network set work --header 'api.example.org:Authorization=Bearer ${TOKEN}' --secret TOKEN
  sandpit network set work --allow '' --deny 203.0.113.0/24`,
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	o.given = cmd.Flags().Changed
	cmd.RunE = a.withClient(o.run)
	o.addFlags(cmd, "")
	o.rules.addFlags(cmd.Flags())
	return cmd
}

func (o *networkSetCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	rules, err := o.rules.toPolicy(true)
	if err != nil {
		return err
	}
	secrets, err := a.parseSecrets(o.rules.secrets)
	if err != nil {
		return err
	}
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	old, err := c.Networks.Get(ctx, id)
	if err != nil {
		return err
	}
	p := mergeRules(old.Policy, rules, o.given)
	set, err := c.Networks.Set(ctx, id, api.SetNetwork{
		Allow: p.Allow, Deny: p.Deny, Headers: p.Headers, Limits: p.Limits, Secrets: secrets,
	})
	if err != nil {
		return err
	}
	return a.showListing(o.output, networkListing(set))
}

// mergeRules returns the old policy with the values whose flags were given.
func mergeRules(old, given sandpit.NetworkPolicy, flag func(name string) bool) sandpit.NetworkPolicy {
	rules := func(name string, old, given []string) []string {
		if !flag(name) {
			return old
		}
		return slices.DeleteFunc(given, func(rule string) bool { return rule == "" })
	}
	p := old
	p.Allow, p.Deny = rules("allow", old.Allow, given.Allow), rules("deny", old.Deny, given.Deny)
	if flag("header") {
		p.Headers = given.Headers
	}
	if flag("receive") {
		p.Limits.Receive = given.Limits.Receive
	}
	if flag("send") {
		p.Limits.Send = given.Limits.Send
	}
	if flag("connections") {
		p.Limits.Connections = given.Limits.Connections
	}
	if flag("connection-rate") {
		p.Limits.ConnectionRate = given.Limits.ConnectionRate
	}
	return p
}
