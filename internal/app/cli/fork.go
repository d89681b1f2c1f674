package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// maxForks is how many forks a server creates at once.
const maxForks = 100

// forkCommand has the options of sandpit fork.
type forkCommand struct {
	output
	count                int
	labels, env, secrets []string
}

func newFork(a *app) *cobra.Command {
	var o forkCommand
	cmd := &cobra.Command{
		Use:   "fork [flags] SANDBOX",
		Short: "Fork a sandbox",
		Long: `Create new sandboxes from the current state of a running or paused one, which keeps
running, and print their IDs. They begin with its files and, if its provider saves memory,
with its running programs. They have its deadline, policy, labels and environment, but
neither its secrets, its name nor its published ports. Either all are created or none.`,
		Example:           "  sandpit fork work\n  sandpit fork -n 5 --label try=1 -e SEED=1 work",
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print IDs only (the default)")
	f := cmd.Flags()
	f.IntVarP(&o.count, "count", "n", 1, "`number` of forks, up to 100")
	f.StringArrayVar(&o.labels, "label", nil, "additional label `NAME=VALUE` of the forks")
	f.StringArrayVarP(&o.env, "env", "e", nil, "environment `NAME=VALUE` of commands started in the forks, or NAME to pass this shell's value")
	f.StringArrayVar(&o.secrets, "secret", nil, "secret of the forks, which do not get the sandbox's: `NAME` of a variable of this shell, or NAME=@FILE")
	return cmd
}

func (o *forkCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	if o.count < 1 || o.count > maxForks {
		return sandpit.Errorf(sandpit.Invalid, "--count %d: want 1 to %d", o.count, maxForks)
	}
	r, err := newForkRequest(a, o.count, o.labels, o.env, o.secrets)
	if err != nil {
		return err
	}
	id, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return err
	}
	made, err := c.Sandboxes.Fork(ctx, id, r)
	if err != nil {
		return err
	}
	l := listing{}
	boxes := make([]sandpit.Sandbox, len(made))
	for i, s := range made {
		boxes[i], l.ids = s.Sandbox, append(l.ids, string(s.ID))
	}
	if l.document = boxes; o.quiet || o.isJSON() {
		return a.showListing(o.output, l)
	}
	for _, id := range l.ids {
		if _, err := fmt.Fprintln(a.Out, id); err != nil {
			return err
		}
	}
	return nil
}

func newForkRequest(a *app, count int, labels, env, secrets []string) (client.ForkRequest, error) {
	r := client.ForkRequest{Count: count}
	if count < 1 {
		return r, sandpit.Errorf(sandpit.Invalid, "-n %d: want 1 or more", count)
	}
	var err error
	if r.Labels, err = parseLabels(labels); err != nil {
		return r, err
	}
	if r.Env, err = a.parseEnv(env); err != nil {
		return r, err
	}
	given, err := networkFlags{secrets: secrets}.readSecrets(a)
	r.Secrets = given.programs
	return r, err
}
