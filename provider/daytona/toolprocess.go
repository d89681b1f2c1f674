package daytona

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// toolProcess is a process in a session of the toolbox, or in one of its terminals.
type toolProcess struct {
	g        *toolGuest
	pid      int
	info     sandpit.ProcessInfo
	terminal string // the ID of its terminal, or ""
	cancel   context.CancelFunc

	mu       sync.Mutex
	timedOut bool

	ended  chan struct{}
	status sandpit.ExitStatus // set before ended is closed
	err    error
}

// PID implements sandpit.Process.
func (p *toolProcess) PID() int { return p.pid }

// ID implements sandpit.Process. The toolbox has no command log.
func (p *toolProcess) ID() string { return "" }

// hasEnded reports whether the process has ended.
func (p *toolProcess) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Signal implements sandpit.Process.
func (p *toolProcess) Signal(ctx context.Context, s sandpit.Signal) error {
	const lastSignal = 63
	if s < 1 || s > lastSignal {
		return sandpit.Errorf(sandpit.Invalid, "invalid signal %d", int(s))
	}
	if p.hasEnded() && p.err == nil {
		return sandpit.Errorf(sandpit.Gone, "process %d has ended", p.pid)
	}
	number, pid := strconv.Itoa(int(s)), strconv.Itoa(p.pid)
	out, err := p.g.b.execute(ctx, "kill -"+number+" -"+pid+" 2>/dev/null || kill -"+number+" "+pid, launchTime)
	switch {
	case err != nil:
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	case out.ExitCode != 0:
		return sandpit.Errorf(sandpit.Gone, "process %d has ended", p.pid)
	}
	return nil
}

// Resize implements sandpit.Process.
func (p *toolProcess) Resize(ctx context.Context, size sandpit.TerminalSize) error {
	if p.terminal == "" {
		return sandpit.Errorf(sandpit.Conflict, "process %d has no terminal", p.pid)
	}
	c, err := jsonCall("/process/pty/"+p.terminal+"/resize", map[string]uint16{"cols": size.Cols, "rows": size.Rows})
	if err != nil {
		return err
	}
	return p.g.b.readNothing(ctx, c)
}

// Wait implements sandpit.Process.
func (p *toolProcess) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	select {
	case <-p.ended:
		return p.status, p.err
	case <-ctx.Done():
		return sandpit.ExitStatus{}, ctx.Err()
	}
}

// finish records the end of the process.
func (p *toolProcess) finish(code int, err error) {
	p.mu.Lock()
	late := p.timedOut
	p.mu.Unlock()
	switch {
	case err != nil:
		p.err = err
	case late:
		p.err = sandpit.Errorf(sandpit.Timeout, "the command took too long and was killed")
	default: // the toolbox reports the exit code of a shell, for which these codes mean signals
		const signals, lastSignal = 128, 63
		p.status = sandpit.ExitStatus{Code: code, Signaled: code > signals && code <= signals+lastSignal}
	}
	if sandpit.CodeOf(err) != sandpit.Canceled && sandpit.CodeOf(err) != sandpit.Timeout {
		p.remove()
	}
	close(p.ended)
}

// remove removes the process from the list.
func (p *toolProcess) remove() {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	delete(p.g.running, p.pid)
}

// add adds a process to the list, and limits its time.
func (p *toolProcess) add(limit time.Duration) {
	p.g.mu.Lock()
	p.g.running[p.pid] = p
	p.g.mu.Unlock()
	if limit <= 0 {
		return
	}
	_ = p.g.b.p.goDo(func() { // a closed provider ends the process's calls, too
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-p.ended:
			if p.err == nil {
				return
			}
			<-timer.C // only its caller has gone
		case <-p.g.b.p.life.Done():
			return
		case <-timer.C:
		}
		p.mu.Lock()
		p.timedOut = true
		p.mu.Unlock()
		if err := p.Signal(p.g.b.p.life, sandpit.SIGKILL); err != nil && sandpit.CodeOf(err) != sandpit.Gone {
			p.g.b.p.o.Log.WarnContext(p.g.b.p.life, "daytona: kill a command that took too long", slog.String("sandbox", string(p.g.b.id)), slog.Any("error", err))
		}
	})
}

// ListProcesses implements sandpit.Processes: it lists what this program has started.
func (g *toolGuest) ListProcesses(ctx context.Context) ([]sandpit.ProcessInfo, error) {
	if err := g.b.checkUsable(ctx); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]sandpit.ProcessInfo, 0, len(g.running))
	for _, p := range g.running {
		list = append(list, p.info)
	}
	slices.SortFunc(list, func(a, b sandpit.ProcessInfo) int { return a.PID - b.PID })
	return list, nil
}

// Connect implements sandpit.Processes. The toolbox sends output from its beginning only.
func (g *toolGuest) Connect(ctx context.Context, pid int, _ sandpit.Streams) (sandpit.Process, error) {
	if err := g.b.checkUsable(ctx); err != nil {
		return nil, err
	}
	return nil, refuseTool("connect to process " + strconv.Itoa(pid))
}

// Start implements sandpit.Processes.
func (g *toolGuest) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	if len(cmd.Args) == 0 || cmd.Args[0] == "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "start: no command")
	}
	p, err := g.start(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	return p, nil
}

func (g *toolGuest) start(ctx context.Context, cmd sandpit.Command) (*toolProcess, error) {
	if cmd.ID != "" {
		return nil, refuseTool("record the output of a command")
	}
	for _, arg := range cmd.Args {
		if strings.ContainsRune(arg, 0) || !utf8.ValidString(arg) {
			return nil, sandpit.Errorf(sandpit.Invalid, "argument %.100q: it has a zero byte, or is not UTF-8", arg)
		}
	}
	if err := g.checkUser(cmd.User); err != nil {
		return nil, err
	}
	g.mu.Lock()
	dir := g.account.dir
	g.mu.Unlock()
	if cmd.Dir != "" {
		dir = cmd.Dir
	}
	prefix, err := g.prefixOf(dir, cmd.Env)
	if err != nil {
		return nil, err
	}
	if err := g.checkProgram(ctx, prefix, cmd.Args[0]); err != nil {
		return nil, err
	}
	p := &toolProcess{g: g, ended: make(chan struct{}), info: sandpit.ProcessInfo{Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Tag: cmd.Tag}}
	if cmd.Terminal != nil {
		return p, g.startTerminal(ctx, p, cmd, prefix)
	}
	return p, g.startSession(ctx, p, cmd, prefix)
}

var namePattern = pattern.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

// prefixOf returns the beginning of a script: the directory and the variables of a command.
func (g *toolGuest) prefixOf(dir string, env map[string]string) (string, error) {
	full, err := g.resolve("", dir)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	text.WriteString("cd -- " + quoteShell(full) + " || exit 125\n")
	for name, value := range env {
		if !namePattern().MatchString(name) || strings.ContainsRune(value, 0) {
			return "", sandpit.Errorf(sandpit.Invalid, "environment variable %.100q: not a name that a shell can set, or a value with a zero byte", name)
		}
		text.WriteString("export " + name + "=" + quoteShell(value) + "\n")
	}
	return text.String(), nil
}

// checkProgram returns the error of a command that cannot start.
func (g *toolGuest) checkProgram(ctx context.Context, prefix, program string) error {
	out, err := g.b.execute(ctx, prefix+"p="+quoteShell(program)+`
case $p in
*/*) [ -e "$p" ] || exit 124; [ ! -d "$p" ] && [ -x "$p" ] || exit 123;;
*) command -v -- "$p" >/dev/null 2>&1 || exit 124;;
esac`, launchTime)
	switch {
	case err != nil:
		return err
	case out.ExitCode == 0:
		return nil
	case out.ExitCode == 125:
		return sandpit.Errorf(sandpit.Invalid, "no such working directory: %s", cleanText(out.Result))
	case out.ExitCode == 124:
		return sandpit.Errorf(sandpit.NotFound, "no such program")
	case out.ExitCode == 123:
		return sandpit.Errorf(sandpit.PermissionDenied, "not a program")
	}
	return sandpit.Errorf(sandpit.Internal, "look for the program: exit status %d: %s", out.ExitCode, cleanText(out.Result))
}

// quoteArgs quotes the words of a command.
func quoteArgs(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = quoteShell(arg)
	}
	return strings.Join(words, " ")
}

// sessionScript returns the script of a command in a session. It writes the number of the process,
// which has a process group of its own, to a file. Input arrives as lines of base64, and ends with a
// dot: a session has no other end of input. Another process decodes them, so that the command may end
// before its input does.
func sessionScript(prefix string, cmd sandpit.Command, pidFile string) string {
	run := "( if command -v setsid >/dev/null 2>&1; then s=setsid; else s=; fi\n" +
		"$s sh -c 'echo $$ > \"$0\"; exec \"$@\"' " + quoteShell(pidFile) + " " + quoteArgs(cmd.Args) + "; exit $? )"
	if cmd.Stdin == nil {
		return "( " + prefix + run + " </dev/null )"
	}
	pipe := quoteShell(pidFile + ".input")
	return "( " + prefix + "exec 3<&0; mkfifo " + pipe + ` || exit 125
( while IFS= read -r l && [ "$l" != . ]; do printf '%s' "$l" | base64 -d || exit; done ) <&3 >` + pipe + ` 2>/dev/null & f=$!
` + run + " <" + pipe + " 3<&-\nc=$?; kill $f 2>/dev/null; rm -f " + pipe + "; exit $c )"
}

// startSession starts a command in a session of its own.
func (g *toolGuest) startSession(ctx context.Context, p *toolProcess, cmd sandpit.Command, prefix string) error {
	b := g.b
	name := "sandpit-" + rand.Text()
	pidFile := "/tmp/." + name
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

// awaitPID returns the number of a process that has just been started.
func (g *toolGuest) awaitPID(ctx context.Context, file string) (int, error) {
	f := quoteShell(file)
	out, err := g.b.execute(ctx, "i=0; while [ ! -s "+f+" ] && [ $i -lt 400 ]; do sleep 0.05; i=$((i+1)); done; cat "+f+" && rm -f "+f, launchTime)
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
			text = base64.StdEncoding.EncodeToString(buffer[:n]) + "\n"
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
