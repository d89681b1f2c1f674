package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
	"github.com/sandpit-dev/sandpit/internal/core/commandscreen"
)

// screenCommand checks the command before a sandbox is created for it, as configured. An image's
// default command is not checked.
func (o *runCommand) screenCommand(ctx context.Context, a *app, cfg config.Config) error {
	mode := cfg.Sandbox.CommandScreen
	if mode == config.ScreenOff || (o.script == nil && len(o.command) == 0) {
		return nil
	}
	verdict, err := screenScript(o, cfg)
	if err != nil {
		return err
	}
	switch verdict.Under(mode) {
	case commandscreen.Allow:
		return nil
	case commandscreen.Warn:
		fmt.Fprintf(a.Err, "sandpit: warning: %v\n", verdict.Err())
		return nil
	case commandscreen.Ask:
		return askWhether(ctx, a, verdict)
	default:
		return verdict.Err()
	}
}

// screenScript checks a script's text if a shell will run it, otherwise the command.
func screenScript(o *runCommand, cfg config.Config) (commandscreen.Verdict, error) {
	policy := daemon.ScreenPolicy(cfg, cfg.Sandbox.WorkDir)
	if o.script == nil {
		return policy.Check(o.command), nil
	}
	runner := o.script.runner
	shells := []string{"sh", "bash", "dash", "ash", "ksh", "zsh"}
	if len(runner) == 0 || !slices.Contains(shells, path.Base(runner[0])) {
		return policy.Check(slices.Concat(runner, []string{o.script.source}, o.command)), nil
	}
	f, err := os.Open(o.script.source)
	if err != nil {
		return commandscreen.Verdict{}, fmt.Errorf("read the script: %w", err)
	}
	defer f.Close()
	const most = 2 << 20 // more than the screen checks
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return commandscreen.Verdict{}, fmt.Errorf("read the script: %w", err)
	}
	// With its arguments, as the shell will see it.
	return policy.Check(slices.Concat([]string{"sh", "-c", string(text), o.script.source}, o.command)), nil
}

// askWhether asks the user whether to run a suspicious command. Without a terminal the verdict
// stands.
func askWhether(ctx context.Context, a *app, verdict commandscreen.Verdict) error {
	yes, err := a.askYesNo(ctx, fmt.Sprintf("sandpit: %v\nRun it anyway?", verdict.Err()))
	switch {
	case err != nil:
		return a.signalOr(ctx, err)
	case !yes:
		return verdict.Err()
	}
	return nil
}

// askYesNo asks a question at the terminal. Without a terminal, and by default, the answer is no.
func (a *app) askYesNo(ctx context.Context, question string) (yes bool, err error) {
	fd, ok := terminalOf(a.In)
	if _, seen := terminalOf(a.Err); !ok || !seen {
		return false, nil
	}
	fmt.Fprintf(a.Err, "%s [y/N] ", escapeLines(question))
	answer, err := readLine(ctx, fd, a.In)
	if err != nil {
		return false, err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}

// readLine reads one line and nothing after it: that belongs to the command. It stops when ctx
// ends.
func readLine(ctx context.Context, fd int, in io.Reader) (string, error) {
	const most, wait = 128, 100 // bytes, milliseconds
	var line strings.Builder
	for line.Len() < most {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, wait) //nolint:gosec // a descriptor fits
		if errors.Is(err, unix.EINTR) || (err == nil && n == 0) {
			continue
		}
		if err != nil {
			return "", sandpit.Errorf(sandpit.Internal, "wait for an answer: %w", err)
		}
		b := make([]byte, 1)
		if n, _ := in.Read(b); n == 0 || b[0] == '\n' { // no answer means no
			break
		}
		line.WriteByte(b[0])
	}
	return line.String(), nil
}
