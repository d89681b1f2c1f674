package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// newGroup returns a command that only has subcommands.
func newGroup(name, short, long, example string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Long: long, Example: example,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

// wantArgs checks the number of arguments; most below zero means no maximum. The text names a
// missing argument.
func wantArgs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least {
			return usageError(cmd, what+" is missing")
		}
		if most >= 0 && len(args) > most {
			return usageError(cmd, fmt.Sprintf("too many arguments: %q", args[most]))
		}
		return nil
	}
}

// withClient returns the RunE of a command that sends requests to a server.
func (a *app) withClient(run func(ctx context.Context, a *app, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		return a.toVerbError(cmd.Context(), run(cmd.Context(), a, c, args))
	}
}

// withoutClient returns the RunE of a command that needs no server, or decides itself whether it does.
func (a *app) withoutClient(run func(cmd *cobra.Command, a *app, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return run(cmd, a, args) }
}

// toVerbError gives an error the exit status of commands that send requests to a server.
func (a *app) toVerbError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if status, ok := errors.AsType[exitStatus](err); ok {
		return status
	}
	if status, ok := signalStatus(ctx); ok {
		return status
	}
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		err = sandpit.WithHint(err, "set SANDPIT_API_KEY (create a key on the server's machine: sandpit key create); "+
			"as the server's user on its machine, no key is needed: leave --server and SANDPIT_URL out")
	}
	return verbError{err}
}

// noSuchCommand returns a usage error for an unknown command: cobra's own would have another exit
// status.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := usageError(cmd, fmt.Sprintf("unknown command %q", args[0]))
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return sandpit.WithHint(err, "did you mean: "+strings.Join(near, ", ")+"?")
	}
	return err
}

// usageError returns an error for an invalid command line.
func usageError(cmd *cobra.Command, text string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s", text), "see: "+cmd.CommandPath()+" --help")
}

// secondArgument returns the second argument, or "".
func secondArgument(args []string) string {
	if len(args) < 2 {
		return ""
	}
	return args[1]
}

// getEach gets what each argument names, several at a time.
func getEach[T any](args []string, get func(name string) (T, error)) ([]T, error) {
	list := make([]T, len(args))
	errs := runParallel(len(args), func(i int) (err error) {
		list[i], err = get(args[i])
		if err != nil && len(args) > 1 {
			err = fmt.Errorf("%s: %w", args[i], err)
		}
		return err
	})
	return list, errors.Join(errs...)
}

// addOwnerFilter adds --owner to a command that lists.
func addOwnerFilter(cmd *cobra.Command, owner *string) {
	cmd.Flags().StringVar(owner, "owner", "", "`name` of the owner, for administrators (default all owners)")
}

// addOwner adds --owner to a command that names something.
func addOwner(cmd *cobra.Command, owner *string) {
	cmd.Flags().StringVar(owner, "owner", "", "`name` of the owner, for administrators (default yourself)")
}

// signalOr returns the exit status of the signal that ended ctx, if one did, and otherwise the
// error.
func (a *app) signalOr(ctx context.Context, err error) error {
	if status, ok := signalStatus(ctx); ok {
		return status
	}
	return err
}
