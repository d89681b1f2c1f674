package testserver

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// CommandLine runs commands of sandpit. They may run while a test ends.
type CommandLine struct {
	// Environ is the environment of the commands.
	Environ []string
}

// With returns a CommandLine with further variables, which replace those of the same name.
func (c CommandLine) With(environ ...string) CommandLine {
	return CommandLine{slices.Concat(c.Environ, environ)}
}

// Output runs a command that must succeed, and returns its standard output.
func (c CommandLine) Output(tb testing.TB, args ...string) string {
	tb.Helper()
	var out, errs bytes.Buffer
	if err := c.run(tb, args, func(cmd *exec.Cmd) { cmd.Stdout, cmd.Stderr = &out, &errs }); err != nil {
		tb.Fatalf("sandpit %q: %v\n%s", args, err, &errs)
	}
	return out.String()
}

// Run runs a command with a text as its input. It returns all output and the exit status.
func (c CommandLine) Run(tb testing.TB, stdin string, args ...string) (out string, status int) {
	tb.Helper()
	var all bytes.Buffer
	err := c.run(tb, args, func(cmd *exec.Cmd) { cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &all, &all })
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return all.String(), exit.ExitCode()
	}
	if err != nil {
		tb.Fatalf("sandpit %q: %v", args, err)
	}
	return all.String(), 0
}

func (c CommandLine) run(tb testing.TB, args []string, prepare func(*exec.Cmd)) error {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, testengine.Path(tb), args...)
	cmd.Env = c.Environ
	prepare(cmd)
	return cmd.Run()
}
