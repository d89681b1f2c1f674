package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

// checkResult is the result of check.
type checkResult struct {
	Endpoint string `json:"endpoint"`
	OK       bool   `json:"ok"`
	// Version is the server's version.
	Version *api.Version `json:"version,omitempty"`
	// Home is the home directory in a sandbox, System the output of uname -a.
	Home   string `json:"home,omitempty"`
	System string `json:"system,omitempty"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// checkCommand has the options of sandpit check.
type checkCommand struct {
	output
	wait  time.Duration
	quick bool
}

func newCheck(a *app) *cobra.Command {
	var o checkCommand
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Check that a server runs and can create sandboxes",
		Long: `Check that a server runs and can create sandboxes. It creates one, runs two commands in it
and deletes it. The exit status is 0 if that worked, otherwise 1.`,
		Example:           "  sandpit check\n  sandpit check --wait 2m",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withoutClient(o.run),
	}
	o.addFlags(cmd, "print nothing")
	cmd.Flags().DurationVar(&o.wait, "wait", 0, "`time` to wait for a server that does not run yet")
	cmd.Flags().BoolVar(&o.quick, "no-sandbox", false, "create no sandbox: only ask the server whether it is ready")
	return cmd
}

func (o *checkCommand) run(cmd *cobra.Command, a *app, _ []string) error {
	if o.wait < 0 {
		return sandpit.Errorf(sandpit.Invalid, "--wait %s: want a positive time", o.wait)
	}
	c, err := a.newClient()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx := cmd.Context()
	result := checkResult{Endpoint: c.URL()}
	if err = o.testServer(ctx, c, &result); err != nil {
		if status, ok := signalStatus(ctx); ok {
			return status
		}
		result.Error, result.Hint = err.Error(), sandpit.HintOf(err)
	}
	result.OK = err == nil
	return showChecked(a, o.output, result, err)
}

func showChecked(a *app, o output, r checkResult, err error) error {
	var told error
	switch {
	case o.isJSON():
		told = printJSON(a.Out, r)
	case !o.quiet:
		told = printCheckResult(a, r, err)
	}
	if told != nil {
		return told
	}
	if err != nil {
		return exitStatus(statusNo)
	}
	return nil
}

func printCheckResult(a *app, r checkResult, err error) error {
	rows := [][]string{{"Endpoint", r.Endpoint}}
	if r.Version != nil {
		rows = append(rows, []string{"Version", r.Version.Sandpit})
	}
	if r.Home != "" {
		rows = append(rows, []string{"Home", r.Home})
	}
	if r.System != "" {
		rows = append(rows, []string{"System", r.System})
	}
	if e := writeTable(a.Out, rows, nil); e != nil {
		return e
	}
	if err != nil {
		printError(a.Err, err)
		return nil
	}
	_, e := fmt.Fprintln(a.Out, "The server works.")
	return e
}

// testServer checks a server, and unless quick is set, a sandbox of it.
func (o *checkCommand) testServer(ctx context.Context, c *client.Client, r *checkResult) error {
	if err := awaitReady(ctx, c, o.wait); err != nil {
		return err
	}
	v, err := c.Version(ctx)
	if err != nil {
		return err
	}
	r.Version = &v
	if o.quick {
		return nil
	}
	// If the deletion is lost, the deadline deletes the sandbox soon.
	const life = 5 * time.Minute
	return c.WithSandbox(ctx, client.CreateRequest{Timeout: life}, func(ctx context.Context, s *client.Sandbox) error {
		if r.Home, err = commandOutput(ctx, s, `printf '%s\n' "$HOME"`); err != nil {
			return err
		}
		r.System, err = commandOutput(ctx, s, "uname -a")
		return err
	})
}

// commandOutput returns the output of a command.
func commandOutput(ctx context.Context, s *client.Sandbox, command string) (string, error) {
	res, err := s.Run(ctx, command)
	if err == nil && res.ExitCode != 0 {
		err = sandpit.Errorf(sandpit.Internal, "%s in a new sandbox: exit status %d: %s", command, res.ExitCode, strings.TrimSpace(res.Stderr))
	}
	return strings.TrimSpace(res.Stdout), err
}

// awaitReady sends requests until the server is ready or the time has passed.
func awaitReady(ctx context.Context, c *client.Client, wait time.Duration) error {
	const pause = 250 * time.Millisecond
	end := time.Now().Add(wait)
	for {
		err := c.Ready(ctx)
		if err == nil || sandpit.CodeOf(err) != sandpit.Unavailable || time.Now().Add(pause).After(end) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
