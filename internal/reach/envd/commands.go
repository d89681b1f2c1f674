package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/commands"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// idHeader carries the id of a command, both ways.
const idHeader = "Sandpit-Command-Id"

// newReportError returns the error for an invalid report of the guest about a command.
func newReportError(what string) error {
	return sandpit.Errorf(sandpit.Internal, "the guest reports a command with an invalid %s", what)
}

// ListCommands implements sandpit.Journal.
func (c *Client) ListCommands(ctx context.Context) ([]sandpit.CommandInfo, error) {
	res, err := c.commandLists.ListCommands(ctx, connect.NewRequest(&commands.ListCommandsRequest{}))
	if err != nil {
		return nil, fmt.Errorf("list commands: %w", callError(ctx, err))
	}
	list := make([]sandpit.CommandInfo, 0, len(res.Msg.GetCommands()))
	for _, told := range res.Msg.GetCommands() {
		info, err := commandInfo(told)
		if err != nil {
			return nil, fmt.Errorf("list commands: %w", err)
		}
		list = append(list, info)
	}
	return list, nil
}

// GetCommand implements sandpit.Journal.
func (c *Client) GetCommand(ctx context.Context, id string) (sandpit.CommandInfo, error) {
	info, err := c.getCommand(ctx, id)
	if err != nil {
		return sandpit.CommandInfo{}, fmt.Errorf("get command %.80s: %w", plainText(id), err)
	}
	return info, nil
}

func (c *Client) getCommand(ctx context.Context, id string) (sandpit.CommandInfo, error) {
	if err := checkID(id); err != nil {
		return sandpit.CommandInfo{}, err
	}
	res, err := c.commands.GetCommand(ctx, connect.NewRequest(&commands.GetCommandRequest{Id: id}))
	if err != nil {
		return sandpit.CommandInfo{}, callError(ctx, err)
	}
	return commandOf(id, res.Msg.GetCommand())
}

// checkID refuses ids that no command can have.
func checkID(id string) error {
	if sandpit.ValidateCommandID(id) != nil {
		return sandpit.Errorf(sandpit.NotFound, "no such command")
	}
	return nil
}

// ForgetCommand implements sandpit.Journal.
func (c *Client) ForgetCommand(ctx context.Context, id string) error {
	err := checkID(id)
	if err == nil {
		_, err = c.commands.ForgetCommand(ctx, connect.NewRequest(&commands.ForgetCommandRequest{Id: id}))
		if err != nil {
			err = callError(ctx, err)
		}
	}
	if err != nil {
		return fmt.Errorf("forget command %.80s: %w", plainText(id), err)
	}
	return nil
}

// Follow implements sandpit.Journal.
func (c *Client) Follow(ctx context.Context, id string, o sandpit.FollowOptions) (sandpit.Followed, error) {
	r := replay{id: id, to: o, result: sandpit.Followed{Next: o.From}}
	err := checkID(id)
	if err == nil && (o.From.Stdout < 0 || o.From.Stderr < 0) {
		err = sandpit.Errorf(sandpit.Invalid, "an offset is negative")
	}
	if err == nil {
		err = c.replayOutput(ctx, &r)
	}
	if err != nil {
		return r.result, fmt.Errorf("follow command %.80s: %w", plainText(id), err)
	}
	return r.result, nil
}

func (c *Client) replayOutput(ctx context.Context, r *replay) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(startLimit, func() { cancel(errNoStart) })
	defer late.Stop()
	stream, err := c.commands.Follow(ctx, connect.NewRequest(&commands.FollowRequest{
		Id: r.id, StdoutOffset: r.to.From.Stdout, StderrOffset: r.to.From.Stderr, NoWait: r.to.NoWait,
	}))
	if err != nil {
		return callError(ctx, err)
	}
	defer stream.Close()
	for stream.Receive() {
		over, err := r.handleEvent(stream.Msg())
		if err != nil {
			return err
		}
		if r.result.Command.ID != "" {
			late.Stop()
		}
		if over {
			timeout := time.AfterFunc(endGrace, func() { _ = stream.Close() }) // as with a process
			defer timeout.Stop()
			stream.Receive()
			return nil
		}
	}
	if errors.Is(context.Cause(ctx), errNoStart) {
		return errNoStart
	}
	err = stream.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return callError(ctx, err)
}

// replay is the state of following a command's log: what was received, and where it goes.
type replay struct {
	id     string
	to     sandpit.FollowOptions
	result sandpit.Followed
}

// handleEvent handles one event, and reports whether it is the last one.
func (r *replay) handleEvent(event *commands.FollowResponse) (over bool, err error) {
	if start := event.GetStart(); start != nil && r.result.Command.ID == "" {
		r.result.Command, err = commandOf(r.id, start)
		return false, err
	}
	if r.result.Command.ID == "" && event.GetKeepalive() == nil {
		return false, sandpit.Errorf(sandpit.Internal, "the first event of the guest does not describe the command")
	}
	switch e := event.GetEvent().(type) {
	case *commands.FollowResponse_Output:
		return false, r.handleOutput(e.Output)
	case *commands.FollowResponse_Missing:
		return false, r.handleMissing(e.Missing)
	case *commands.FollowResponse_End:
		return true, r.handleEnd(e.End)
	case *commands.FollowResponse_Keepalive:
		return false, nil
	}
	return false, sandpit.Errorf(sandpit.Internal, "the guest sends an unknown event of a command")
}

// offsetOf returns the current offset of a stream, or an error if the guest reports another
// offset or an invalid number of bytes.
func (r *replay) offsetOf(stream commands.Stream, offset, n int64) (*int64, error) {
	next := &r.result.Next.Stdout
	switch stream {
	case commands.Stream_STREAM_STDOUT:
	case commands.Stream_STREAM_STDERR:
		next = &r.result.Next.Stderr
	default:
		return nil, newReportError("stream")
	}
	if offset != *next || n <= 0 || n > math.MaxInt64-offset {
		return nil, newReportError("output offset")
	}
	return next, nil
}

func (r *replay) handleOutput(o *commands.Output) error {
	next, err := r.offsetOf(o.GetStream(), o.GetOffset(), int64(len(o.GetData())))
	if err != nil {
		return err
	}
	to := r.to.Stdout
	if o.GetStream() == commands.Stream_STREAM_STDERR {
		to = r.to.Stderr
	}
	n := len(o.GetData())
	if to != nil {
		n, err = to.Write(o.GetData())
		n = max(0, min(n, len(o.GetData())))
		if err == nil && n < len(o.GetData()) {
			err = io.ErrShortWrite
		}
	}
	*next += int64(n)
	if err != nil {
		return fmt.Errorf("copy output: %w", err)
	}
	return nil
}

func (r *replay) handleMissing(m *commands.Missing) error {
	next, err := r.offsetOf(m.GetStream(), m.GetOffset(), m.GetBytes())
	if err != nil {
		return err
	}
	isStderr := m.GetStream() == commands.Stream_STREAM_STDERR
	if r.to.Missing != nil {
		r.to.Missing(isStderr, m.GetOffset(), m.GetBytes())
	}
	*next += m.GetBytes()
	if isStderr {
		r.result.Missing.Stderr += m.GetBytes()
	} else {
		r.result.Missing.Stdout += m.GetBytes()
	}
	return nil
}

func (r *replay) handleEnd(end *commands.Command) error {
	info, err := commandOf(r.id, end)
	if err != nil {
		return err
	}
	next := sandpit.Offsets{Stdout: info.Stdout.Size, Stderr: info.Stderr.Size}
	switch {
	case !info.Ended && !r.to.NoWait:
		return sandpit.Errorf(sandpit.Internal, "the guest does not report how the command ended")
	case next != r.result.Next && !r.to.NoWait, next.Stdout < r.result.Next.Stdout, next.Stderr < r.result.Next.Stderr:
		return sandpit.Errorf(sandpit.Internal, "the guest sent more or less output than the command has")
	}
	r.result.Command = info
	return nil
}

// commandOf is commandInfo for the command with an id.
func commandOf(id string, reported *commands.Command) (sandpit.CommandInfo, error) {
	info, err := commandInfo(reported)
	if err == nil && info.ID != id {
		return sandpit.CommandInfo{}, newReportError("id")
	}
	return info, err
}

// commandInfo checks and converts a guest's description of a command.
func commandInfo(reported *commands.Command) (sandpit.CommandInfo, error) {
	info := sandpit.CommandInfo{
		ID: reported.GetId(), PID: int(reported.GetPid()), Args: reported.GetArgs(), ArgsCut: reported.GetArgsCut(),
		Tag: reported.GetTag(), Terminal: reported.GetTerminal(),
		StartedAt: time.UnixMilli(reported.GetStartedAt()).UTC(),
		Stdout:    sandpit.Journaled{Size: reported.GetStdout().GetSize(), Dropped: reported.GetStdout().GetDropped()},
		Stderr:    sandpit.Journaled{Size: reported.GetStderr().GetSize(), Dropped: reported.GetStderr().GetDropped()},
	}
	none := sandpit.CommandInfo{}
	switch {
	case sandpit.ValidateCommandID(info.ID) != nil:
		return none, newReportError("id")
	case !isPID(reported.GetPid()):
		return none, newReportError("process id")
	case len(info.Args) == 0:
		return none, newReportError("empty command line")
	case !isPossible(info.Stdout) || !isPossible(info.Stderr):
		return none, newReportError("output size")
	case !isMoment(reported.GetStartedAt()):
		return none, newReportError("start time")
	}
	ended := reported.GetEnded()
	if ended == nil {
		return info, nil
	}
	if !isMoment(ended.GetEndedAt()) {
		return none, newReportError("end")
	}
	reason := ended.GetError()
	info.Ended, info.EndedAt, info.TimedOut = true, time.UnixMilli(ended.GetEndedAt()).UTC(), ended.GetTimedOut()
	info.Status = exitStatus(&process.ProcessEvent_EndEvent{
		ExitCode: ended.GetExitCode(), Exited: ended.GetExited(), Status: ended.GetStatus(), Error: &reason,
	})
	return info, nil
}

func isPossible(j sandpit.Journaled) bool {
	return j.Size >= 0 && j.Dropped >= 0 && j.Dropped <= j.Size
}

// isMoment reports whether ms, in milliseconds since 1970, is a valid time.
func isMoment(ms int64) bool {
	year := time.UnixMilli(ms).UTC().Year()
	return year >= 1 && year <= 9999
}
