package guest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"

	"github.com/sandpit-dev/sandpit/internal/inside/commandlog"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// processService serves process.Process.
type processService struct{ guest *Guest }

const (
	keepAliveHeader  = "Keepalive-Ping-Interval" // seconds
	defaultKeepAlive = 90 * time.Second
	maxTag           = 1024 // bytes; tags are kept for a while
	defaultPath      = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// userOf returns the user that a call names by HTTP basic authentication, otherwise the default user.
func (g *Guest) userOf(header http.Header) (user, error) {
	name := g.currentSettings().user
	if basic, ok := strings.CutPrefix(header.Get("Authorization"), "Basic "); ok {
		raw, err := base64.StdEncoding.DecodeString(basic)
		if err != nil {
			return user{}, errUser("")
		}
		// The form is NAME:PASSWORD; sandpit's own form uid:gid ends in another colon.
		given := string(raw)
		if i := strings.LastIndexByte(given, ':'); i >= 0 {
			given = given[:i]
		}
		if given != "" {
			name = given
		}
	}
	return g.accounts.lookupUser(name)
}

// Start implements the service.
func (s *processService) Start(ctx context.Context, req *connect.Request[process.StartRequest], stream *connect.ServerStream[process.StartResponse]) error {
	p, err := s.planStart(req.Header(), req.Msg)
	if err != nil {
		return err
	}
	if p.command, p.neverBlocked, err = commandID(req.Header()); err != nil {
		return err
	}
	stream.ResponseHeader().Set(IDHeader, p.command)
	send := func(e *process.ProcessEvent) error { return stream.Send(&process.StartResponse{Event: e}) }
	var follower *subscriber
	if !p.neverBlocked {
		follower = newSubscriber(send)
	}
	c, err := s.guest.processes.startProcess(p, req.Msg, follower)
	if err != nil {
		return wireError(err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		// The deadline bounds the process even after the client has disconnected.
		s.guest.processes.limitTime(c, time.Until(deadline))
	}
	if c.neverBlocked {
		return s.streamLog(ctx, req.Header(), c, commandlog.Offsets{}, send)
	}
	return s.waitForEnd(ctx, req.Header(), c, follower)
}

// Connect implements the service.
func (s *processService) Connect(ctx context.Context, req *connect.Request[process.ConnectRequest], stream *connect.ServerStream[process.ConnectResponse]) error {
	c, err := s.findProcess(req.Msg.GetProcess())
	if err != nil {
		return err
	}
	stream.ResponseHeader().Set(IDHeader, c.command.id)
	send := func(e *process.ProcessEvent) error { return stream.Send(&process.ConnectResponse{Event: e}) }
	if c.neverBlocked {
		size, _ := c.command.log.Amounts()
		return s.streamLog(ctx, req.Header(), c, size, send)
	}
	follower := newSubscriber(send)
	follower.sendFirstEvent(startEvent(c), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.subscribers[follower] = true
	})
	return s.waitForEnd(ctx, req.Header(), c, follower)
}

func startEvent(c *child) *process.ProcessEvent {
	return &process.ProcessEvent{Event: &process.ProcessEvent_Start{
		Start: &process.ProcessEvent_StartEvent{Pid: uint32(c.pid)},
	}}
}

// errSlow is for a client that missed output and cannot be sent the gap in this protocol.
var errSlow = errors.New("output was dropped before it was read; follow the command to have the rest")

// streamLog sends a client the command's log, so that the client never blocks the process.
func (s *processService) streamLog(ctx context.Context, header http.Header, c *child, from commandlog.Offsets, send func(*process.ProcessEvent) error) error {
	if err := send(startEvent(c)); err != nil {
		return err
	}
	f := logFollower{
		command: c.command, interval: keepAliveInterval(header),
		keepAlive: func() error {
			return send(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{Keepalive: &process.ProcessEvent_KeepAlive{}}})
		},
		sendPiece: func(p commandlog.Piece) error {
			if p.Missing > 0 {
				return connect.NewError(connect.CodeResourceExhausted, errSlow)
			}
			return send(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: c.dataEvent(p)}})
		},
	}
	if err := f.followLog(ctx, from); err != nil {
		return err
	}
	<-c.ended // the log ends shortly before
	endAnswer(ctx)
	return c.sendEnd(send)
}

func (c *child) dataEvent(p commandlog.Piece) *process.ProcessEvent_DataEvent {
	switch {
	case c.terminal != nil:
		return terminalEvent(p.Data)
	case p.Stream == commandlog.Stderr:
		return stderrEvent(p.Data)
	}
	return stdoutEvent(p.Data)
}

// sendEnd sends how a process ended.
func (c *child) sendEnd(send func(*process.ProcessEvent) error) error {
	c.mu.Lock()
	timedOut := c.timedOut
	c.mu.Unlock()
	if timedOut {
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the process was killed at its deadline"))
	}
	return send(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: c.end}})
}

// waitForEnd keeps a client's stream open until the process has ended or the client disconnects.
func (s *processService) waitForEnd(ctx context.Context, header http.Header, c *child, follower *subscriber) error {
	defer func() {
		follower.close()
		c.mu.Lock()
		delete(c.subscribers, follower)
		c.mu.Unlock()
	}()
	interval := keepAliveInterval(header)
	idle := time.NewTimer(interval)
	defer idle.Stop()
	for {
		select {
		case <-c.ended:
			endAnswer(ctx)
			return c.sendEnd(func(e *process.ProcessEvent) error {
				follower.sendEvent(e)
				return nil // the client may have disconnected
			})
		case <-ctx.Done():
			return contextError(ctx)
		case <-follower.sent:
			idle.Reset(interval)
		case <-idle.C:
			follower.sendEvent(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{
				Keepalive: &process.ProcessEvent_KeepAlive{},
			}})
			idle.Reset(interval)
		}
	}
}

func contextError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return connect.NewError(connect.CodeDeadlineExceeded, ctx.Err())
	}
	return connect.NewError(connect.CodeCanceled, ctx.Err())
}

func keepAliveInterval(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get(keepAliveHeader))
	if err != nil || seconds < 1 || seconds > 3600 {
		return defaultKeepAlive
	}
	return time.Duration(seconds) * time.Second
}

// limitTime kills the process after a duration.
func (ps *processes) limitTime(c *child, after time.Duration) {
	timer := time.AfterFunc(after, func() {
		c.mu.Lock()
		c.timedOut = true
		c.mu.Unlock()
		_ = ps.reaper.signalChild(c.pid, syscall.SIGKILL) // it may just have ended
	})
	ps.wg.Go(func() {
		<-c.ended
		timer.Stop()
	})
}

// planStart turns a request into a startPlan.
func (s *processService) planStart(header http.Header, req *process.StartRequest) (startPlan, error) {
	var p startPlan
	config := req.GetProcess()
	if config.GetCmd() == "" {
		return p, connect.NewError(connect.CodeInvalidArgument, errors.New("no command"))
	}
	u, err := s.guest.userOf(header)
	if err != nil {
		return p, userError(err)
	}
	if len(req.GetTag()) > maxTag {
		return p, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the tag is longer than %d bytes", maxTag))
	}
	if err := checkEnv(config.GetEnvs()); err != nil {
		return p, connect.NewError(connect.CodeInvalidArgument, err)
	}
	now := s.guest.currentSettings()
	p = startPlan{
		user:  u,
		args:  append([]string{config.GetCmd()}, config.GetArgs()...),
		env:   buildEnviron(u, now.forPrograms(), config.GetEnvs()),
		dir:   u.home,
		stdin: req.Stdin == nil || req.GetStdin(),
	}
	if slices.ContainsFunc(p.args, func(a string) bool { return strings.Contains(a, "\x00") }) {
		return p, connect.NewError(connect.CodeInvalidArgument, errors.New("an argument contains a NUL byte"))
	}
	if p.dir, err = s.startDirectory(u, now, config.GetCwd()); err != nil {
		return p, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if size := req.GetPty().GetSize(); req.GetPty() != nil {
		p.size = &pty.Winsize{Rows: toUint16(size.GetRows()), Cols: toUint16(size.GetCols())}
	}
	if p.program, err = lookPath(config.GetCmd(), pathOf(p.env), p.dir); err != nil {
		return p, wireError(err)
	}
	return p, nil
}

func toUint16(n uint32) uint16 { return uint16(min(n, 1<<16-1)) }

// startDirectory returns the directory in which a process starts: the one in the request, else
// the default, which is created if it has been removed, else the user's home, else "/".
func (s *processService) startDirectory(u user, now settings, requested string) (string, error) {
	if requested != "" {
		dir := u.resolvePath(requested)
		if !isDirectory(dir) {
			return "", fmt.Errorf("cwd '%s' does not exist", dir)
		}
		return dir, nil
	}
	if now.workDir != "" && now.makeWorkDir(s.guest.accounts) == nil {
		return now.workDir, nil
	}
	if isDirectory(u.home) {
		return u.home, nil
	}
	return "/", nil
}

func isDirectory(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}

// buildEnviron returns the environment of a process: the defaults, then the sandbox's variables, then those of the
// request. The last value of a name counts.
func buildEnviron(u user, global, asked map[string]string) []string {
	env := map[string]string{"PATH": defaultPath, "HOME": u.home, "USER": u.name, "LOGNAME": u.name}
	if u.shell != "" {
		env["SHELL"] = u.shell // so that bash need not look up its user
	}
	maps.Copy(env, global)
	maps.Copy(env, asked)
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

func pathOf(env []string) string {
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			return value
		}
	}
	return ""
}

// wireError gives an error of starting a process its code. A missing or unusable program is reported before a process
// exists.
func wireError(err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, errCommandExists):
		code = connect.CodeAlreadyExists
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		code = connect.CodeNotFound
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.ENOEXEC):
		code = connect.CodePermissionDenied
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE):
		code = connect.CodeResourceExhausted
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		code = connect.CodeInvalidArgument
	}
	return connect.NewError(code, err)
}

func (s *processService) findProcess(selector *process.ProcessSelector) (*child, error) {
	c, err := s.guest.processes.findProcess(selector)
	if err != nil {
		return nil, connect.NewError(connect.CodeNotFound, err)
	}
	return c, nil
}

// List implements the service.
func (s *processService) List(context.Context, *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	ps := s.guest.processes
	ps.mu.Lock()
	defer ps.mu.Unlock()
	res := &process.ListResponse{}
	for _, pid := range slices.Sorted(maps.Keys(ps.byPID)) {
		c := ps.byPID[pid]
		if isOver(c.ended, 0) {
			continue // its client already knows
		}
		res.Processes = append(res.Processes, &process.ProcessInfo{Config: c.config, Pid: uint32(pid), Tag: c.tag})
	}
	return connect.NewResponse(res), nil
}

// Update implements the service.
func (s *processService) Update(_ context.Context, req *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	c, err := s.findProcess(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	size := req.Msg.GetPty().GetSize()
	if size == nil {
		return connect.NewResponse(&process.UpdateResponse{}), nil
	}
	if c.terminal == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal"))
	}
	if err := resizeTerminal(c.terminal, toUint16(size.GetRows()), toUint16(size.GetCols())); err != nil {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("resize: %w", err))
	}
	return connect.NewResponse(&process.UpdateResponse{}), nil
}

// SendInput implements the service.
func (s *processService) SendInput(ctx context.Context, req *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	c, err := s.findProcess(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if err := c.acceptInput(ctx, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

// acceptInput writes one piece of input. A terminal accepts both kinds of input, because a client that connected
// later may not know about the terminal.
func (c *child) acceptInput(ctx context.Context, input *process.ProcessInput) error {
	data := input.GetStdin()
	if pty := input.GetPty(); c.terminal != nil && len(pty) > 0 {
		data = pty
	}
	if err := c.writeInput(ctx, data); err != nil {
		return connect.NewError(connect.CodeInternal, fmt.Errorf("write input: %w", err))
	}
	return nil
}

// StreamInput implements the service.
func (s *processService) StreamInput(ctx context.Context, stream *connect.ClientStream[process.StreamInputRequest]) (*connect.Response[process.StreamInputResponse], error) {
	var c *child
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().(type) {
		case *process.StreamInputRequest_Start:
			var err error
			if c, err = s.findProcess(e.Start.GetProcess()); err != nil {
				return nil, err
			}
		case *process.StreamInputRequest_Data:
			if c == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("input before start"))
			}
			if err := c.acceptInput(ctx, e.Data.GetInput()); err != nil {
				return nil, err
			}
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.StreamInputResponse{}), nil
}

// CloseStdin implements the service.
func (s *processService) CloseStdin(_ context.Context, req *connect.Request[process.CloseStdinRequest]) (*connect.Response[process.CloseStdinResponse], error) {
	c, err := s.findProcess(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if err := c.closeInput(); err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return connect.NewResponse(&process.CloseStdinResponse{}), nil
}

// SendSignal implements the service. The signal goes to the process and to everything in its session.
func (s *processService) SendSignal(_ context.Context, req *connect.Request[process.SendSignalRequest]) (*connect.Response[process.SendSignalResponse], error) {
	c, err := s.findProcess(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	sig := syscall.Signal(req.Msg.GetSignal())
	if sig != syscall.SIGKILL && sig != syscall.SIGTERM {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("signal %d: want SIGTERM or SIGKILL", sig))
	}
	if err := s.guest.processes.reaper.signalChild(c.pid, sig); err != nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d: %w", c.pid, err))
	}
	return connect.NewResponse(&process.SendSignalResponse{}), nil
}
