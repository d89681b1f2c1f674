package daytona

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

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
	pidFile := ""
	if cmd.Terminal == nil {
		pidFile = "/tmp/.sandpit-" + rand.Text() + ".pid"
	}
	if err := g.checkProgram(ctx, prefix, cmd.Args[0], pidFile); err != nil {
		return nil, err
	}
	p := &toolProcess{g: g, ended: make(chan struct{}), info: sandpit.ProcessInfo{Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Tag: cmd.Tag}}
	if cmd.Terminal != nil {
		return p, g.startTerminal(ctx, p, cmd, prefix)
	}
	if err := g.startSession(ctx, p, cmd, prefix, pidFile); err != nil {
		clean, cancel := g.b.p.cleanupContext(ctx)
		defer cancel()
		return nil, errors.Join(err, g.removeIfRunning(clean, pidFile))
	}
	return p, nil
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

// removeIfRunning removes a file of the provider in a sandbox that runs.
func (g *toolGuest) removeIfRunning(ctx context.Context, file string) error {
	err := g.script(ctx, "rm -f -- "+quoteShell(file))
	if code := sandpit.CodeOf(err); code == sandpit.Conflict || code == sandpit.Gone {
		return nil
	}
	return err
}

// checkProgram returns the error of a command that cannot start. If it can, it makes the named pipe
// pidFile, unless that is empty.
func (g *toolGuest) checkProgram(ctx context.Context, prefix, program, pidFile string) error {
	script := prefix + "p=" + quoteShell(program) + `
case $p in
*/*) [ -e "$p" ] || exit 124; [ ! -d "$p" ] && [ -x "$p" ] || exit 123;;
*) command -v -- "$p" >/dev/null 2>&1 || exit 124;;
esac`
	if pidFile != "" {
		script += "\nmkfifo -m 600 -- " + quoteShell(pidFile) + " || exit 122"
	}
	out, err := g.b.execute(ctx, script, launchTime)
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
	case out.ExitCode == 122:
		return sandpit.Errorf(sandpit.Unavailable, "make a named pipe: %s", cleanText(out.Result))
	}
	return sandpit.Errorf(sandpit.Internal, "look for the program: exit status %d: %s", out.ExitCode, cleanText(out.Result))
}
