package shell

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Outcome is how a command ended, and the state of its shell.
type Outcome string

// The outcomes.
const (
	// Completed: the command ended without being stopped; the shell keeps running.
	Completed Outcome = "completed"
	// Interrupted: the command was interrupted, as by Ctrl-C; the shell keeps running with
	// its state.
	Interrupted Outcome = "interrupted"
	// Killed: an interrupt was not enough, so the command's processes were killed; the shell
	// keeps running with its state.
	Killed Outcome = "killed"
	// Lost: the shell was killed with all its descendants. The next command gets a new shell
	// without the old state.
	Lost Outcome = "lost"
	// Ended: the command ended the shell, for instance by exit, exec or set -e. The next
	// command gets a new shell without the old state.
	Ended Outcome = "ended"
)

// uptimeScript prints the sandbox's clock, which /proc/PID/stat uses for the start of a
// process.
const uptimeScript = `read -r up _ </proc/uptime && echo "$up"`

// signalScript sends a signal ($1) to the processes that the shell $2 has started since $3, in
// hundredths of a second of the sandbox's clock. An interrupt goes to the shell's process
// group too, as from a terminal. The script needs only a shell and /proc. The sixth field of
// /proc/PID/stat selects the processes of the shell's session, the 22nd is their start. Both
// are counted after the name, which may have any characters.
const signalScript = `
signal=$1 shell=$2 since=$3 group=
if [ "$signal" = INT ]; then
	kill -s INT -- "-$shell"
	group=$shell
fi
for dir in /proc/[0-9]*; do
	read -r line <"$dir/stat" || continue
	[ "${dir#/proc/}" != "$shell" ] || continue
	set -f
	set -- ${line##*) }
	set +f
	[ $# -ge 20 ] && [ "$4" = "$shell" ] && [ "$3" != "$group" ] && [ "${20}" -ge "$since" ] || continue
	kill -s "$signal" "${dir#/proc/}"
done
exit 0
`

// signalWithin bounds the sending of a signal.
const signalWithin = 10 * time.Second

// sandboxTime converts a time to the sandbox's clock, in hundredths of a second. The result
// is never too late, but too early by up to the duration of the query.
func (l *shellProcess) sandboxTime(ctx context.Context, when time.Time) (int64, error) {
	text, err := runScript(ctx, l.guest, script{user: l.user, text: uptimeScript})
	if err != nil {
		return 0, err
	}
	up, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || up < 0 || up > 1e10 {
		return 0, sandpit.Errorf(sandpit.Internal, "invalid uptime of the sandbox: %q", text)
	}
	const tick = 10 * time.Millisecond
	return max(0, int64(up*100)-int64(time.Since(when)/tick)-1), nil
}

// signalSince sends INT or KILL to the processes that the shell has started since a time of
// the sandbox's clock.
func (l *shellProcess) signalSince(ctx context.Context, signal string, since int64) error {
	_, err := runScript(ctx, l.guest, script{user: l.user, text: signalScript, args: []string{
		signal, strconv.Itoa(l.process.PID()), strconv.FormatInt(since, 10),
	}})
	return err
}

// script is one of sandpit's shell scripts.
type script struct {
	user, text string
	args       []string
	input      io.Reader // may be nil
}

// runScript runs a script, which must succeed within signalWithin, and returns the beginning of its
// output.
func runScript(ctx context.Context, g sandpit.Guest, s script) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, signalWithin)
	defer cancel()
	var text, complaint limited
	p, err := g.Start(ctx, sandpit.Command{
		Args: append([]string{"sh", "-c", s.text, "sh"}, s.args...),
		User: s.user, Dir: "/", Timeout: signalWithin, Stdin: s.input, Stdout: &text, Stderr: &complaint,
	})
	if err != nil {
		return "", err
	}
	status, err := p.Wait(ctx)
	if err == nil && status.Code != 0 {
		err = sandpit.Errorf(sandpit.Internal, "run a script for a session: %s: %s", status, strings.TrimSpace(complaint.String()))
	}
	return text.String(), err
}

// limited keeps the first bytes of what is written to it.
type limited struct{ buf bytes.Buffer }

// Write implements io.Writer. It never fails.
func (l *limited) Write(p []byte) (int, error) {
	const most = 1 << 10
	l.buf.Write(p[:min(len(p), max(0, most-l.buf.Len()))])
	return len(p), nil
}

func (l *limited) String() string { return strings.ToValidUTF8(l.buf.String(), "\uFFFD") }

// stopCall ends a call after its timeout or its caller's end, as gently as possible, and
// returns the necessary step. It takes at most about half a minute.
func (l *shellProcess) stopCall(ctx context.Context, a *callResult, began time.Time, grace time.Duration) (Outcome, error) {
	ctx = context.WithoutCancel(ctx)
	how := Interrupted
	if since, err := l.sandboxTime(ctx, began); err == nil { // fails without a free process or /proc
		how = l.stopGently(ctx, a, since, grace)
	}
	if l.isOver(a) {
		return l.confirmStopped(ctx, a, how)
	}
	err := l.killShell(ctx)
	l.finishCall(a)
	return Lost, err
}

// stopGently interrupts a call, then kills its processes, but not the shell.
func (l *shellProcess) stopGently(ctx context.Context, a *callResult, since int64, grace time.Duration) Outcome {
	// The second interrupt is for a program that started just after the first.
	for range 2 {
		if l.isOver(a) {
			return Interrupted
		}
		if l.signalSince(ctx, "INT", since) == nil && l.skipCall(ctx, a) == nil && l.waitFor(a, grace/2) {
			return Interrupted
		}
	}
	if l.isOver(a) {
		return Interrupted
	}
	// The next steps detect processes that were not killed.
	_ = l.signalSince(ctx, "KILL", since)
	l.waitFor(a, killWithin)
	return Killed
}

// skipCall makes the shell write a mark that arrives even if an interrupt skipped the end of
// a call.
func (l *shellProcess) skipCall(ctx context.Context, a *callResult) error {
	l.mu.Lock()
	already := a.skipping
	a.skipping = true
	l.mu.Unlock()
	if already || !l.dialect.skips {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, signalWithin)
	defer cancel()
	return l.script.queueInput(ctx, []byte(l.dialect.skipScript(a.token)))
}

// isOver reports whether a call has ended, or the shell.
func (l *shellProcess) isOver(a *callResult) bool { return l.waitFor(a, 0) }

func (l *shellProcess) waitFor(a *callResult, d time.Duration) bool {
	select {
	case <-a.done:
		return true
	case <-l.ended:
		return true
	case <-time.After(d):
		select { // both may be ready
		case <-a.done:
			return true
		case <-l.ended:
			return true
		default:
			return false
		}
	}
}

// confirmStopped verifies that the shell is usable after a call was stopped.
func (l *shellProcess) confirmStopped(ctx context.Context, a *callResult, how Outcome) (Outcome, error) {
	l.finishCall(a)
	select {
	case <-l.ended:
		return Lost, l.err
	default:
	}
	if a.garbled == "" {
		ctx, cancel := context.WithTimeout(ctx, killWithin)
		defer cancel()
		if l.awaitSettled(ctx, a.token) == nil {
			return how, nil
		}
	}
	return Lost, l.killShell(ctx)
}
