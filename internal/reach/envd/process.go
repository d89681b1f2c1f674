package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// inputChunk is the most input in one message, in bytes.
const inputChunk = 64 << 10

// remoteProcess is a sandpit.Process.
type remoteProcess struct {
	client *Client
	pid    uint32
	id     string // "" if the guest sends none
	cancel context.CancelCauseFunc

	inputSent atomic.Bool

	ended  chan struct{}
	status sandpit.ExitStatus // set before ended is closed
	err    error
}

// Start implements sandpit.Processes.
func (c *Client) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	if len(cmd.Args) == 0 || cmd.Args[0] == "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "start: no command")
	}
	if cmd.ID != "" {
		if err := sandpit.ValidateCommandID(cmd.ID); err != nil {
			return nil, fmt.Errorf("start %s: %w", cmd.Args[0], err)
		}
	}
	scope, begin := sandpit.CommandScopeOf(ctx), time.Now()
	cmd = scope.Apply(cmd)
	p, err := c.followProcess(ctx, followOptions{
		streams:  sandpit.Streams{Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr},
		terminal: cmd.Terminal != nil,
		limit:    cmd.Timeout, fromStart: true, hasInput: cmd.Stdin != nil,
		ended: func(status sandpit.ExitStatus, err error) { scope.Ended(time.Since(begin), status, err) },
		open: func(ctx context.Context) (events, error) {
			stream, err := c.processes.Start(ctx, startRequest(cmd))
			return startEvents{stream}, err
		},
	})
	if err == nil && cmd.ID != "" && p.id != cmd.ID {
		err = p.giveUp(ctx)
	}
	if err != nil {
		err = fmt.Errorf("start %s: %w", cmd.Args[0], err)
		scope.Ended(time.Since(begin), sandpit.ExitStatus{}, err)
		return nil, err
	}
	return p, nil
}

// giveUp kills a process that has no id but needs one: a guest without a command log starts
// the process nevertheless.
func (p *remoteProcess) giveUp(ctx context.Context) error {
	p.cancel(nil)
	killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	err := sandpit.Errorf(sandpit.Unsupported, "this guest has no command log")
	if killErr := p.Signal(killCtx, sandpit.SIGKILL); killErr != nil && sandpit.CodeOf(killErr) != sandpit.Gone {
		err = sandpit.Errorf(sandpit.Unsupported, "%w; the process may keep running: %w", err, killErr)
	}
	return err
}

// Connect implements sandpit.Processes. The guest does not report whether the process has a
// terminal: input goes to the terminal if the process accepts no other.
func (c *Client) Connect(ctx context.Context, pid int, s sandpit.Streams) (sandpit.Process, error) {
	if pid < 1 || pid > math.MaxInt32 {
		return nil, sandpit.Errorf(sandpit.NotFound, "connect: no process %d", pid)
	}
	p, err := c.followProcess(ctx, followOptions{
		streams: s,
		open: func(ctx context.Context) (events, error) {
			stream, err := c.processes.Connect(ctx, connect.NewRequest(&process.ConnectRequest{Process: pidSelector(uint32(pid))})) //nolint:gosec // checked above
			return connectEvents{stream}, err
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to process %d: %w", pid, err)
	}
	return p, nil
}

// ListProcesses implements sandpit.Processes.
func (c *Client) ListProcesses(ctx context.Context) ([]sandpit.ProcessInfo, error) {
	res, err := c.lists.List(ctx, connect.NewRequest(&process.ListRequest{}))
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", callError(ctx, err))
	}
	list := make([]sandpit.ProcessInfo, 0, len(res.Msg.GetProcesses()))
	for _, p := range res.Msg.GetProcesses() {
		if !isPID(p.GetPid()) {
			return nil, sandpit.Errorf(sandpit.Internal, "list processes: the guest reports an invalid process")
		}
		config := p.GetConfig()
		list = append(list, sandpit.ProcessInfo{
			PID: int(p.GetPid()), Args: append([]string{config.GetCmd()}, config.GetArgs()...),
			Env: config.GetEnvs(), Dir: config.GetCwd(), Tag: p.GetTag(),
		})
	}
	return list, nil
}

// followOptions has the options for following a process.
type followOptions struct {
	streams  sandpit.Streams
	terminal bool
	limit    time.Duration // the guest kills the process then; 0 means never
	open     func(context.Context) (events, error)
	// fromStart is true if the stream has all of the process's output.
	fromStart bool
	// hasInput is true if the process gets input.
	hasInput bool
	// ended is called when the process has ended. May be nil.
	ended func(sandpit.ExitStatus, error)
}

// followProcess opens the stream of a process and copies its input and output until the
// process has ended.
func (c *Client) followProcess(ctx context.Context, f followOptions) (*remoteProcess, error) {
	if err := ctx.Err(); err != nil { // the calls below may notice too late
		return nil, callError(ctx, err)
	}
	// The caller's deadline must not become the process's: only the command's timeout is.
	streamCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	if f.limit > 0 {
		streamCtx = context.WithValue(streamCtx, limitKey{}, f.limit)
	}
	unlink := context.AfterFunc(ctx, func() { cancel(ctx.Err()) })
	late := time.AfterFunc(startLimit, func() { cancel(errNoStart) })
	defer late.Stop()
	stream, err := f.open(streamCtx)
	var pid uint32
	if err == nil {
		if pid, err = receiveStart(stream); err != nil {
			_ = stream.Close() // err is returned already
		}
	}
	if err != nil {
		unlink()
		if errors.Is(context.Cause(streamCtx), errNoStart) {
			return nil, errNoStart
		}
		cancel(nil)
		return nil, callError(ctx, err)
	}
	p := &remoteProcess{client: c, pid: pid, cancel: cancel, ended: make(chan struct{})}
	if id := stream.ResponseHeader().Get(idHeader); sandpit.ValidateCommandID(id) == nil {
		p.id = id
	}
	inputCtx, stopInput := context.WithCancel(streamCtx)
	if f.streams.Stdin != nil {
		go p.sendInput(inputCtx, f) // ends with the process, except for a pending Read of the caller's input
	}
	go func() {
		defer close(p.ended)
		defer cancel(nil)
		defer unlink()
		defer stopInput()
		p.status, p.err = p.receiveOutput(streamCtx, stream, f)
		if f.ended != nil {
			f.ended(p.status, p.err)
		}
	}()
	return p, nil
}

// events is the stream of a process's events, from Start or from Connect.
type events interface {
	Receive() bool
	Event() *process.ProcessEvent
	ResponseHeader() http.Header
	Err() error
	Close() error
}

type startEvents struct {
	*connect.ServerStreamForClient[process.StartResponse]
}

func (e startEvents) Event() *process.ProcessEvent { return e.Msg().GetEvent() }

type connectEvents struct {
	*connect.ServerStreamForClient[process.ConnectResponse]
}

func (e connectEvents) Event() *process.ProcessEvent { return e.Msg().GetEvent() }

func startRequest(cmd sandpit.Command) *connect.Request[process.StartRequest] {
	stdin := cmd.Stdin != nil
	msg := &process.StartRequest{
		Process: &process.ProcessConfig{Cmd: cmd.Args[0], Args: cmd.Args[1:], Envs: cmd.Env},
		Stdin:   &stdin,
	}
	if cmd.Dir != "" {
		msg.Process.Cwd = &cmd.Dir
	}
	if cmd.Tag != "" {
		msg.Tag = &cmd.Tag
	}
	if cmd.Terminal != nil {
		msg.Pty = terminalSize(*cmd.Terminal)
	}
	req := connect.NewRequest(msg)
	asUser(req.Header(), cmd.User)
	if cmd.ID != "" {
		req.Header().Set(idHeader, cmd.ID)
	}
	return req
}

func terminalSize(size sandpit.TerminalSize) *process.PTY {
	return &process.PTY{Size: &process.PTY_Size{Cols: uint32(size.Cols), Rows: uint32(size.Rows)}}
}

// receiveStart reads the first event, which must have the process's number.
func receiveStart(stream events) (uint32, error) {
	if !stream.Receive() {
		if err := stream.Err(); err != nil {
			return 0, err
		}
		return 0, io.ErrUnexpectedEOF
	}
	start := stream.Event().GetStart()
	if !isPID(start.GetPid()) {
		return 0, sandpit.Errorf(sandpit.Internal, "the guest did not report the start of the process")
	}
	return start.GetPid(), nil
}

// startLimit is how long a guest may take for the start event of a stream. Keepalives before
// that do not count.
const startLimit = 2 * time.Minute

var errNoStart = sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the guest sent no start event within %v", startLimit),
	"if this persists, end its processes and keep its files with: sandpit stop ID && sandpit start ID")

func isPID(n uint32) bool { return n >= 1 && n <= math.MaxInt32 }

// endGrace is how long a stream may take to end after its last event.
const endGrace = time.Second

// maxResumes is how often a stream may break before the client gives up the process: a
// hostile guest could break every stream.
const maxResumes = 1000

// killTimeout bounds the attempt to kill an unwanted process.
const killTimeout = 5 * time.Second

// receiveOutput copies output until the process has ended.
func (p *remoteProcess) receiveOutput(ctx context.Context, stream events, f followOptions) (sandpit.ExitStatus, error) {
	defer stream.Close()
	var told sandpit.Offsets
	for stream.Receive() {
		event := stream.Event()
		if end := event.GetEnd(); end != nil {
			// After the end of the stream the connection can be reused. The wait for a
			// guest that does not end it is bounded.
			impatient := time.AfterFunc(endGrace, func() { _ = stream.Close() })
			defer impatient.Stop()
			stream.Receive()
			return exitStatus(end), nil
		}
		if err := copyOutput(event.GetData(), f.streams); err != nil {
			return sandpit.ExitStatus{}, fmt.Errorf("copy output: %w", err)
		}
		told.Stdout += int64(len(event.GetData().GetStdout()) + len(event.GetData().GetPty()))
		told.Stderr += int64(len(event.GetData().GetStderr()))
	}
	if cause := context.Cause(ctx); cause != nil {
		return sandpit.ExitStatus{}, cause
	}
	err := stream.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	err = callError(ctx, err)
	if !f.fromStart || p.id == "" {
		return sandpit.ExitStatus{}, err
	}
	switch sandpit.CodeOf(err) {
	case sandpit.Gone:
	case sandpit.Unavailable: // the connection broke, and with it what the guest has not received of the input
		if f.hasInput {
			return sandpit.ExitStatus{}, err
		}
	default:
		return sandpit.ExitStatus{}, err
	}
	return p.resumeOutput(ctx, told, f.streams, err)
}

// resumeOutput continues to follow a process whose stream broke, for instance because the
// sandbox was saved: the command log has the output that was not received. broken is the
// error if the process cannot be followed any more.
func (p *remoteProcess) resumeOutput(ctx context.Context, received sandpit.Offsets, to sandpit.Streams, broken error) (sandpit.ExitStatus, error) {
	for range maxResumes {
		r := replay{
			id: p.id, result: sandpit.Followed{Next: received},
			to: sandpit.FollowOptions{From: received, Stdout: to.Stdout, Stderr: to.Stderr},
		}
		err := p.client.replayOutput(ctx, &r)
		received = r.result.Next
		switch {
		case context.Cause(ctx) != nil:
			return sandpit.ExitStatus{}, context.Cause(ctx)
		case r.result.Missing != sandpit.Offsets{}:
			return sandpit.ExitStatus{}, sandpit.Errorf(sandpit.Exhausted, "output was dropped before it was read: %w", broken)
		case err == nil && r.result.Command.TimedOut:
			return sandpit.ExitStatus{}, sandpit.Errorf(sandpit.Timeout, "the process was killed at its deadline")
		case err == nil:
			return r.result.Command.Status, nil
		case sandpit.CodeOf(err) == sandpit.Conflict: // the sandbox is paused, or stopped
			return sandpit.ExitStatus{}, err
		case sandpit.CodeOf(err) != sandpit.Gone && sandpit.CodeOf(err) != sandpit.NotFound:
			return sandpit.ExitStatus{}, err
		case r.result.Command.ID == "": // the command was not found
			return sandpit.ExitStatus{}, broken
		}
	}
	return sandpit.ExitStatus{}, broken
}

func copyOutput(data *process.ProcessEvent_DataEvent, streams sandpit.Streams) error {
	to, b := streams.Stdout, data.GetStdout()
	switch {
	case len(data.GetStderr()) > 0:
		to, b = streams.Stderr, data.GetStderr()
	case len(data.GetPty()) > 0:
		b = data.GetPty()
	}
	if to == nil || len(b) == 0 {
		return nil
	}
	_, err := to.Write(b)
	return err
}

// outOfMemory is the error text of sandpit's guest for a process that it killed because
// memory had run out.
const outOfMemory = "out of memory: killed"

// exitStatus converts the guest's end event to a shell's exit code. The status text has the
// name of a signal.
func exitStatus(end *process.ProcessEvent_EndEvent) sandpit.ExitStatus {
	if end.GetExited() || end.GetExitCode() >= 0 {
		return sandpit.ExitStatus{Code: int(end.GetExitCode()) & 0xff}
	}
	status := sandpit.ExitStatus{Code: 128 + int(sandpit.SIGKILL), Signaled: true, OutOfMemory: end.GetError() == outOfMemory}
	for sig := syscall.Signal(1); sig < 65; sig++ {
		if end.GetStatus() == "signal: "+sig.String() {
			status.Code = 128 + int(sig)
		}
	}
	return status
}

// sendInput copies the command's input until it ends, and then closes it. It reports no
// errors, because the process's own stream reports the same failures.
func (p *remoteProcess) sendInput(ctx context.Context, f followOptions) {
	stream, err := p.openInput(ctx)
	buf := make([]byte, inputChunk)
	for err == nil {
		var n int
		n, err = f.streams.Stdin.Read(buf)
		if n > 0 && ctx.Err() == nil {
			sendErr := stream.Send(inputEvent(buf[:n], f.terminal))
			// Typed input may be sent again; for a file it is unknown how much arrived.
			if sendErr != nil && f.terminal && ctx.Err() == nil {
				_, _ = stream.CloseAndReceive() // is broken
				if stream, sendErr = p.openInput(ctx); sendErr == nil {
					sendErr = stream.Send(inputEvent(buf[:n], true))
				}
			}
			if sendErr != nil {
				err = sendErr
			}
		}
	}
	_, closeErr := stream.CloseAndReceive()
	if !errors.Is(err, io.EOF) || closeErr != nil || ctx.Err() != nil {
		return
	}
	if f.terminal {
		const endOfInput = "\x04"
		_, _ = p.client.processes.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{
			Process: p.processSelector(),
			Input:   &process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: []byte(endOfInput)}},
		}))
		return
	}
	_, err = p.client.processes.CloseStdin(ctx, connect.NewRequest(&process.CloseStdinRequest{Process: p.processSelector()}))
	p.inputSent.Store(err == nil)
}

// openInput opens a stream for input.
func (p *remoteProcess) openInput(ctx context.Context) (*connect.ClientStreamForClient[process.StreamInputRequest, process.StreamInputResponse], error) {
	stream := p.client.processes.StreamInput(ctx)
	return stream, stream.Send(&process.StreamInputRequest{Event: &process.StreamInputRequest_Start{
		Start: &process.StreamInputRequest_StartEvent{Process: p.processSelector()},
	}})
}

// InputSent reports whether the guest has confirmed all of the process's input, and its end.
func (p *remoteProcess) InputSent() bool { return p.inputSent.Load() }

func inputEvent(b []byte, terminal bool) *process.StreamInputRequest {
	input := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: b}}
	if terminal {
		input = &process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: b}}
	}
	return &process.StreamInputRequest{Event: &process.StreamInputRequest_Data{
		Data: &process.StreamInputRequest_DataEvent{Input: input},
	}}
}

func (p *remoteProcess) processSelector() *process.ProcessSelector { return pidSelector(p.pid) }

func pidSelector(pid uint32) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
}

// PID implements sandpit.Process.
func (p *remoteProcess) PID() int { return int(p.pid) }

// ID implements sandpit.Process.
func (p *remoteProcess) ID() string { return p.id }

// Signal implements sandpit.Process.
func (p *remoteProcess) Signal(ctx context.Context, s sandpit.Signal) error {
	_, err := p.client.processes.SendSignal(ctx, connect.NewRequest(&process.SendSignalRequest{
		Process: p.processSelector(), Signal: process.Signal(s), //nolint:gosec // signals are small
	}))
	if err == nil {
		return nil
	}
	err = callError(ctx, err)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		err = sandpit.Errorf(sandpit.Gone, "%w", err)
	}
	return fmt.Errorf("signal process %d: %w", p.pid, err)
}

// Resize implements sandpit.Process.
func (p *remoteProcess) Resize(ctx context.Context, size sandpit.TerminalSize) error {
	_, err := p.client.processes.Update(ctx, connect.NewRequest(&process.UpdateRequest{
		Process: p.processSelector(), Pty: terminalSize(size),
	}))
	if err != nil {
		return fmt.Errorf("resize the terminal: %w", callError(ctx, err))
	}
	return nil
}

// Wait implements sandpit.Process.
func (p *remoteProcess) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	select {
	case <-p.ended:
		return p.status, p.err
	case <-ctx.Done():
		return sandpit.ExitStatus{}, ctx.Err()
	}
}
