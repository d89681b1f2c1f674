package client

import (
	"context"
	"crypto/rand"
	"io"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// errOutputDropped is the error for output that the sandbox discarded before it was read.
var errOutputDropped = sandpit.Errorf(sandpit.Exhausted, "a part of the command's output was dropped before it was read")

// DefaultTimeout as the Command.Timeout of Exec and Start means the server's time limit for
// commands (its setting sandbox.timeout).
const DefaultTimeout time.Duration = -1

type defaultTimeoutKey struct{}

// takeDefaultTimeout moves DefaultTimeout from a command to a context.
func takeDefaultTimeout(ctx context.Context, cmd *sandpit.Command) context.Context {
	if cmd.Timeout != DefaultTimeout {
		return ctx
	}
	cmd.Timeout = 0
	return context.WithValue(ctx, defaultTimeoutKey{}, true)
}

// Exec runs a command to its end and copies its output. When the connection breaks or the server
// restarts, it reconnects and continues: no output is lost or repeated, as long as the server can
// be reached again within Options.Timeout. A command that reads Stdin is continued only if all of
// its input was sent: it is not known how much arrived.
//
// When ctx ends, Exec returns and the command keeps running. It can be found by its ID, which
// Exec chooses if cmd has none.
//
// Errors are those of sandpit.Processes.Start and sandpit.Process.Wait. Exhausted: output was
// dropped because the reader was too slow; the exit status is right. Gone: the sandbox ended.
func (s *Sandbox) Exec(ctx context.Context, cmd sandpit.Command) (sandpit.ExitStatus, error) {
	if cmd.ID == "" {
		cmd.ID = strings.ToLower(rand.Text())
	}
	e := s.newExecution(&cmd)
	status, err := e.startCommand(takeDefaultTimeout(ctx, &cmd), cmd)
	if !e.isConnectionLost(ctx, err) {
		return status, err
	}
	return e.followToEnd(ctx, cmd, err)
}

// Start starts a command, whose Wait reconnects as Exec does. It is for callers that send signals
// to the command or read slowly: a command without an ID gets one, waits while its output is not
// read, and loses no output as long as the connection lasts. A command is not started again if
// the response to its start is lost: that is Unavailable.
//
// Errors of Start and Wait are those of sandpit.Processes.Start and of Exec.
func (s *Sandbox) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	e := s.newExecution(&cmd)
	p, err := s.guest.Start(takeDefaultTimeout(ctx, &cmd), cmd)
	if err != nil || p.ID() == "" {
		return p, err
	}
	e.id, e.known, e.process = p.ID(), true, p
	return &resumableProcess{Process: p, execution: e, command: cmd, waiter: make(chan struct{}, 1)}, nil
}

// resumableProcess is a process whose Wait survives a broken connection.
type resumableProcess struct {
	sandpit.Process

	execution *execution
	command   sandpit.Command
	// waiter is held by the call of Wait that follows the command.
	waiter chan struct{}

	over   bool
	status sandpit.ExitStatus
	err    error
}

// Wait implements sandpit.Process.
func (r *resumableProcess) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	select {
	case r.waiter <- struct{}{}:
		defer func() { <-r.waiter }()
	case <-ctx.Done():
		return sandpit.ExitStatus{}, ctx.Err()
	}
	if r.over {
		return r.status, r.err
	}
	status, err := r.Process.Wait(ctx)
	if r.execution.isConnectionLost(ctx, err) {
		status, err = r.execution.followToEnd(ctx, r.command, err)
	}
	if sandpit.CodeOf(err) == sandpit.Unavailable {
		err = r.execution.explainUnavailable(ctx, r.ID(), err)
	}
	if ctx.Err() == nil {
		r.over, r.status, r.err = true, status, err
	}
	return status, err
}

// newExecution counts the output of a command, so that it can be continued.
func (s *Sandbox) newExecution(cmd *sandpit.Command) *execution {
	e := &execution{sandbox: s, id: cmd.ID, stdout: newCounter(cmd.Stdout), stderr: newCounter(cmd.Stderr), input: cmd.Stdin != nil}
	cmd.Stdout, cmd.Stderr = e.stdout, e.stderr
	return e
}

// execution is one command that Exec runs.
type execution struct {
	sandbox        *Sandbox
	id             string
	stdout, stderr *counter
	// known reports that the command has started.
	known bool
	// process is nil until the response to the start has arrived.
	process sandpit.Process
	// input reports that the command reads input, which may not all have been sent.
	input   bool
	missing bool
}

// startCommand starts the command and waits for its end.
func (e *execution) startCommand(ctx context.Context, cmd sandpit.Command) (sandpit.ExitStatus, error) {
	p, err := e.sandbox.guest.Start(ctx, cmd)
	if err != nil {
		return sandpit.ExitStatus{}, err
	}
	e.known, e.process = true, p
	return p.Wait(ctx)
}

// isConnectionLost reports whether an error is about the connection and not about the command.
func (e *execution) isConnectionLost(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil || e.stdout.hasFailed() || e.stderr.hasFailed() {
		return false
	}
	switch sandpit.CodeOf(err) {
	case sandpit.Unavailable, sandpit.Exhausted:
		// The command log may still have output that was dropped on the way to a slow reader.
		// Any other exhaustion fails again.
		return e.known || sandpit.CodeOf(err) == sandpit.Unavailable
	case sandpit.Gone:
		// A stream that ends too early looks like the end of the sandbox.
		now, askErr := e.sandbox.client.Sandboxes.Get(ctx, e.sandbox.ID)
		return sandpit.CodeOf(askErr) == sandpit.Unavailable || askErr == nil && now.State == sandpit.StateRunning
	default:
		return false
	}
}

// sandboxEnd returns why no command of the sandbox can keep running, nil if one may: the stream
// of a sandbox that is deleted or stopped ends before its record is gone.
func (e *execution) sandboxEnd(ctx context.Context) error {
	now, err := e.sandbox.client.Sandboxes.Get(ctx, e.sandbox.ID)
	switch {
	case isRemoved(err):
		return err
	case err != nil:
		return nil //nolint:nilerr // the server does not respond, so the sandbox may run
	}
	switch now.State {
	case sandpit.StateDeleting, sandpit.StateDeleted:
		return sandpit.Errorf(sandpit.Gone, "sandbox %s was deleted, and the command ended with it", e.sandbox.ID)
	case sandpit.StateStopping, sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Gone, "sandbox %s was stopped, and the command ended with it", e.sandbox.ID),
			"start it again: sandpit start "+string(e.sandbox.ID))
	default:
		return nil
	}
}

// explainUnavailable tells for a command whose end is unknown whether the connection or the
// sandbox failed.
func (e *execution) explainUnavailable(ctx context.Context, id string, err error) error {
	if sandpit.HintOf(err) != "" {
		if _, askErr := e.sandbox.client.Sandboxes.Get(ctx, e.sandbox.ID); askErr == nil {
			return sandpit.Errorf(sandpit.Unavailable, "the result of command %s is unknown: %w", id, err)
		}
	}
	return sandpit.Errorf(sandpit.Unavailable, "connection lost; command %s keeps running: %w", id, err)
}

// isRemoved reports whether an error means that the sandbox no longer exists.
func isRemoved(err error) bool {
	code := sandpit.CodeOf(err)
	return code == sandpit.Gone || code == sandpit.NotFound
}

// followToEnd reconnects to the command with backoff, from where its output stopped, until it
// ends.
func (e *execution) followToEnd(ctx context.Context, cmd sandpit.Command, err error) (sandpit.ExitStatus, error) {
	if e.input && !e.inputSent() {
		if endErr := e.sandboxEnd(ctx); endErr != nil {
			return sandpit.ExitStatus{}, endErr
		}
		return sandpit.ExitStatus{}, sandpit.Errorf(sandpit.Unavailable, "it is unknown how much of its input arrived: %w", err)
	}
	since, pause := time.Now(), newBackoff()
	for {
		before := e.offsets()
		status, ended, err := e.followOutput(ctx)
		if ended {
			return status, err
		}
		if sandpit.CodeOf(err) == sandpit.NotFound && !e.known {
			if status, err = e.startCommand(ctx, cmd); err == nil || sandpit.CodeOf(err) != sandpit.AlreadyExists && !e.isConnectionLost(ctx, err) {
				return status, err
			}
		} else if !e.isConnectionLost(ctx, err) {
			return sandpit.ExitStatus{}, err
		}
		if e.offsets() != before {
			since = time.Now()
			pause.Reset()
		}
		if time.Since(since) > e.sandbox.client.o.Timeout {
			return sandpit.ExitStatus{}, err
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
			return sandpit.ExitStatus{}, context.Cause(ctx)
		}
	}
}

// inputSent reports whether all of the input arrived.
func (e *execution) inputSent() bool {
	p, ok := e.process.(interface{ InputSent() bool })
	return ok && p.InputSent()
}

// offsets returns how much output was written.
func (e *execution) offsets() sandpit.Offsets {
	return sandpit.Offsets{Stdout: e.stdout.n, Stderr: e.stderr.n}
}

// followOutput writes the rest of the output, and reports whether the command ended.
func (e *execution) followOutput(ctx context.Context) (status sandpit.ExitStatus, ended bool, err error) {
	followed, err := e.sandbox.guest.Follow(ctx, e.id, sandpit.FollowOptions{From: e.offsets(), Stdout: e.stdout, Stderr: e.stderr})
	e.stdout.n, e.stderr.n = followed.Next.Stdout, followed.Next.Stderr
	e.known = e.known || followed.Command.ID != ""
	e.missing = e.missing || followed.Missing != sandpit.Offsets{}
	switch {
	case err != nil:
		return status, false, err
	case !followed.Command.Ended:
		return status, false, sandpit.Errorf(sandpit.Unavailable, "the output ended before the command")
	case followed.Command.TimedOut:
		return followed.Command.Status, true, sandpit.Errorf(sandpit.Timeout, "the command timed out and was killed")
	case e.missing:
		return followed.Command.Status, true, errOutputDropped
	}
	return followed.Command.Status, true, nil
}

// counter counts the bytes that a writer accepted.
type counter struct {
	to  io.Writer
	n   int64
	err error
}

// newCounter returns a counter for a writer; nil discards the output.
func newCounter(w io.Writer) *counter {
	if w == nil {
		w = io.Discard
	}
	return &counter{to: w}
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(max(0, min(n, len(p))))
	c.err = err
	return n, err
}

// hasFailed reports whether the writer itself returned an error.
func (c *counter) hasFailed() bool { return c.err != nil }
