package cli

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
)

// attachment says which streams of this program a command in a sandbox uses.
type attachment struct {
	// interactive commands read standard input.
	interactive bool
	terminal    bool
	// shell means that the command shell needs the terminal; it was not requested with -t.
	shell bool
	// signals are passed on to the command.
	signals bool
	// ends means that the command ends with this program, which waits only briefly after SIGTERM.
	ends bool
}

func (t *attachment) addFlags(f *pflag.FlagSet) {
	f.BoolVarP(&t.interactive, "interactive", "i", false, "pass standard input to the command")
	f.BoolVarP(&t.terminal, "tty", "t", false, "give the command a terminal")
}

// starter starts commands: a guest, or a client's sandbox, whose commands survive a broken
// connection.
type starter interface {
	Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error)
}

// execute runs a command with this program's streams and waits for its end.
func (t attachment) execute(ctx context.Context, a *app, guest starter, command sandpit.Command) (sandpit.ExitStatus, error) {
	if t.interactive {
		command.Stdin = a.In
	}
	if t.terminal {
		size := a.terminalSize()
		command.Terminal = &size
		env := map[string]string{"TERM": a.terminalType()}
		maps.Copy(env, command.Env)
		command.Env = env
		if t.interactive {
			restore, err := t.takeTerminal(a)
			if err != nil {
				return sandpit.ExitStatus{}, err
			}
			defer restore()
		}
	}
	if t.signals {
		return t.executeWithSignals(ctx, a, guest, command)
	}
	process, err := startInTime(ctx, guest, command)
	if err != nil {
		return sandpit.ExitStatus{}, err
	}
	if t.terminal {
		defer a.followSize(ctx, process)()
	}
	return waitAtMost(ctx, process, command.Timeout)
}

// executeWithSignals is execute for a command that decides itself about signals: those that would
// end this program are passed on.
func (t attachment) executeWithSignals(ctx context.Context, a *app, guest starter, command sandpit.Command) (sandpit.ExitStatus, error) {
	got := make(chan os.Signal, 8)
	signal.Notify(got, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(got)
	if err := ctx.Err(); err != nil {
		return sandpit.ExitStatus{}, err // a signal came first
	}
	life, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	defer leave(nil)
	process, err := startUnlessSignaled(life, got, guest, command, leave)
	if err != nil {
		if cause, ok := errors.AsType[signalError](context.Cause(life)); ok {
			return sandpit.ExitStatus{Code: statusSignal + int(cause.sig), Signaled: true}, nil
		}
		return sandpit.ExitStatus{}, err
	}
	if t.terminal {
		defer a.followSize(life, process)()
	}
	done := make(chan struct{})
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		passSignals(life, got, done, signalTarget{guest, process, command.User, t.ends}, leave)
	}()
	status, err := waitAtMost(life, process, command.Timeout)
	close(done)
	<-passed
	if cause, ok := errors.AsType[signalError](context.Cause(life)); ok {
		return sandpit.ExitStatus{Code: statusSignal + int(cause.sig), Signaled: true}, nil
	}
	return status, err
}

// startGrace is how long a start that a signal interrupts may take to succeed: output of a command may
// be here before its start has returned.
const startGrace = time.Second

// startUnlessSignaled starts a command. A signal that arrives before the command has started ends
// the attempt; if it succeeds within startGrace, the signal is in got again, to be passed on.
func startUnlessSignaled(life context.Context, got chan os.Signal, guest starter, command sandpit.Command, leave func(error)) (sandpit.Process, error) {
	started := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case s := <-got:
			endUnlessStarted(s, got, started, leave)
		case <-started:
		}
	}()
	process, err := startInTime(life, guest, command)
	close(started)
	<-watched
	return process, err
}

// endUnlessStarted ends the attempt to start a command because of a signal.
func endUnlessStarted(s os.Signal, got chan os.Signal, started <-chan struct{}, leave func(error)) {
	grace := time.NewTimer(startGrace)
	defer grace.Stop()
	select {
	case <-started:
		select {
		case got <- s:
		default: // there are others
		}
	case <-grace.C:
		sig, _ := s.(syscall.Signal) // always is, on Linux
		leave(signalError{sig})
	}
}

// startInTime starts a command. It fails if the sandbox does not start the command within the
// command's own time limit and a grace period.
func startInTime(ctx context.Context, guest starter, command sandpit.Command) (sandpit.Process, error) {
	if command.Timeout <= 0 {
		return guest.Start(ctx, command)
	}
	ctx, cancel := context.WithCancelCause(ctx) // the process uses it after this function has returned
	late := time.AfterFunc(command.Timeout+overdueGrace, func() { cancel(errNotStarted) })
	defer late.Stop()
	process, err := guest.Start(ctx, command)
	if err != nil && errors.Is(context.Cause(ctx), errNotStarted) {
		err = errNotStarted
	}
	if err != nil {
		cancel(nil)
	}
	return process, err
}

// maxPassedSignals is how many signals are passed on to a command before this program ends and
// leaves the command running.
const maxPassedSignals = 3

// commandEndTime is how long a command that ends with this program has after SIGTERM or SIGHUP:
// the service manager or terminal that sends them does not wait indefinitely.
const commandEndTime = 10 * time.Second

// passSignals sends signals to a command until it ends, the number of signals reaches its limit,
// or the command does not end in time.
func passSignals(ctx context.Context, got <-chan os.Signal, done <-chan struct{}, to signalTarget, leave func(error)) {
	var last syscall.Signal
	var overdue <-chan time.Time
	for n := 1; ; n++ {
		select {
		case s := <-got:
			last, _ = s.(syscall.Signal) // always is, on Linux
			if n >= maxPassedSignals {
				leave(signalError{last})
				return
			}
			_ = to.sendSignal(ctx, last) // a command that has ended needs no signal
			if to.ends && overdue == nil && (last == syscall.SIGTERM || last == syscall.SIGHUP) {
				timer := time.NewTimer(commandEndTime)
				defer timer.Stop()
				overdue = timer.C
			}
		case <-overdue:
			leave(signalError{last})
			return
		case <-done:
			return
		}
	}
}

// signalTarget is a process that receives signals.
type signalTarget struct {
	guest   starter
	process sandpit.Process
	user    string
	// ends is attachment.ends.
	ends bool
}

// sendSignal sends a signal. Guests must support SIGTERM and SIGKILL only: for others, a shell
// beside the process sends the signal to its process group.
func (s signalTarget) sendSignal(ctx context.Context, sig syscall.Signal) error {
	const limit = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.process.Signal(ctx, sandpit.Signal(sig))
	if err == nil || sandpit.CodeOf(err) != sandpit.Invalid {
		return err
	}
	kill, err := s.guest.Start(ctx, sandpit.Command{
		Args: []string{"sh", "-c", "kill -" + strconv.Itoa(int(sig)) + " -" + strconv.Itoa(s.process.PID())},
		User: s.user, Timeout: limit,
	})
	if err == nil {
		_, err = kill.Wait(ctx)
	}
	if err != nil { // without a shell, use a signal that every guest supports
		return s.process.Signal(ctx, sandpit.SIGTERM)
	}
	return nil
}

func (t attachment) takeTerminal(a *app) (restore func(), err error) {
	if _, ok := terminalOf(a.In); !ok && t.shell {
		return nil, sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "shell needs a terminal, and standard input is not one"),
			"run commands from standard input with: sandpit exec -i SANDBOX sh")
	} else if !ok {
		return nil, sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "-t wants a terminal, but standard input is not one"),
			"leave -t out to pass the input on unchanged")
	}
	return setTerminalRaw(a.In)
}

func (a *app) terminalType() string {
	if t, ok := lookupEnv(a.options.Environ, "TERM"); ok {
		return t
	}
	return "xterm"
}

// waitAtMost waits for a process. The sandbox enforces the time limit; this program gives up a
// little later, because a sandbox may misbehave.
func waitAtMost(ctx context.Context, p sandpit.Process, limit time.Duration) (sandpit.ExitStatus, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit+overdueGrace, errOverdue)
		defer cancel()
	}
	status, err := p.Wait(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errOverdue) {
		err = errOverdue
	}
	return status, err
}

// overdueGrace is how long this program waits for the sandbox after a command's time limit.
const overdueGrace = 5 * time.Second

var (
	errOverdue    = sandpit.Errorf(sandpit.Timeout, "the sandbox did not end the command in time")
	errNotStarted = sandpit.WithHint(sandpit.Errorf(sandpit.Timeout, "the sandbox did not start the command in time"),
		"if this persists, end its processes and keep its files with: sandpit stop ID && sandpit start ID")
)

// countingReader reports the number of bytes that are read.
type countingReader struct {
	io.Reader
	read func(n int)
}

// Read implements io.Reader.
func (c countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read(n)
	return n, err
}
