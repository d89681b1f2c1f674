package workspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// grace is how much longer than the guest this side waits for the end of a
// command, and how long it tries to kill one.
const grace = 5 * time.Second

// Result is what came of a command.
type Result struct {
	// Stdout and Stderr are as the command wrote them, which need not be UTF-8.
	// Of what is longer than Options.MaxOutput the middle is left out, and a line
	// in its place says so.
	Stdout, Stderr string
	// ExitCode is the command's; 128 plus the signal's number if one killed it.
	ExitCode int
	// Duration is by this machine's clock.
	Duration time.Duration
	// Truncated is true if some output was left out.
	Truncated bool
	// TimedOut is true if the command was killed since it took too long.
	TimedOut bool
	// OutOfMemory is true if it was killed because the sandbox's memory had run out.
	OutOfMemory bool
}

// ExitError is a command that ended with another exit code than 0. Only Output
// returns it.
type ExitError struct {
	Result

	Output string // both outputs, as they came
}

// Error names the exit code and the end of the output.
func (e *ExitError) Error() string {
	const most = 400
	end := strings.TrimSpace(e.Output)
	if len(end) > most {
		end = "..." + strings.ToValidUTF8(end[len(end)-most:], "")
	}
	return fmt.Sprintf("exit status %d: %s", e.ExitCode, end)
}

// Run runs a command and waits for its end. A Result comes with every error that
// happened after the start, as far as it goes. The writers of cmd get the whole
// output too.
//
// Timeout: it took longer than cmd.Timeout, else Options.Timeout, and was
// killed. If ctx ends, the command is killed and Run returns the context's
// error. The errors of sandpit.Processes.Start.
func (w *Workspace) Run(ctx context.Context, cmd sandpit.Command) (Result, error) {
	stdout, stderr := NewWindowOf(ctx, w.o.MaxOutput, resultCost), NewWindowOf(ctx, w.o.MaxOutput, resultCost)
	cmd.Stdout, cmd.Stderr = teeWriter(stdout, cmd.Stdout), teeWriter(stderr, cmd.Stderr)
	result, err := w.runCommand(ctx, cmd)
	result.Stdout, result.Stderr = stdout.String(), stderr.String()
	result.Truncated = stdout.Truncated() || stderr.Truncated()
	return result, err
}

// Shell runs a script with /bin/sh, as Run does a command.
func (w *Workspace) Shell(ctx context.Context, script string) (Result, error) {
	return w.Run(ctx, shellCommand(script))
}

func shellCommand(script string) sandpit.Command {
	return sandpit.Command{Args: []string{"/bin/sh", "-c", script}}
}

// Output runs a script with /bin/sh and returns both of its outputs as they
// came. An exit code other than 0 is an *ExitError; other errors as Run.
func (w *Workspace) Output(ctx context.Context, script string) (string, error) {
	both := NewWindowOf(ctx, w.o.MaxOutput, resultCost)
	cmd := shellCommand(script)
	cmd.Stdout, cmd.Stderr = both, both
	result, err := w.runCommand(ctx, cmd)
	output := both.String()
	if err == nil && result.ExitCode != 0 {
		result.Truncated = both.Truncated()
		err = &ExitError{Result: result, Output: output}
	}
	return output, err
}

func (w *Workspace) runCommand(ctx context.Context, cmd sandpit.Command) (Result, error) {
	if cmd.Timeout == 0 {
		cmd.Timeout = w.o.Timeout
	}
	if cmd.User == "" {
		cmd.User = w.o.User
	}
	cmd.Dir = w.resolvePath(cmd.Dir)
	return Execute(ctx, w.guest, cmd, nil)
}

// Execute runs a command as it stands and waits for its end; the output goes to its
// writers, and the Result has none. If started is not nil, it is told the process
// once it runs; output may come before.
//
// Timeout: it took longer than cmd.Timeout, if that is set, and was killed. If ctx
// ends, the command is killed and Execute returns the context's error. The errors of
// sandpit.Processes.Start.
func Execute(ctx context.Context, g sandpit.Processes, cmd sandpit.Command, started func(sandpit.Process)) (Result, error) {
	start := time.Now()
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	waiting, cancel := waitFor(ctx, cmd.Timeout)
	defer cancel()
	// A start that is given up half way might leave a process that nobody knows.
	starting, cancel := outliveContext(waiting, grace)
	defer cancel()
	process, err := g.Start(starting, cmd)
	if err != nil {
		if waiting.Err() != nil {
			err = context.Cause(waiting)
		}
		return Result{Duration: time.Since(start)}, err
	}
	if started != nil {
		started(process)
	}
	status, err := process.Wait(waiting)
	result := Result{ExitCode: status.Code, OutOfMemory: status.OutOfMemory, Duration: time.Since(start)}
	switch {
	case err == nil:
		return result, nil
	case ctx.Err() != nil:
		err = ctx.Err()
	case sandpit.CodeOf(err) == sandpit.Timeout:
		result.TimedOut = true
		result.ExitCode = 128 + int(sandpit.SIGKILL)
		err = sandpit.WithHint(
			sandpit.Errorf(sandpit.Timeout, "the command took longer than %s and was killed", cmd.Timeout),
			"give it more time, or start it in the background")
	}
	if gone := sandpit.CodeOf(err) == sandpit.Gone; !gone {
		err = errors.Join(err, killProcess(ctx, process))
	}
	return result, err
}

// waitFor returns the context of waiting for a command of a timeout, 0 being none.
// The guest keeps the time, but what it says about it is a claim.
func waitFor(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, timeout+grace, sandpit.WithHint(
		sandpit.Errorf(sandpit.Timeout, "the sandbox has not started the command in the %s that it may take", timeout),
		"try again; if it never answers: sandpit stop, then sandpit start, which ends its processes and keeps its files"))
}

// outliveContext returns a context that ends a while after ctx.
func outliveContext(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(by, cancel) })
	return later, func() {
		stop()
		cancel()
	}
}

// killProcess ends a process that nobody waits for any more.
func killProcess(ctx context.Context, p sandpit.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := p.Signal(ctx, sandpit.SIGKILL)
	if sandpit.CodeOf(err) == sandpit.Gone {
		return nil
	}
	return err
}
