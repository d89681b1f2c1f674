package data

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// commandLog returns the guest's command log. Unsupported: the provider has none.
func (c *call) commandLog() (sandpit.Journal, error) {
	j, ok := sandpit.As[sandpit.Journal](c.guest)
	if !ok {
		return nil, sandpit.Errorf(sandpit.Unsupported, "the provider of sandbox %s does not record the output of commands", c.id)
	}
	return j, nil
}

// parseCommandID returns the command log and the ID of the command in the path.
func (c *call) parseCommandID() (sandpit.Journal, string, error) {
	id := c.r.PathValue("cid")
	if err := sandpit.ValidateCommandID(id); err != nil {
		return nil, "", sandpit.Errorf(sandpit.NotFound, "no command %.80q", id)
	}
	j, err := c.commandLog()
	return j, id, err
}

func (s *Server) listCommands(ctx context.Context, c *call) error {
	if _, err := c.parseQuery(); err != nil {
		return err
	}
	j, err := c.commandLog()
	if err != nil {
		return err
	}
	list, err := j.ListCommands(ctx)
	if err != nil {
		return err
	}
	page := wire.Page[wire.Command]{Items: make([]wire.Command, 0, len(list))}
	for _, info := range list {
		page.Items = append(page.Items, wire.CommandOf(info))
	}
	return c.writeJSON(http.StatusOK, page)
}

func (s *Server) getCommand(ctx context.Context, c *call) error {
	j, id, err := c.parseCommandID()
	if err != nil {
		return err
	}
	info, err := j.GetCommand(ctx, id)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, wire.CommandOf(info))
}

func (s *Server) forgetCommand(ctx context.Context, c *call) error {
	j, id, err := c.parseCommandID()
	if err != nil {
		return err
	}
	if err := j.ForgetCommand(ctx, id); err != nil {
		return err
	}
	return c.writeNoContent()
}

// signalCommand sends a signal to a running command.
func (s *Server) signalCommand(ctx context.Context, c *call) error {
	j, id, err := c.parseCommandID()
	if err != nil {
		return err
	}
	var req wire.Signal
	if err := c.readBody(&req); err != nil {
		return err
	}
	signal := sandpit.Signal(req.Signal)
	if signal != sandpit.SIGKILL && signal != sandpit.SIGTERM {
		return sandpit.Errorf(sandpit.Invalid, "body.signal: %d, want %d or %d", req.Signal, sandpit.SIGTERM, sandpit.SIGKILL)
	}
	info, err := j.GetCommand(ctx, id)
	if err != nil {
		return err
	}
	if info.Ended {
		return sandpit.Errorf(sandpit.Gone, "command %s has ended", id)
	}
	// The connection is only for the signal; its output is not needed.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	process, err := c.guest.Connect(ctx, info.PID, sandpit.Streams{})
	if err != nil {
		return err
	}
	if process.ID() != id {
		return sandpit.Errorf(sandpit.Gone, "command %s has ended", id)
	}
	if err := process.Signal(ctx, signal); err != nil {
		return err
	}
	return c.writeNoContent()
}

// followCommand sends the recorded output of a command, and new output until it ends.
func (s *Server) followCommand(ctx context.Context, c *call) error {
	j, id, err := c.parseCommandID()
	if err != nil {
		return err
	}
	o, err := c.followOptions()
	if err != nil {
		return err
	}
	info, err := j.GetCommand(ctx, id)
	if err != nil {
		return err
	}
	if o.From.Stdout > info.Stdout.Size || o.From.Stderr > info.Stderr.Size {
		return sandpit.Errorf(sandpit.Invalid, "command %s has written %d bytes to stdout and %d to stderr: invalid offsets %d and %d",
			id, info.Stdout.Size, info.Stderr.Size, o.From.Stdout, o.From.Stderr)
	}
	stream, err := s.openEvents(ctx, c)
	if err != nil {
		return err
	}
	defer stream.closeStream()
	f := &follower{stream: stream, at: o.From}
	o.Stdout, o.Stderr, o.Missing = followed{f, "stdout", &f.at.Stdout}, followed{f, "stderr", &f.at.Stderr}, f.sendMissing
	begin := time.Now()
	end, err := j.Follow(ctx, id, o)
	switch {
	case err != nil:
		return stream.sendFailure(err)
	case !end.Command.Ended:
		return stream.sendEvent("command", f.eventID(), wire.CommandOf(end.Command))
	}
	return stream.sendEvent("exit", f.eventID(), wire.Exit{
		ID: id, ExitCode: end.Command.Status.Code, Duration: commandDuration(end.Command, begin).Seconds(),
		TimedOut: end.Command.TimedOut, OutOfMemory: end.Command.Status.OutOfMemory,
	})
}

// commandDuration returns how long a command took, by the times of the sandbox if they are
// plausible.
func commandDuration(info sandpit.CommandInfo, since time.Time) time.Duration {
	if d := info.EndedAt.Sub(info.StartedAt); d >= 0 && !info.StartedAt.IsZero() {
		return d
	}
	return time.Since(since)
}

// followOptions reads the offsets at which the output starts. The ID of the last event of a
// client that reconnects takes precedence over the query.
func (c *call) followOptions() (sandpit.FollowOptions, error) {
	var o sandpit.FollowOptions
	values, err := c.parseQuery("stdout", "stderr", "follow")
	if err != nil {
		return o, err
	}
	stdout, stderr := values.Get("stdout"), values.Get("stderr")
	if last := c.r.Header.Get("Last-Event-Id"); last != "" {
		stdout, stderr, _ = strings.Cut(last, "-")
	}
	for name, at := range map[string]struct {
		text string
		to   *int64
	}{"stdout": {stdout, &o.From.Stdout}, "stderr": {stderr, &o.From.Stderr}} {
		n, err := strconv.ParseInt(cmp.Or(at.text, "0"), 10, 64)
		if err != nil || n < 0 {
			return o, sandpit.Errorf(sandpit.Invalid, "%s: invalid offset %.20q", name, at.text)
		}
		*at.to = n
	}
	switch values.Get("follow") {
	case "", "true":
	case "false":
		o.NoWait = true
	default:
		return o, sandpit.Errorf(sandpit.Invalid, "query: follow: want true or false")
	}
	return o, nil
}

// follower sends the output of a command. It is for one goroutine.
type follower struct {
	stream *events
	at     sandpit.Offsets // after what was sent
}

// eventID returns the ID of an event: the offsets after it.
func (f *follower) eventID() string { return fmt.Sprintf("%d-%d", f.at.Stdout, f.at.Stderr) }

func (f *follower) sendMissing(stderr bool, offset, n int64) {
	name, at := "stdout", &f.at.Stdout
	if stderr {
		name, at = "stderr", &f.at.Stderr
	}
	*at = offset + n
	// If the client has disconnected, the next write fails.
	_ = f.stream.sendEvent("missing", f.eventID(), wire.Missing{Stream: name, Offset: offset, Bytes: n})
}

// followed writes one stream of a command.
type followed struct {
	*follower
	name   string
	offset *int64
}

// Write implements io.Writer.
func (f followed) Write(b []byte) (int, error) {
	*f.offset += int64(len(b))
	if err := f.stream.sendEvent(f.name, f.eventID(), wire.Output{Data: b}); err != nil {
		return 0, err
	}
	return len(b), nil
}
