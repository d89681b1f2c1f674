package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// explainState adds what to do about a sandbox that does not run, with the name that the user
// typed.
func explainState(ctx context.Context, c *client.Client, id sandpit.ID, name string, err error) error {
	s, getErr := c.Sandboxes.Get(context.WithoutCancel(ctx), id)
	if getErr == nil {
		verb := map[sandpit.State]string{
			sandpit.StateStopped: "start", sandpit.StatePaused: "resume", sandpit.StateArchived: "restore", sandpit.StateError: "rm",
		}[s.State]
		if verb != "" {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", name, stateText(s.Sandbox)), "sandpit "+verb+" "+shellQuote(name))
		}
	}
	if sandpit.HintOf(err) == "" {
		return sandpit.WithHint(err, "see: sandpit inspect "+shellQuote(name))
	}
	return err
}

// stateText returns a state with its reason.
func stateText(s sandpit.Sandbox) string {
	if s.Reason == "" {
		return string(s.State)
	}
	return string(s.State) + ": " + s.Reason
}

// isShellBuiltin reports whether a command exists in shells only.
func isShellBuiltin(name string) bool {
	return slices.Contains([]string{"cd", "export", "source", "alias", "unset", "ulimit", "umask", "set", "."}, name)
}

// explainProgram adds a hint to the error for a missing program if a command line for a shell was
// given as a program. Run is the beginning of the command line to suggest.
func explainProgram(err error, run string, args []string) error {
	if sandpit.CodeOf(err) != sandpit.NotFound || len(args) == 0 || sandpit.HintOf(err) != "" {
		return err
	}
	switch line := strings.Join(args, " "); {
	case len(args) == 1 && strings.ContainsAny(args[0], " |&;<>$"):
		return sandpit.WithHint(err, "for a command line use a shell: "+run+" -- sh -c "+shellQuote(args[0]))
	case isShellBuiltin(args[0]):
		return sandpit.WithHint(err, args[0]+" is part of a shell, not a program: "+run+" -- sh -c "+shellQuote(line)+"; -w sets the working directory")
	}
	return err
}

// dockerFlags returns hints for flags of Docker that do not exist here.
func dockerFlags() map[string]string {
	return map[string]string{
		"--mount": "use -v HOST:SANDBOX[:rw]", "--filter": "use --label NAME=VALUE", "--env-file": "use -e NAME=VALUE for each variable",
		"--entrypoint": "name the program after the image", "--net": "use --network", "--restart": "use --recreate NUMBER of sandpit create",
		"--privileged": "a sandbox is never privileged", "--gpus": "sandboxes have no GPU", "--cap-add": "a sandbox has no capabilities of this machine",
		"--pids-limit": "use --pids", "--init": "a sandbox always has an init process", "--platform": "images are of this machine's architecture",
		"--pull": "use image.pull in the configuration",
	}
}

// explainFlag adds to an error about a flag what was probably meant.
func explainFlag(cmd *cobra.Command, err error) error {
	text := err.Error()
	usage := usageError(cmd, text)
	if flag, ok := strings.CutPrefix(text, "unknown flag: "); ok {
		if hint := dockerFlags()[flag]; hint != "" {
			return sandpit.WithHint(usage, hint)
		}
		if near := nearestFlag(cmd, strings.TrimPrefix(flag, "--")); near != "" {
			return sandpit.WithHint(usage, "did you mean --"+near+"? See: "+cmd.CommandPath()+" --help")
		}
	}
	return usage
}

// nearestFlag returns the flag that differs least from a name, or "" if none is close.
func nearestFlag(cmd *cobra.Command, name string) string {
	const allowed = 2 // keystrokes: a letter that is missing, or two that have changed places
	best, least := "", min(allowed, len(name)/2)+1
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if d := editDistance(name, f.Name); d < least && !f.Hidden {
			best, least = f.Name, d
		}
	})
	return best
}

// editDistance counts the letters to insert, delete or replace to turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
