package workspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// grace is how much longer than the guest this program waits for the end of a command, and
// how long it tries to kill one.
const grace = 5 * time.Second

// Result is the result of a command.
type Result struct {
	// Stdout and Stderr are the bytes that the command wrote; they need not be UTF-8. Of an
	// output longer than Options.MaxOutput the middle is replaced by a line that reports the
	// omission.
	Stdout, Stderr string
	// ExitCode is the command's exit code, or 128 plus the number of the signal that killed
	// it.
	ExitCode int
	// Duration is measured with this machine's clock.
	Duration time.Duration
	// Truncated is true if output was omitted.
	Truncated bool
	// TimedOut is true if the command was killed because it took too long.
	TimedOut bool
	// OutOfMemory is true if the command was killed because the sandbox's memory ran out.
	OutOfMemory bool
}

// ExitError is the error of a command that ended with another exit code than 0. Only Output
// returns it.
type ExitError struct {
	Result

	Output string // both outputs, in order of arrival
}

// Error returns the exit code and the end of the output.
func (e *ExitError) Error() string {
	const most = 400
	end := strings.TrimSpace(e.Output)
	if len(end) > most {
		end = "..." + strings.ToValidUTF8(end[len(end)-most:], "")
	}
	return fmt.Sprintf("exit status %d: %s", e.ExitCode, end)
}

// Run runs a command and waits for its end. An error after the start comes with
// the partial Result. The writers of cmd get the whole output too.
//
// Timeout: the command took longer than cmd.Timeout, else Options.Timeout, and was killed. If
// ctx ends, Run kills the command and returns the context's error. Also the errors of
// sandpit.Processes.Start.
func (w *Workspace) Run(ctx context.Context, cmd sandpit.Command) (Result, error) {
	stdout, stderr := NewWindowOf(ctx, w.o.MaxOutput, resultCost), NewWindowOf(ctx, w.o.MaxOutput, resultCost)
	cmd.Stdout, cmd.Stderr = teeWriter(stdout, cmd.Stdout), teeWriter(stderr, cmd.Stderr)
	result, err := w.runCommand(ctx, cmd)
	result.Stdout, result.Stderr = stdout.String(), stderr.String()
	result.Truncated = stdout.Truncated() || stderr.Truncated()
	return result, err
}

// Shell runs a script with /bin/sh, like Run.
func (w *Workspace) Shell(ctx context.Context, script string) (Result, error) {
	return w.Run(ctx, shellCommand(script))
}

func shellCommand(script string) sandpit.Command {
	return sandpit.Command{Args: []string{"/bin/sh", "-c", script}}
}

// Output runs a script with /bin/sh and returns both of its outputs in order of arrival. An
// exit code other than 0 is an *ExitError; other errors are those of Run.
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

// Execute runs a command without defaults and waits for its end. The output goes to the
// writers of cmd, and the Result has none. If started is not nil, Execute calls it with the
// process after the start; output may arrive before.
//
// Timeout: the command took longer than cmd.Timeout, if that is set, and was killed. If ctx
// ends, Execute kills the command and returns the context's error. Also the errors of
// sandpit.Processes.Start.
func Execute(ctx context.Context, g sandpit.Processes, cmd sandpit.Command, started func(sandpit.Process)) (Result, error) {
	start := time.Now()
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	waiting, cancel := waitFor(ctx, cmd.Timeout)
	defer cancel()
	// A canceled start could leave a process that no caller knows.
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

// waitFor returns the context for waiting for a command with a timeout, 0 for none. The guest
// enforces the timeout, but it is untrusted.
func waitFor(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, timeout+grace, sandpit.WithHint(
		sandpit.Errorf(sandpit.Timeout, "the sandbox did not start the command within its timeout of %s", timeout),
		"try again; if this persists, end its processes and keep its files with: sandpit stop ID && sandpit start ID"))
}

// outliveContext returns a context that ends a duration after ctx.
func outliveContext(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(by, cancel) })
	return later, func() {
		stop()
		cancel()
	}
}

// killProcess kills a process after its caller gave up waiting.
func killProcess(ctx context.Context, p sandpit.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := p.Signal(ctx, sandpit.SIGKILL)
	if sandpit.CodeOf(err) == sandpit.Gone {
		return nil
	}
	return err
}
