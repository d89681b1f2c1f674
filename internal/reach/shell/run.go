package shell

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Run runs a command in the shell of the session and waits for its end. An error after the
// start comes with the partial Result.
//
// Timeout: the command took longer than its timeout and was stopped; Result.Outcome describes
// how. If ctx ends, Run stops the command too and returns the context's error. Stopping takes
// at most about half a minute. Invalid: the shell cannot parse the command, and ran nothing of
// it; or the request can never work. Conflict: the session is busy and refuses concurrent
// commands. Gone: the session is closed, or the sandbox has ended.
func (s *Session) Run(ctx context.Context, r RunRequest) (Result, error) {
	if err := r.validateRequest(); err != nil {
		return Result{}, err
	}
	if r.Timeout == 0 {
		r.Timeout = s.o.Timeout
	}
	if r.MaxOutput == 0 {
		r.MaxOutput = s.o.MaxOutput
	}
	defer s.beginUse()()
	release, err := s.lockShell(ctx)
	if release != nil {
		defer release()
	}
	if err != nil {
		return Result{}, err
	}
	if err := errors.Join(s.closedError(), ctx.Err()); err != nil {
		return Result{}, err
	}
	c := call{text: r.Command, merged: !r.SeparateStderr, status: s.status}
	if len(r.Command) > s.dialect.inline {
		if c.file, err = s.putFile(ctx, []byte(r.Command)); err != nil {
			return Result{}, s.noteGone(err)
		}
		defer s.removeFile(ctx, c.file)
	}
	if len(r.Stdin) > 0 {
		if c.stdin, err = s.putFile(ctx, r.Stdin); err != nil {
			return Result{}, s.noteGone(err)
		}
		defer s.removeFile(ctx, c.stdin)
	}
	if r.Input != nil {
		name, closeInput, err := s.openInput(ctx, r.Input)
		if err != nil {
			return Result{}, s.noteGone(err)
		}
		defer closeInput()
		c.stdin = name
	}
	// The guest sees only the shell process, so the command is reported here.
	to, began := sandpit.ObserverOf(s.guest), time.Now()
	args := []string{s.dialect.name, "-c", r.Command}
	seen := sandpit.CommandCall(sandpit.RunCommand, args)
	if to.Admit != nil {
		if err := to.Admit(ctx, args, ""); err != nil {
			seen.Err = sandpit.NotAdmitted(err)
			to.Called(ctx, seen)
			return Result{}, err
		}
	}
	to.Called(ctx, seen)
	result, err := s.runLocked(ctx, r, c)
	to.Ended(ctx, time.Since(began), sandpit.ExitStatus{Code: result.ExitCode}, err)
	return result, err
}

// runLocked runs a command. The caller must hold the shell's lock.
func (s *Session) runLocked(ctx context.Context, r RunRequest, c call) (Result, error) {
	fresh, err := s.ensureShell(ctx)
	if err != nil {
		return Result{Fresh: fresh}, err
	}
	if fresh {
		c.status = 0
	}
	fresh = fresh || s.pending.fresh
	began := time.Now()
	a, err := s.shell.beginCall(ctx, c, r.MaxOutput, r.Output)
	if err != nil && sandpit.CodeOf(err) != sandpit.Gone { // Gone is returned below, with its reason
		err = errors.Join(err, s.shell.killShell(ctx))
		s.shell = nil
		return Result{Outcome: Lost, StateLost: true}, err
	}
	if r.Started != nil {
		r.Started()
	}
	outcome, cause := s.awaitAnswer(ctx, a, r.Timeout, began)
	result := Result{Outcome: outcome, Fresh: fresh, Duration: time.Since(began)}
	result.TimedOut = sandpit.CodeOf(cause) == sandpit.Timeout && ctx.Err() == nil
	s.shell.finishCall(a)
	result.Late = slices.Concat(s.pending.late, s.shell.takeLate())
	s.pending = pendingReport{}
	s.collectResult(a, &result)
	if cause == nil && a.invalid {
		text := strings.TrimSpace(strings.ToValidUTF8(string(a.parserOutput.Bytes()), "\uFFFD"))
		cause = sandpit.Errorf(sandpit.Invalid, "the shell cannot parse the command: %s", text)
	}
	return result, s.noteGone(cause)
}

// ensureShell starts a shell if none runs. fresh is true for a new one.
func (s *Session) ensureShell(ctx context.Context) (fresh bool, err error) {
	if s.shell != nil {
		select {
		case <-s.shell.ended: // the shell ended between two commands
			s.shell.cancel()
			s.shell = nil
		default:
			return false, nil
		}
	}
	return true, s.startShell(ctx)
}

// awaitAnswer waits for the end of a call. It stops the call when limit has passed or ctx
// ends.
func (s *Session) awaitAnswer(ctx context.Context, a *callResult, limit time.Duration, began time.Time) (Outcome, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var cause error
	select {
	case <-a.done:
		return s.completeCall(ctx, a)
	case <-s.shell.ended:
		return s.shellEnded(a)
	case <-s.closing:
		return Lost, errors.Join(s.closedError(), s.shell.killShell(ctx))
	case <-ctx.Done():
		cause = ctx.Err()
	case <-timer.C:
		cause = sandpit.Errorf(sandpit.Timeout, "the command took longer than %s", limit)
	}
	if s.shell.isOver(a) { // ended just in time
		select {
		case <-a.done:
			return s.completeCall(ctx, a)
		default:
			return s.shellEnded(a)
		}
	}
	outcome, err := s.shell.stopCall(ctx, a, began, s.o.Grace)
	if sandpit.CodeOf(err) == sandpit.Gone {
		return outcome, err
	}
	if sandpit.CodeOf(cause) == sandpit.Timeout && ctx.Err() == nil {
		cause = sandpit.WithHint(sandpit.Errorf(sandpit.Timeout, "%w and was stopped: %s", cause, outcome.describeState()),
			"give it more time, or start it as a job")
	}
	return outcome, errors.Join(cause, err)
}

// describeState describes what an outcome means for the state of the shell.
func (o Outcome) describeState() string {
	switch o {
	case Interrupted:
		return "an interrupt ended it; the shell keeps running"
	case Killed:
		return "its processes were killed; the shell keeps running"
	case Lost:
		return "the shell was killed; its state is lost"
	default:
		return string(o)
	}
}

// completeCall handles a call that ended without being stopped.
func (s *Session) completeCall(ctx context.Context, a *callResult) (Outcome, error) {
	if a.garbled == "" {
		return Completed, nil
	}
	err := sandpit.Errorf(sandpit.Internal, "the shell sent an invalid response (%s) and was killed", a.garbled)
	return Lost, errors.Join(err, s.shell.killShell(ctx))
}

// shellEnded handles a call during which the shell or the sandbox ended.
func (s *Session) shellEnded(a *callResult) (Outcome, error) {
	if s.shell.err != nil {
		return Lost, s.shell.err
	}
	if reason := s.closedError(); reason != nil {
		return Lost, reason
	}
	a.status = s.shell.status.Code
	return Ended, nil
}

// collectResult fills in the result of a call, and keeps the state for the next call.
func (s *Session) collectResult(a *callResult, r *Result) {
	l := s.shell
	l.mu.Lock()
	r.Stdout, r.StdoutSize = a.stdout.window.Bytes(), a.stdout.window.Size()
	r.Stderr, r.StderrSize = a.stderr.window.Bytes(), a.stderr.window.Size()
	r.Truncated = a.stdout.window.Omitted() > 0 || a.stderr.window.Omitted() > 0
	r.ExitCode, r.Cwd = a.status, a.dir
	l.mu.Unlock()
	switch {
	case r.Outcome == Interrupted && r.ExitCode == 0:
		r.ExitCode = 128 + sigint
	case r.Outcome == Killed && r.ExitCode == 0, r.Outcome == Lost:
		r.ExitCode = 128 + int(sandpit.SIGKILL)
	case a.invalid:
		r.ExitCode = 2 // the exit code of shells for a syntax error
	}
	s.status = r.ExitCode
	if r.StateLost = r.Outcome == Lost || r.Outcome == Ended; r.StateLost {
		l.cancel()
		s.shell = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	switch {
	case r.StateLost:
		s.cwd, r.Cwd = s.o.Dir, ""
	case r.Cwd != "":
		s.cwd = r.Cwd
	default:
		r.Cwd = s.cwd
	}
}

// sigint is the number of SIGINT.
const sigint = 2
