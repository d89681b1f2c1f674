package shell

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	// scriptLimit bounds the input that waits for a shell, in bytes; it is larger than the
	// longest script.
	scriptLimit = 1 << 20
	// readyWithin is how long a new shell may take for its first response.
	readyWithin = 30 * time.Second
	// killWithin is how long killed programs, or a killed shell, may take to end.
	killWithin = 10 * time.Second
	// outputCost is the bytes of memory for each byte of a command's output: the window, the
	// Result, and a copy of the caller.
	outputCost = 3
)

// shellProcess is one shell process. It runs one call at a time.
type shellProcess struct {
	guest   sandpit.Guest
	dialect dialect
	user    string
	process sandpit.Process
	dir     string // the shell's directory after the last call
	script  *inputQueue
	cancel  context.CancelFunc // stops following the process

	mu      sync.Mutex
	stdout  marks
	stderr  marks
	call    *callResult    // nil without a call
	between *memory.Window // output since the last call

	onGone func(error)   // called when the sandbox has ended
	ended  chan struct{} // closed when the process has ended, or cannot be followed
	status sandpit.ExitStatus
	err    error // why it cannot be followed
}

// callResult collects the output and the state of one call.
type callResult struct {
	token          string
	skipping       bool // markSkip may end the call too
	stdout, stderr section
	onOutput       func(stderr bool, p []byte) // called with output; may be nil
	parserOutput   *memory.Window              // of the parser
	status         int
	dir            string
	invalid        bool          // the shell could not parse the command
	garbled        string        // why the response is invalid; "" if it is valid
	done           chan struct{} // closed when the response is complete
	ended          bool
}

// section is one output during a call.
type section struct {
	window *memory.Window
	stage  byte // the last mark; 0 before the first
}

func (s *section) isOver() bool {
	return s.stage == markEnd || s.stage == markBad || s.stage == markSkip
}

// startProcess starts a shell and returns after its first response. The shell outlives ctx.
func startProcess(ctx context.Context, g sandpit.Guest, d dialect, cmd sandpit.Command, gone func(error)) (*shellProcess, error) {
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &shellProcess{
		guest: g, dialect: d, user: cmd.User, script: newInputQueue(scriptLimit), cancel: cancel,
		between: memory.NewWindow(nil, maxLate, 1), onGone: gone, ended: make(chan struct{}),
	}
	l.stdout = marks{text: l.textHandler(false), mark: l.markHandler(false), bad: l.failGarbled}
	l.stderr = marks{text: l.textHandler(true), mark: l.markHandler(true), bad: l.failGarbled}
	cmd.Args, cmd.Stdin = d.args, l.script
	cmd.Stdout, cmd.Stderr = l.outputWriter(&l.stdout), l.outputWriter(&l.stderr)
	unlink := context.AfterFunc(ctx, cancel)
	process, err := g.Start(following, cmd)
	if !unlink() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		l.script.abandonInput()
		if process != nil {
			err = errors.Join(err, discardProcess(ctx, process))
		}
		return nil, err
	}
	l.process = process
	go l.followProcess(following) // ends with the process; closeSession waits for it
	if err := l.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, l.killShell(ctx))
	}
	l.takeLate() // drop the output of the shell's startup files
	return l, nil
}

// discardProcess kills a process whose caller gave up during its start.
func discardProcess(ctx context.Context, p sandpit.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
	defer cancel()
	if err := p.Signal(ctx, sandpit.SIGKILL); sandpit.CodeOf(err) != sandpit.Gone {
		return err
	}
	return nil
}

// awaitReady waits for the first response.
func (l *shellProcess) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := l.script.queueInput(ctx, []byte(l.dialect.prologue)); err != nil {
		return err
	}
	return l.awaitSettled(ctx, "")
}

// awaitSettled runs a call that does nothing and returns after its response, so that no
// output of an earlier call is still in transit. token is that of the earlier call.
func (l *shellProcess) awaitSettled(ctx context.Context, token string) error {
	a, err := l.beginCall(ctx, call{token: token, text: ":"}, 0, nil)
	if err != nil {
		return err
	}
	select {
	case <-a.done:
	case <-l.ended:
		return l.endError()
	case <-ctx.Done():
		return sandpit.Errorf(sandpit.Timeout, "%s does not answer: %w", l.dialect.name, ctx.Err())
	}
	l.finishCall(a)
	l.dir = a.dir
	if a.garbled != "" || a.invalid {
		return sandpit.Errorf(sandpit.Unsupported, "%s does not behave like a shell", l.dialect.name)
	}
	return nil
}

// endError returns why the shell has ended.
func (l *shellProcess) endError() error {
	if l.err != nil {
		return l.err
	}
	return sandpit.Errorf(sandpit.Gone, "the shell has ended: %s", l.status)
}

func newToken() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(raw)
}

// beginCall sends a command. It keeps up to limit bytes of each output, and passes all output
// to onOutput, which may be nil.
func (l *shellProcess) beginCall(ctx context.Context, c call, limit int, onOutput func(bool, []byte)) (*callResult, error) {
	if c.token == "" {
		c.token = newToken()
	}
	a := &callResult{token: c.token, parserOutput: memory.NewWindow(nil, 4<<10, 1), onOutput: onOutput, done: make(chan struct{})}
	account := memory.AccountOf(ctx)
	a.stdout.window, a.stderr.window = memory.NewWindow(account, limit, outputCost), memory.NewWindow(account, limit, outputCost)
	l.mu.Lock()
	l.stdout.expectToken(c.token)
	l.stderr.expectToken(c.token)
	l.call = a
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	return a, l.script.queueInput(ctx, []byte(l.dialect.scriptFor(c)))
}

// finishCall ends a call: later output does not belong to it.
func (l *shellProcess) finishCall(a *callResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.call == a {
		l.stdout.flushHeld()
		l.stderr.flushHeld()
		l.call = nil
	}
}

// takeLate returns the output outside of calls since its last call.
func (l *shellProcess) takeLate() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.between.Bytes()
	l.between = memory.NewWindow(nil, maxLate, 1)
	return late
}

// outputWriter returns the writer for an output of the process with marks.
func (l *shellProcess) outputWriter(m *marks) writerFunc {
	return func(p []byte) (int, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		m.writeOutput(p)
		return len(p), nil
	}
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// textHandler returns the handler for the text of an output between marks.
func (l *shellProcess) textHandler(stderr bool) func([]byte) {
	return func(p []byte) {
		s := l.sectionOf(stderr)
		switch {
		case s == nil || s.stage == 0 || s.isOver():
			_, _ = l.between.Write(p) // never fails
		case s.stage == markBegin:
			_, _ = s.window.Write(p) // as above
			if l.call.onOutput != nil {
				l.call.onOutput(stderr, p)
			}
		case stderr: // of the parser
			_, _ = l.call.parserOutput.Write(p) // as above
		}
	}
}

func (l *shellProcess) sectionOf(stderr bool) *section {
	switch {
	case l.call == nil:
		return nil
	case stderr:
		return &l.call.stderr
	}
	return &l.call.stdout
}

// markHandler returns the handler for the marks of an output.
func (l *shellProcess) markHandler(stderr bool) func(byte, string) {
	return func(kind byte, payload string) {
		a, s := l.call, l.sectionOf(stderr)
		if s == nil || s.isOver() || kind == markSkip && !a.skipping {
			return
		}
		s.stage = kind
		if kind == markEnd && !stderr {
			var ok bool
			if a.status, a.dir, ok = parseEnd(payload); !ok {
				l.failGarbled("an end mark without a status")
				return
			}
		}
		a.invalid = a.invalid || kind == markBad
		if a.stdout.isOver() && a.stderr.isOver() {
			a.closeResult()
		}
	}
}

// failGarbled ends a call with an invalid response.
func (l *shellProcess) failGarbled(reason string) {
	if l.call != nil {
		l.call.garbled = reason
		l.call.closeResult()
	}
}

func (a *callResult) closeResult() {
	if !a.ended {
		a.ended = true
		close(a.done)
	}
}

// followProcess waits for the end of the process.
func (l *shellProcess) followProcess(ctx context.Context) {
	defer close(l.ended)
	defer l.cancel()
	l.status, l.err = l.process.Wait(ctx)
	l.script.abandonInput()
	if l.err != nil && ctx.Err() == nil {
		l.err = findGoneCause(ctx, l.guest, l.err)
		if sandpit.CodeOf(l.err) == sandpit.Gone {
			l.onGone(l.err)
		}
	}
}

// findGoneCause replaces the error of a broken connection by the reason why the sandbox has ended,
// if it has.
func findGoneCause(ctx context.Context, g sandpit.Guest, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
	defer cancel()
	if _, asked := g.ListProcesses(ctx); sandpit.CodeOf(asked) == sandpit.Gone {
		return asked
	}
	return err
}

// killShell kills the shell and all its descendants that did not detach themselves, and waits
// up to killWithin for their end.
func (l *shellProcess) killShell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
	defer cancel()
	defer func() {
		l.cancel()
		<-l.ended
	}()
	err := l.process.Signal(ctx, sandpit.SIGKILL)
	if sandpit.CodeOf(err) == sandpit.Gone {
		err = nil // the shell or the sandbox has ended already
	}
	if err != nil {
		return err
	}
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return sandpit.Errorf(sandpit.Timeout, "the shell was killed but did not end")
	}
}
