package sshd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

const (
	// maxCommand bounds the text of a command, in bytes.
	maxCommand = 128 << 10
	// maxValue bounds the value of a variable, in bytes.
	maxValue = 128
	// ending is how long it may take to end a process whose client has gone.
	ending = 5 * time.Second
)

// The exit statuses that are not a program's own.
const (
	statusFailed   = 255 // as ssh itself has it
	statusNotFound = 127
	statusNotStart = 126
)

// shellText is the shell that people get.
const shellText = "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi"

// session is one channel in which something runs.
type session struct {
	*connection

	channel ssh.Channel
	env     map[string]string
	begun   bool

	mu       sync.Mutex
	terminal *sandpit.TerminalSize // nil: none
	process  sandpit.Process       // nil: not started yet
}

// serveSession serves a channel until it is closed, and ends what runs in it then.
func (c *connection) serveSession(offer ssh.NewChannel) {
	channel, requests, err := offer.Accept()
	if err != nil {
		return // the client has gone
	}
	s := &session{connection: c, channel: lively{channel, c.recordTraffic}, env: make(map[string]string)}
	ctx, cancel := context.WithCancelCause(c.ctx)
	var group sync.WaitGroup
	// In this order: the program sees that the client is gone, and then is waited for.
	defer channel.Close()
	defer group.Wait()
	defer cancel(errGone)
	for r := range requests {
		run, ok := s.handleRequest(ctx, r)
		if r.WantReply {
			_ = r.Reply(ok, nil) // fails only if the client is gone
		}
		if run != nil {
			group.Go(func() {
				defer channel.Close()
				run(ctx)
			})
		}
	}
}

// handleRequest does what a client asks for, or returns what is to be run for it.
func (s *session) handleRequest(ctx context.Context, r *ssh.Request) (run func(context.Context), ok bool) {
	switch r.Type {
	case "env":
		return nil, s.setEnv(r.Payload)
	case "pty-req":
		return nil, s.setTerminal(r.Payload)
	case "window-change":
		return nil, s.resizeTerminal(ctx, r.Payload)
	case "signal":
		return nil, s.sendSignal(ctx, r.Payload)
	case "shell":
		return s.startOnce(func(ctx context.Context) { s.runShell(ctx, "ssh shell", shellText) })
	case "exec":
		var wanted struct{ Command string }
		if ssh.Unmarshal(r.Payload, &wanted) != nil || len(wanted.Command) > maxCommand {
			return nil, false
		}
		return s.startOnce(func(ctx context.Context) { s.runShell(ctx, "ssh exec", wanted.Command) })
	case "subsystem":
		var wanted struct{ Name string }
		if ssh.Unmarshal(r.Payload, &wanted) != nil || wanted.Name != "sftp" {
			return nil, false
		}
		return s.startOnce(s.serveSFTP)
	}
	return nil, false
}

// startOnce lets one thing run in a session.
func (s *session) startOnce(run func(context.Context)) (func(context.Context), bool) {
	if s.begun {
		return nil, false
	}
	s.begun = true
	return run, true
}

// setEnv accepts the variables of the locale. Others could change what programs do.
func (s *session) setEnv(raw []byte) bool {
	var v struct{ Name, Value string }
	if ssh.Unmarshal(raw, &v) != nil || v.Name != "LANG" || !isPlain(v.Value) || s.begun {
		return false
	}
	s.env[v.Name] = v.Value
	return true
}

// isPlain reports whether a value is one word of letters, digits and a few signs.
func isPlain(value string) bool {
	for _, r := range value {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-' && r != '@' && r != '+' {
			return false
		}
	}
	return value != "" && len(value) <= maxValue
}

func (s *session) setTerminal(raw []byte) bool {
	var t struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	if ssh.Unmarshal(raw, &t) != nil || s.begun {
		return false
	}
	if isPlain(t.Term) {
		s.env["TERM"] = t.Term
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	size := sizeOf(t.Cols, t.Rows)
	s.terminal = &size
	return true
}

// sizeOf is 80 by 24 where a client has no idea.
func sizeOf(cols, rows uint32) sandpit.TerminalSize {
	size := sandpit.TerminalSize{Cols: 80, Rows: 24}
	if cols > 0 && cols <= 0xffff {
		size.Cols = uint16(cols)
	}
	if rows > 0 && rows <= 0xffff {
		size.Rows = uint16(rows)
	}
	return size
}

func (s *session) resizeTerminal(ctx context.Context, raw []byte) bool {
	var t struct{ Cols, Rows, Width, Height uint32 }
	if ssh.Unmarshal(raw, &t) != nil {
		return false
	}
	s.mu.Lock()
	if s.terminal == nil {
		s.mu.Unlock()
		return false
	}
	*s.terminal = sizeOf(t.Cols, t.Rows)
	size, process := *s.terminal, s.process
	s.mu.Unlock()
	if process != nil {
		ctx, cancel := context.WithTimeout(ctx, ending)
		defer cancel()
		_ = process.Resize(ctx, size) // a program that has just ended has no size
	}
	return true
}

func (s *session) sendSignal(ctx context.Context, raw []byte) bool {
	var wanted struct{ Name string }
	if ssh.Unmarshal(raw, &wanted) != nil {
		return false
	}
	number := sandpit.SIGTERM
	if wanted.Name == "KILL" {
		number = sandpit.SIGKILL
	} else if wanted.Name != "TERM" {
		return false // guests know no others
	}
	s.mu.Lock()
	process := s.process
	s.mu.Unlock()
	if process == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, ending)
	defer cancel()
	return process.Signal(ctx, number) == nil
}

// runShell runs a shell command and sends its exit status.
func (s *session) runShell(ctx context.Context, action, text string) {
	begin := time.Now()
	status, err := s.runCommand(ctx, text)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	s.reportEvent(action, nil, err, time.Since(begin))
	switch {
	case err == nil:
		if status.OutOfMemory {
			s.writeMessage("out of memory: the command was killed")
		}
		s.sendExit(status)
		return
	case ctx.Err() == nil && sandpit.CodeOf(err) == sandpit.NotFound:
		status.Code = statusNotFound
	case ctx.Err() == nil && sandpit.CodeOf(err) == sandpit.PermissionDenied:
		status.Code = statusNotStart
	default:
		status.Code = statusFailed
	}
	s.writeMessage(err.Error())
	if hint := sandpit.HintOf(err); hint != "" {
		s.writeMessage("hint: " + hint)
	}
	s.sendExit(sandpit.ExitStatus{Code: status.Code})
}

// runCommand runs a command to its end. When ctx ends, so does the command.
func (s *session) runCommand(ctx context.Context, text string) (sandpit.ExitStatus, error) {
	s.mu.Lock()
	cmd := sandpit.Command{Args: []string{"/bin/sh", "-c", text}, Env: s.env, Stdin: s.channel, Stdout: s.channel, Stderr: s.channel.Stderr()}
	if s.terminal != nil {
		size := *s.terminal
		cmd.Terminal = &size
	}
	s.mu.Unlock()
	process, err := s.sandbox.Guest().Start(ctx, cmd)
	if err != nil {
		return sandpit.ExitStatus{}, err
	}
	s.mu.Lock()
	s.process = process
	resized := s.terminal != nil && *s.terminal != *cmd.Terminal
	var size sandpit.TerminalSize
	if resized {
		size = *s.terminal
	}
	s.mu.Unlock()
	if resized {
		_ = process.Resize(ctx, size) // a program that has just ended has no size
	}
	status, err := process.Wait(ctx)
	if ctx.Err() != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), ending)
		defer cancel()
		_ = process.Signal(late, sandpit.SIGKILL) // it has ended, or its sandbox has
	}
	return status, err
}

// writeMessage writes a message for the client to its standard error.
func (s *session) writeMessage(text string) {
	end := "\n"
	if s.terminal != nil {
		end = "\r\n"
	}
	_, _ = fmt.Fprintf(s.channel.Stderr(), "sandpit: %s%s", toVisible(api.Redactor{}.Text(text)), end) // fails only if the client is gone
}

// sendExit sends how a program ended, which is the last message of a channel.
func (s *session) sendExit(status sandpit.ExitStatus) {
	_ = s.channel.CloseWrite() // fails only if the client is gone
	if name := signalName(status); name != "" {
		_, _ = s.channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Name    string
			Core    bool
			Message string
			Lang    string
		}{Name: name, Message: status.String()}))
		return
	}
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(status.Code)})) //nolint:gosec // 0 to 255
}

// signalName is what the protocol calls the signal that ended a program, "" if none did,
// or one that it has no name for.
func signalName(status sandpit.ExitStatus) string {
	if !status.Signaled {
		return ""
	}
	return map[int]string{
		1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM",
	}[status.Code-128]
}
