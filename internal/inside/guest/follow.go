package guest

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit/internal/inside/commandlog"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/commands"
)

// logFollower sends the log of a command to a client.
type logFollower struct {
	command   *command
	interval  time.Duration // of keep-alives
	noWait    bool          // stop at the current end of the log
	sendPiece func(commandlog.Piece) error
	keepAlive func() error
}

// followLog sends the log from an offset on until the command has ended.
func (f logFollower) followLog(ctx context.Context, from commandlog.Offsets) error {
	output := f.command.log
	reader, err := output.Reader(from)
	if err != nil {
		return connect.NewError(connect.CodeOutOfRange, errOffsetTooLarge)
	}
	goal, _ := output.Amounts()
	enough := func() bool {
		at := reader.At()
		return f.noWait && at[commandlog.Stdout] >= goal[commandlog.Stdout] && at[commandlog.Stderr] >= goal[commandlog.Stderr]
	}
	idle := time.NewTimer(f.interval)
	defer idle.Stop()
	for {
		changed, over := output.Changed(), isOver(f.command.ended, 0)
		for !enough() {
			p, ok := reader.Next()
			if !ok {
				break
			}
			if ctx.Err() != nil {
				return contextError(ctx)
			}
			if err := f.sendPiece(p); err != nil {
				return err
			}
			idle.Reset(f.interval)
		}
		if over || f.noWait {
			return nil
		}
		select {
		case <-changed:
		case <-f.command.ended:
		case <-ctx.Done():
			return contextError(ctx)
		case <-idle.C:
			if err := f.keepAlive(); err != nil {
				return err
			}
			idle.Reset(f.interval)
		}
	}
}

// commandService serves sandpit.v1.Commands.
type commandService struct{ guest *Guest }

// ListCommands implements the service.
func (s *commandService) ListCommands(context.Context, *connect.Request[commands.ListCommandsRequest]) (*connect.Response[commands.ListCommandsResponse], error) {
	res := &commands.ListCommandsResponse{}
	for _, c := range s.guest.processes.commands.listCommands() {
		res.Commands = append(res.Commands, c.toProto())
	}
	return connect.NewResponse(res), nil
}

func (s *commandService) findCommand(id string) (*command, error) {
	c := s.guest.processes.commands.findCommand(id)
	if c == nil {
		return nil, connect.NewError(connect.CodeNotFound, errUnknownCommand)
	}
	return c, nil
}

// GetCommand implements the service.
func (s *commandService) GetCommand(_ context.Context, req *connect.Request[commands.GetCommandRequest]) (*connect.Response[commands.GetCommandResponse], error) {
	c, err := s.findCommand(req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&commands.GetCommandResponse{Command: c.toProto()}), nil
}

// ForgetCommand implements the service.
func (s *commandService) ForgetCommand(_ context.Context, req *connect.Request[commands.ForgetCommandRequest]) (*connect.Response[commands.ForgetCommandResponse], error) {
	err := s.guest.processes.commands.forgetCommand(req.Msg.GetId())
	switch {
	case errors.Is(err, errUnknownCommand):
		return nil, connect.NewError(connect.CodeNotFound, err)
	case err != nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return connect.NewResponse(&commands.ForgetCommandResponse{}), nil
}

// Follow implements the service.
func (s *commandService) Follow(ctx context.Context, req *connect.Request[commands.FollowRequest], stream *connect.ServerStream[commands.FollowResponse]) error {
	c, err := s.findCommand(req.Msg.GetId())
	if err != nil {
		return err
	}
	from := commandlog.Offsets{commandlog.Stdout: req.Msg.GetStdoutOffset(), commandlog.Stderr: req.Msg.GetStderrOffset()}
	if _, err := c.log.Reader(from); err != nil {
		return connect.NewError(connect.CodeOutOfRange, errOffsetTooLarge)
	}
	if err := stream.Send(&commands.FollowResponse{Event: &commands.FollowResponse_Start{Start: c.toProto()}}); err != nil {
		return err
	}
	f := logFollower{
		command: c, interval: keepAliveInterval(req.Header()), noWait: req.Msg.GetNoWait(),
		sendPiece: func(p commandlog.Piece) error { return stream.Send(pieceEvent(p)) },
		keepAlive: func() error {
			return stream.Send(&commands.FollowResponse{Event: &commands.FollowResponse_Keepalive{Keepalive: &commands.KeepAlive{}}})
		},
	}
	if err := f.followLog(ctx, from); err != nil {
		return err
	}
	endAnswer(ctx)
	return stream.Send(&commands.FollowResponse{Event: &commands.FollowResponse_End{End: c.toProto()}})
}

func pieceEvent(p commandlog.Piece) *commands.FollowResponse {
	stream := commands.Stream_STREAM_STDOUT
	if p.Stream == commandlog.Stderr {
		stream = commands.Stream_STREAM_STDERR
	}
	if p.Missing > 0 {
		return &commands.FollowResponse{Event: &commands.FollowResponse_Missing{
			Missing: &commands.Missing{Stream: stream, Offset: p.Offset, Bytes: p.Missing},
		}}
	}
	return &commands.FollowResponse{Event: &commands.FollowResponse_Output{
		Output: &commands.Output{Stream: stream, Offset: p.Offset, Data: p.Data},
	}}
}
