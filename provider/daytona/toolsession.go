package daytona

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
)

// quoteArgs quotes the words of a command.
func quoteArgs(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = quoteShell(arg)
	}
	return strings.Join(words, " ")
}

// sessionScript returns the script of a command in a session. It writes the number of the process,
// which has a process group of its own, to a named pipe. Input arrives as pieces of base64, each after
// a line with its length, and ends with a dot: a session has no other end of input. Only the lengths
// are read by the shell, which reads single bytes. Another process decodes the input, so that the
// command may end before its input does.
func sessionScript(prefix string, cmd sandpit.Command, pidFile string) string {
	run := "( if command -v setsid >/dev/null 2>&1; then s=setsid; else s=; fi\n" +
		"$s sh -c 'echo $$ > \"$0\"; exec \"$@\"' " + quoteShell(pidFile) + " " + quoteArgs(cmd.Args) + "; exit $? )"
	if cmd.Stdin == nil {
		return "( " + prefix + run + " </dev/null )"
	}
	pipe := quoteShell(pidFile + ".input")
	return "( " + prefix + "exec 3<&0; mkfifo " + pipe + ` || exit 125
( while IFS= read -r n; do case $n in .) exit;; "") continue;; esac
dd bs="$n" count=1 iflag=fullblock | base64 -d || exit; done ) <&3 >` + pipe + ` 2>/dev/null & f=$!
` + run + " <" + pipe + " 3<&-\nc=$?; kill $f 2>/dev/null; rm -f " + pipe + "; exit $c )"
}

// startSession starts a command in a session of its own. The command writes its number to pidFile, a
// named pipe.
func (g *toolGuest) startSession(ctx context.Context, p *toolProcess, cmd sandpit.Command, prefix, pidFile string) error {
	b := g.b
	name := "sandpit-" + rand.Text()
	session := "/process/session/" + name
	c, err := jsonCall("/process/session", map[string]string{"sessionId": name})
	if err != nil {
		return err
	}
	if err := b.readNothing(ctx, c); err != nil {
		return err
	}
	var made struct {
		ID string `json:"cmdId"`
	}
	c, err = jsonCall(session+"/exec", map[string]any{
		"command": sessionScript(prefix, cmd, pidFile), "runAsync": true, "async": true, "suppressInputEcho": true,
	})
	if err == nil {
		err = b.readJSON(ctx, c, &made)
	}
	if err == nil {
		p.pid, err = g.awaitPID(ctx, pidFile)
	}
	if err != nil {
		return errors.Join(err, g.endSession(ctx, session))
	}
	p.info.PID = p.pid
	p.add(cmd.Timeout)
	follow, cancel := context.WithCancel(ctx)
	p.cancel = cancel
	command := session + "/command/" + url.PathEscape(made.ID)
	started := b.p.goDo(func() {
		defer cancel()
		code, err := g.followSession(follow, command, cmd)
		if err == nil {
			err = g.endSession(ctx, session)
		}
		p.finish(code, err)
		if err != nil && ctx.Err() != nil { // the process continues without its caller
			if _, err := g.readExitCode(b.p.life, command); err == nil {
				_ = g.endSession(b.p.life, session) // the toolbox ends it with the sandbox
			}
			p.remove()
		}
	})
	if !started {
		cancel()
		return errClosed
	}
	if cmd.Stdin != nil {
		go g.feed(follow, command+"/input", cmd.Stdin) // ends with the command, or with its reader's next data
	}
	return nil
}

// endSession deletes a session.
func (g *toolGuest) endSession(ctx context.Context, session string) error {
	clean, cancel := g.b.p.cleanupContext(ctx)
	defer cancel()
	err := g.b.readNothing(clean, toolCall{method: http.MethodDelete, path: session})
	if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.Gone || code == sandpit.Conflict {
		return nil // it has ended with the sandbox
	}
	return err
}

// awaitPID returns the number of a process that has just been started, and removes its named pipe. The
// process waits until it is read, and nothing polls beside the command.
func (g *toolGuest) awaitPID(ctx context.Context, file string) (int, error) {
	f := quoteShell(file)
	out, err := g.b.execute(ctx, "cat "+f+" && rm -f "+f, launchTime)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out.Result))
	if err != nil || pid < 1 || out.ExitCode != 0 {
		return 0, sandpit.Errorf(sandpit.Internal, "the command does not start: %s", cleanText(out.Result))
	}
	return pid, nil
}

// inputPiece is the most input in one call, in bytes.
const inputPiece = 24 << 10

// feed sends the input of a command.
func (g *toolGuest) feed(ctx context.Context, target string, from io.Reader) {
	buffer := make([]byte, inputPiece)
	for {
		n, err := from.Read(buffer)
		text := ""
		if n > 0 {
			text = base64.StdEncoding.EncodeToString(buffer[:n])
			text = strconv.Itoa(len(text)) + "\n" + text + "\n"
		}
		if err != nil {
			text += ".\n"
		}
		if text != "" {
			c, failed := jsonCall(target, map[string]string{"data": text})
			if failed == nil {
				failed = g.b.readNothing(ctx, c)
			}
			if failed != nil {
				return // the command has ended, or its end says why
			}
		}
		if err != nil {
			return
		}
	}
}

// dialSocket opens a WebSocket of the toolbox.
func (b *sandbox) dialSocket(ctx context.Context, path string, query url.Values) (*websocket.Conn, error) {
	if err := b.checkUsable(ctx); err != nil {
		return nil, err
	}
	base, err := b.toolboxURL(ctx)
	if err != nil {
		return nil, err
	}
	target := base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	conn, res, err := websocket.Dial(ctx, target, &websocket.DialOptions{ //nolint:bodyclose // the library closes it
		HTTPClient: &http.Client{Transport: b.p.toolbox.http}, HTTPHeader: b.p.toolbox.header.Clone(),
	})
	if err != nil {
		if res != nil && res.StatusCode != http.StatusSwitchingProtocols {
			if state := b.checkFresh(ctx); state != nil {
				return nil, state
			}
			return nil, sandpit.Errorf((&toolboxError{status: res.StatusCode}).toCode(), "open a WebSocket of the toolbox: HTTP %d", res.StatusCode)
		}
		return nil, b.explainFailure(ctx, err)
	}
	conn.SetReadLimit(16 << 20)
	return conn, nil
}

// followSession copies the output of a command until it ends, and returns its exit code.
func (g *toolGuest) followSession(ctx context.Context, command string, cmd sandpit.Command) (int, error) {
	conn, err := g.b.dialSocket(ctx, command+"/logs", url.Values{"follow": {"true"}})
	if err != nil {
		return 0, err
	}
	defer conn.CloseNow() //nolint:errcheck // it has ended
	out := splitter{stdout: cmd.Stdout, stderr: cmd.Stderr}
	for {
		_, data, err := conn.Read(ctx)
		if err == nil {
			err = out.write(data)
			if err != nil {
				return 0, err
			}
			continue
		}
		if status := websocket.CloseStatus(err); status != websocket.StatusNormalClosure && status != websocket.StatusGoingAway {
			return 0, g.b.explainFailure(ctx, err)
		}
		break
	}
	if err := out.flush(); err != nil {
		return 0, err
	}
	return g.readExitCode(ctx, command)
}

// readExitCode returns the exit code of a command whose output has ended.
func (g *toolGuest) readExitCode(ctx context.Context, command string) (int, error) {
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		var answer struct {
			ExitCode *int `json:"exitCode"`
		}
		if err := g.b.readJSON(ctx, toolCall{method: http.MethodGet, path: command}, &answer); err != nil {
			return 0, err
		}
		if answer.ExitCode != nil {
			return *answer.ExitCode, nil
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// splitter separates the two outputs of a command, whose parts begin with three bytes of 1 or 2.
type splitter struct {
	stdout, stderr io.Writer
	isStderr       bool
	held           []byte // the end of the data, which may be the beginning of a prefix
}

// write writes data.
func (s *splitter) write(data []byte) error {
	data = append(s.held, data...)
	s.held = nil
	for len(data) > 0 {
		at := nextPrefix(data)
		if err := s.emit(data[:at]); err != nil {
			return err
		}
		data = data[at:]
		if len(data) == 0 {
			return nil
		}
		if len(data) < 3 { // the beginning of a prefix
			s.held = slices.Clone(data)
			return nil
		}
		s.isStderr, data = data[0] == 2, data[3:]
	}
	return nil
}

// nextPrefix returns the position of the first prefix, or of its beginning at the end of data.
func nextPrefix(data []byte) int {
	for at, c := range data {
		if c != 1 && c != 2 {
			continue
		}
		rest := data[at:]
		if bytes.Equal(rest[:min(3, len(rest))], bytes.Repeat([]byte{c}, min(3, len(rest)))) {
			return at
		}
	}
	return len(data)
}

func (s *splitter) emit(data []byte) error {
	to := s.stdout
	if s.isStderr {
		to = s.stderr
	}
	if to == nil || len(data) == 0 {
		return nil
	}
	_, err := to.Write(data)
	return err
}

// flush writes what was held back.
func (s *splitter) flush() error {
	held := s.held
	s.held = nil
	return s.emit(held)
}

// terminalEnd is how a terminal says that it has ended.
type terminalEnd struct {
	Type     string `json:"type"`
	Status   string `json:"status"`
	ExitCode *int   `json:"exitCode"`
}
