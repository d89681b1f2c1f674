package data

import (
	"context"
	"crypto/rand"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// defaultWindow is the default number of bytes of each stream in a response.
const defaultWindow = 1 << 20

// maxDuration is the maximum duration of an announced command, in seconds: some 30 years.
const maxDuration = 1e9

// announceCommand checks and records a command that the client is about to run in a shell, or
// records how such a command ended.
func (s *Server) announceCommand(ctx context.Context, c *call) error {
	var req wire.Announcement
	if err := c.readBody(&req); err != nil {
		return err
	}
	to := sandpit.ObserverOf(c.guest)
	switch {
	case (len(req.Args) == 0) == (req.Ended == nil):
		return sandpit.Errorf(sandpit.Invalid, "body: want either args or ended")
	case req.Ended != nil && (!(req.Ended.Took >= 0 && req.Ended.Took <= maxDuration) || req.Ended.ExitCode < 0 || req.Ended.ExitCode > 255):
		return sandpit.Errorf(sandpit.Invalid, "body.ended: want took_seconds up to %d and an exit_code up to 255", int(maxDuration))
	case req.Ended != nil:
		took := time.Duration(req.Ended.Took * float64(time.Second))
		to.Ended(ctx, took, sandpit.ExitStatus{Code: req.Ended.ExitCode}, nil)
		return c.writeNoContent()
	}
	seen := sandpit.CommandCall(sandpit.RunCommand, req.Args)
	var err error
	if to.Admit != nil {
		if err = to.Admit(ctx, req.Args, req.Dir); err != nil {
			seen.Err = sandpit.NotAdmitted(err)
		}
	}
	to.Called(ctx, seen)
	if err != nil {
		return err
	}
	return c.writeNoContent()
}

// runCommand runs a command, and kills it when the client disconnects.
func (s *Server) runCommand(ctx context.Context, c *call) error {
	var req wire.Run
	if err := c.readBody(&req); err != nil {
		return err
	}
	cmd, err := s.toCommand(req)
	if err != nil {
		return err
	}
	switch {
	case req.Detach:
		return s.runDetached(ctx, c, req, cmd)
	case wantsEvents(c.r):
		return s.runEvents(ctx, c, cmd)
	}
	window := int(req.MaxOutput)
	if window == 0 {
		window = int(min(defaultWindow, s.o.MaxOutput))
	}
	stdout, stderr := workspace.NewWindowOf(ctx, window, 1), workspace.NewWindowOf(ctx, window, 1)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	var id string
	result, err := workspace.Execute(ctx, c.guest, cmd, func(p sandpit.Process) { id = p.ID() })
	if err != nil && !result.TimedOut {
		return err
	}
	setSafeHeaders(c.w.Header())
	return api.WriteJSONTexts(c.w, http.StatusOK, wire.RunResult{
		ID: id, ExitCode: result.ExitCode, Duration: result.Duration.Seconds(), TimedOut: result.TimedOut, OutOfMemory: result.OutOfMemory,
		Truncated: stdout.Truncated() || stderr.Truncated(),
	}, map[string]api.Text{"stdout": stdout.Close(), "stderr": stderr.Close()})
}

// toCommand converts a request to a command.
func (s *Server) toCommand(req wire.Run) (sandpit.Command, error) {
	cmd := sandpit.Command{Args: req.Args, Env: req.Env, Dir: req.Dir, User: req.User}
	switch {
	case (req.Command == "") == (len(req.Args) == 0):
		return cmd, sandpit.Errorf(sandpit.Invalid, "body: want either a command or args")
	case req.Command != "":
		cmd.Args = []string{"/bin/sh", "-c", req.Command}
	}
	if req.MaxOutput < 0 || req.MaxOutput > s.o.MaxOutput {
		return cmd, sandpit.Errorf(sandpit.Invalid, "max_output %d: want 1 to %d", req.MaxOutput, s.o.MaxOutput)
	}
	var err error
	if cmd.Timeout, err = parseTimeoutOr(req.Timeout, s.o.Timeout); err != nil {
		return cmd, err
	}
	if req.Stdin != "" {
		cmd.Stdin = strings.NewReader(req.Stdin)
	}
	return cmd, nil
}

// maxTimeout is the maximum timeout. Requests have another way to say "none".
const maxTimeout = 10 * 365 * 24 * time.Hour

// parseTimeoutOr converts a number of seconds: 0 is the default, below zero is no timeout.
func parseTimeoutOr(seconds float64, usual time.Duration) (time.Duration, error) {
	switch {
	case seconds == 0:
		return usual, nil
	case seconds < 0:
		return 0, nil
	case math.IsNaN(seconds) || seconds > maxTimeout.Seconds():
		return 0, sandpit.Errorf(sandpit.Invalid, "timeout_seconds %v: want at most %.0f, or -1 for none", seconds, maxTimeout.Seconds())
	}
	return max(time.Millisecond, time.Duration(seconds*float64(time.Second))), nil
}

// runDetached starts a command that keeps running without a client.
func (s *Server) runDetached(ctx context.Context, c *call, req wire.Run, cmd sandpit.Command) error {
	if _, err := c.commandLog(); err != nil {
		return err
	}
	if req.Stdin != "" {
		return sandpit.Errorf(sandpit.Invalid, "body: a detached command has no input")
	}
	if req.Timeout == 0 {
		cmd.Timeout = 0 // no client waits for it
	}
	cmd.ID = "run-" + strings.ToLower(rand.Text())
	// The command outlives the stream that starts it, which ends here.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	process, err := c.guest.Start(ctx, cmd)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusAccepted, wire.Started{ID: process.ID(), PID: process.PID()})
}

// runEvents runs a command and sends its output as events.
func (s *Server) runEvents(ctx context.Context, c *call, cmd sandpit.Command) error {
	var stream *events
	var streamErr error
	var id string
	opened := make(chan struct{}) // output waits for it
	cmd.Stdout = &outputEvents{name: "stdout", stream: &stream, opened: opened}
	cmd.Stderr = &outputEvents{name: "stderr", stream: &stream, opened: opened}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	result, err := workspace.Execute(ctx, c.guest, cmd, func(p sandpit.Process) {
		defer close(opened)
		id = p.ID()
		if stream, streamErr = s.openEvents(ctx, c); streamErr == nil {
			streamErr = stream.sendEvent("start", "", wire.Started{ID: id, PID: p.PID()})
		}
		if streamErr != nil {
			cancel(streamErr)
		}
	})
	if stream == nil { // the command has not started, or the client has disconnected
		return err
	}
	defer stream.closeStream()
	if err != nil && !result.TimedOut {
		return stream.sendFailure(err)
	}
	return stream.sendEvent("exit", "", wire.Exit{
		ID: id, ExitCode: result.ExitCode, Duration: result.Duration.Seconds(), TimedOut: result.TimedOut, OutOfMemory: result.OutOfMemory,
	})
}

// outputEvents sends what is written to it as events.
type outputEvents struct {
	name   string
	stream **events // set when opened is closed; nil if the client has disconnected
	opened chan struct{}
}

// Write implements io.Writer.
func (o *outputEvents) Write(b []byte) (int, error) {
	<-o.opened
	if *o.stream == nil {
		return len(b), nil
	}
	if err := (*o.stream).sendEvent(o.name, "", wire.Output{Data: b}); err != nil {
		return 0, err
	}
	return len(b), nil
}
