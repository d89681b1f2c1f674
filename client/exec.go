package client

import (
	"context"
	"crypto/rand"
	"io"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// errMissing is for output that the sandbox did not keep long enough.
var errMissing = sandpit.Errorf(sandpit.Exhausted, "a part of the command's output was dropped before it was read")

// DefaultTimeout as Command.Timeout of Exec and Start means the server's time limit of commands
// (its setting sandbox.timeout).
const DefaultTimeout time.Duration = -1

type defaultTimeoutKey struct{}

// limited takes DefaultTimeout out of a command and into a context.
func limited(ctx context.Context, cmd *sandpit.Command) context.Context {
	if cmd.Timeout != DefaultTimeout {
		return ctx
	}
	cmd.Timeout = 0
	return context.WithValue(ctx, defaultTimeoutKey{}, true)
}

// Exec runs a command to its end and copies what it puts out. When the connection to
// the server breaks, or the server is restarted, it goes on where it was, without a
// byte lost or told twice, for as long as the server can be reached again within
// Options.Timeout. A command that reads Stdin cannot go on like that before its input
// has been sent whole, since nobody knows how much arrived.
//
// When ctx ends Exec returns, and the command goes on; it can be found by its ID,
// which Exec chooses if cmd has none.
//
// Errors are those of sandpit.Processes.Start and sandpit.Process.Wait. Exhausted:
// the reader was so slow that output was dropped; the exit status is right. Gone: the
// sandbox ended.
func (s *Sandbox) Exec(ctx context.Context, cmd sandpit.Command) (sandpit.ExitStatus, error) {
	if cmd.ID == "" {
		cmd.ID = strings.ToLower(rand.Text())
	}
	e := s.execution(&cmd)
	status, err := e.start(limited(ctx, &cmd), cmd)
	if !e.lost(ctx, err) {
		return status, err
	}
	return e.goOn(ctx, cmd, err)
}

// Start starts a command, whose Wait then goes on as Exec does when the connection
// breaks. It is for who wants to signal a command meanwhile, or reads slowly: a command
// without an ID, which gets one, is held back while its output is not read, and nothing
// of that is dropped as long as the connection lasts. It is not started again if the
// answer to its start is lost: that is Unavailable.
//
// Errors of Start and Wait are those of sandpit.Processes.Start and of Exec.
func (s *Sandbox) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	e := s.execution(&cmd)
	p, err := s.guest.Start(limited(ctx, &cmd), cmd)
	if err != nil || p.ID() == "" {
		return p, err
	}
	e.id, e.known, e.process = p.ID(), true, p
	return &resuming{Process: p, execution: e, command: cmd, turn: make(chan struct{}, 1)}, nil
}

// resuming is a process whose Wait survives its connection.
type resuming struct {
	sandpit.Process

	execution *execution
	command   sandpit.Command
	turn      chan struct{} // held by the one who waits for the others

	over   bool
	status sandpit.ExitStatus
	err    error
}

// Wait implements sandpit.Process.
func (r *resuming) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return sandpit.ExitStatus{}, ctx.Err()
	}
	if r.over {
		return r.status, r.err
	}
	status, err := r.Process.Wait(ctx)
	if r.execution.lost(ctx, err) {
		status, err = r.execution.goOn(ctx, r.command, err)
	}
	if sandpit.CodeOf(err) == sandpit.Unavailable {
		err = r.execution.explainUnavailable(ctx, r.ID(), err)
	}
	if ctx.Err() == nil {
		r.over, r.status, r.err = true, status, err
	}
	return status, err
}

// execution has the output of a command counted.
func (s *Sandbox) execution(cmd *sandpit.Command) *execution {
	e := &execution{sandbox: s, id: cmd.ID, stdout: counted(cmd.Stdout), stderr: counted(cmd.Stderr), input: cmd.Stdin != nil}
	cmd.Stdout, cmd.Stderr = e.stdout, e.stderr
	return e
}

// execution is one command that Exec runs.
type execution struct {
	sandbox        *Sandbox
	id             string
	stdout, stderr *counter
	known          bool            // it has been started
	process        sandpit.Process // nil unless the answer to its start came
	input          bool            // it reads input, which may have to be sent still
	missing        bool
}

func (e *execution) start(ctx context.Context, cmd sandpit.Command) (sandpit.ExitStatus, error) {
	p, err := e.sandbox.guest.Start(ctx, cmd)
	if err != nil {
		return sandpit.ExitStatus{}, err
	}
	e.known, e.process = true, p
	return p.Wait(ctx)
}

// lost reports whether err says nothing of the command, but of the way to it.
func (e *execution) lost(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil || e.stdout.refused() || e.stderr.refused() {
		return false
	}
	switch sandpit.CodeOf(err) {
	case sandpit.Unavailable, sandpit.Exhausted:
		// With output that was dropped on the way to a slow reader there may be more
		// in the journal. Everything else that is exhausted fails again.
		return e.known || sandpit.CodeOf(err) == sandpit.Unavailable
	case sandpit.Gone:
		// A stream that ends too early looks like the end of a sandbox.
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
		return nil //nolint:nilerr // the server cannot be asked, so it may run
	}
	switch now.State {
	case sandpit.StateDeleting, sandpit.StateDeleted:
		return sandpit.Errorf(sandpit.Gone, "sandbox %s was removed, and the command with it", e.sandbox.ID)
	case sandpit.StateStopping, sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Gone, "sandbox %s was stopped, and the command ended with it", e.sandbox.ID),
			"start it again: sandpit start "+string(e.sandbox.ID))
	default:
		return nil
	}
}

// explainUnavailable says of a command whose end is not known whether the connection or the
// sandbox is to blame.
func (e *execution) explainUnavailable(ctx context.Context, id string, err error) error {
	if sandpit.HintOf(err) != "" {
		if _, askErr := e.sandbox.client.Sandboxes.Get(ctx, e.sandbox.ID); askErr == nil {
			return sandpit.Errorf(sandpit.Unavailable, "the end of command %s is not known: %w", id, err)
		}
	}
	return sandpit.Errorf(sandpit.Unavailable, "connection lost; command %s keeps running: %w", id, err)
}

// isRemoved reports whether an error says that a sandbox is no longer there.
func isRemoved(err error) bool {
	code := sandpit.CodeOf(err)
	return code == sandpit.Gone || code == sandpit.NotFound
}

// goOn follows the command from where its output came to, again and again.
func (e *execution) goOn(ctx context.Context, cmd sandpit.Command, err error) (sandpit.ExitStatus, error) {
	if e.input && !e.inputSent() {
		if endErr := e.sandboxEnd(ctx); endErr != nil {
			return sandpit.ExitStatus{}, endErr
		}
		return sandpit.ExitStatus{}, sandpit.Errorf(sandpit.Unavailable, "it is unknown how much of its input arrived: %w", err)
	}
	since, pause := time.Now(), pauses()
	for {
		before := e.at()
		status, ended, err := e.follow(ctx)
		if ended {
			return status, err
		}
		if sandpit.CodeOf(err) == sandpit.NotFound && !e.known {
			if status, err = e.start(ctx, cmd); err == nil || sandpit.CodeOf(err) != sandpit.AlreadyExists && !e.lost(ctx, err) {
				return status, err
			}
		} else if !e.lost(ctx, err) {
			return sandpit.ExitStatus{}, err
		}
		if e.at() != before {
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

// inputSent reports whether all of the input is known to have arrived.
func (e *execution) inputSent() bool {
	p, ok := e.process.(interface{ InputSent() bool })
	return ok && p.InputSent()
}

func (e *execution) at() sandpit.Offsets {
	return sandpit.Offsets{Stdout: e.stdout.n, Stderr: e.stderr.n}
}

// follow tells the rest of the output, and reports whether it came to the end.
func (e *execution) follow(ctx context.Context) (status sandpit.ExitStatus, ended bool, err error) {
	told, err := e.sandbox.guest.Follow(ctx, e.id, sandpit.FollowOptions{From: e.at(), Stdout: e.stdout, Stderr: e.stderr})
	e.stdout.n, e.stderr.n = told.Next.Stdout, told.Next.Stderr
	e.known = e.known || told.Command.ID != ""
	e.missing = e.missing || told.Missing != sandpit.Offsets{}
	switch {
	case err != nil:
		return status, false, err
	case !told.Command.Ended:
		return status, false, sandpit.Errorf(sandpit.Unavailable, "the output ended before the command")
	case told.Command.TimedOut:
		return told.Command.Status, true, sandpit.Errorf(sandpit.Timeout, "the command took too long and was killed")
	case e.missing:
		return told.Command.Status, true, errMissing
	}
	return told.Command.Status, true, nil
}

// counter counts what arrived at a writer.
type counter struct {
	to  io.Writer
	n   int64
	err error
}

// counted never has a nil writer below.
func counted(w io.Writer) *counter {
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

// refused reports whether the writer itself failed.
func (c *counter) refused() bool { return c.err != nil }
