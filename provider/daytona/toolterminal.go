package daytona

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
)

// startTerminal starts a command in a terminal of its own: the terminal's shell is replaced by it. What
// the shell shows before is dropped.
func (g *toolGuest) startTerminal(ctx context.Context, p *toolProcess, cmd sandpit.Command, prefix string) error {
	b := g.b
	p.terminal = "sandpit-" + rand.Text()
	script := "/tmp/." + p.terminal
	mark := rand.Text()
	text := "rm -f " + quoteShell(script) + "\n" + prefix + `printf '\036%s %s\036' ` + quoteShell(mark) + ` $$` + "\nexec " + quoteArgs(cmd.Args) + "\n"
	if err := b.upload(ctx, script, strings.NewReader(text)); err != nil {
		return err
	}
	c, err := jsonCall("/process/pty", map[string]any{"id": p.terminal, "cols": cmd.Terminal.Cols, "rows": cmd.Terminal.Rows})
	if err == nil {
		err = b.readNothing(ctx, c)
	}
	if err != nil {
		return errors.Join(err, g.script(ctx, "rm -f "+quoteShell(script)))
	}
	follow, cancel := context.WithCancel(ctx)
	p.cancel = cancel
	conn, err := b.dialSocket(follow, "/process/pty/"+p.terminal+"/connect", nil)
	if err != nil {
		cancel()
		return errors.Join(err, g.endTerminal(ctx, p.terminal))
	}
	rest, err := p.enterTerminal(follow, conn, script, mark)
	if err != nil {
		cancel()
		_ = conn.CloseNow() // it has failed
		return errors.Join(err, g.endTerminal(ctx, p.terminal))
	}
	p.info.PID = p.pid
	p.add(cmd.Timeout)
	started := b.p.goDo(func() {
		defer cancel()
		code, err := g.followTerminal(follow, conn, cmd, rest)
		if err == nil {
			err = g.endTerminal(ctx, p.terminal)
		}
		p.finish(code, err)
	})
	if !started {
		cancel()
		return errClosed
	}
	if cmd.Stdin != nil {
		go typeInput(follow, conn, cmd.Stdin) // ends with the terminal, or with its reader's next data
	}
	return nil
}

// endTerminal deletes a terminal.
func (g *toolGuest) endTerminal(ctx context.Context, id string) error {
	return g.endSession(ctx, "/process/pty/"+id)
}

// maxBanner bounds what a terminal's shell shows before the command, in bytes.
const maxBanner = 1 << 20

// enterTerminal replaces the shell of a terminal by the command, and returns what it has shown by then.
func (p *toolProcess) enterTerminal(ctx context.Context, conn *websocket.Conn, script, mark string) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, launchTime)
	defer cancel()
	if err := conn.Write(limited, websocket.MessageBinary, []byte("exec sh "+script+"\n")); err != nil {
		return nil, p.g.b.explainFailure(ctx, err)
	}
	var shown []byte
	begin := []byte("\x1e" + mark + " ")
	for {
		kind, data, err := conn.Read(limited)
		if err != nil {
			return nil, p.g.b.explainFailure(ctx, err)
		}
		if kind == websocket.MessageText && isControl(data) {
			continue
		}
		shown = append(shown, data...)
		if len(shown) > maxBanner {
			return nil, sandpit.Errorf(sandpit.Internal, "the shell of the terminal shows more than %d bytes", maxBanner)
		}
		_, after, found := bytes.Cut(shown, begin)
		number, rest, complete := bytes.Cut(after, []byte("\x1e"))
		if !found || !complete {
			continue
		}
		if p.pid, err = strconv.Atoi(string(number)); err != nil || p.pid < 1 {
			return nil, sandpit.Errorf(sandpit.Internal, "the terminal reports an invalid process")
		}
		return rest, nil
	}
}

func isControl(data []byte) bool {
	var end terminalEnd
	return json.Unmarshal(data, &end) == nil && end.Type == "control"
}

// followTerminal copies what a terminal shows until it ends, and returns the exit code.
func (g *toolGuest) followTerminal(ctx context.Context, conn *websocket.Conn, cmd sandpit.Command, first []byte) (int, error) {
	defer conn.CloseNow() //nolint:errcheck // it has ended
	out := splitter{stdout: cmd.Stdout}
	if err := out.emit(first); err != nil {
		return 0, err
	}
	var code *int
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			closed, ok := errors.AsType[websocket.CloseError](err)
			var end terminalEnd
			if ok && code == nil && json.Unmarshal([]byte(closed.Reason), &end) == nil {
				code = end.ExitCode
			}
			if code != nil {
				return *code, nil
			}
			return 0, g.b.explainFailure(ctx, err)
		}
		var end terminalEnd
		if kind == websocket.MessageText && json.Unmarshal(data, &end) == nil && end.Type == "control" {
			if end.Status == "exited" {
				code = end.ExitCode
			}
			continue
		}
		if err := out.emit(data); err != nil {
			return 0, err
		}
	}
}

// typeInput sends the input of a terminal.
func typeInput(ctx context.Context, conn *websocket.Conn, from io.Reader) {
	buffer := make([]byte, inputPiece)
	for {
		n, err := from.Read(buffer)
		if n > 0 && conn.Write(ctx, websocket.MessageBinary, buffer[:n]) != nil {
			return // the terminal has ended
		}
		if err != nil {
			const endOfInput = 4                                             // the key Ctrl-D
			_ = conn.Write(ctx, websocket.MessageBinary, []byte{endOfInput}) // the terminal may have ended
			return
		}
	}
}
