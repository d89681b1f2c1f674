package shell_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

// short is a limit that commands are meant to exceed.
const short = 500 * time.Millisecond

// patient options interrupt for as long as it takes.
var patient = shell.Options{Grace: patience}

func TestTimeoutInterruptsAndKeepsTheState(t *testing.T) {
	everyShell(t, patient, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		run(t, s, "x=kept; cd /; f() { echo f; }; sleep 1000 & bg=$!")
		for _, command := range []string{
			"echo before; sleep 1000; touch after",
			"echo before; while :; do sleep 0.01; done; touch after",
			"echo before; while :; do :; done; touch after",
			"echo before; for i in 1 2 3; do sleep 1000 | cat; done; touch after",
			"echo before; v=$(sleep 1000); touch after",
			"echo before; (sleep 1000; touch after); touch after",
			"echo before; eval 'sleep 1000\ntouch after'\ntouch after",
			"echo before; sh -c 'sleep 1000; :'; touch after",
			"echo before; timeout 1000 sleep 1000; touch after",
			"echo before; sleep 1000 & wait; touch after; kill $!",
		} {
			command = strings.ReplaceAll(command, "touch after", "touch '"+b.dir+"/after'")
			r, err := s.Run(t.Context(), shell.RunRequest{Command: command, Timeout: short})
			wantCode(t, err, sandpit.Timeout)
			if err != nil && (!strings.Contains(err.Error(), "500ms") || !strings.Contains(err.Error(), "interrupt") || sandpit.HintOf(err) == "") {
				t.Errorf("%s: %v (hint %q)", command, err, sandpit.HintOf(err))
			}
			if !r.TimedOut || r.Outcome != shell.Interrupted || r.StateLost || r.ExitCode != 130 || string(r.Stdout) != "before\n" || r.Duration < short {
				t.Errorf("%s: %+v", command, r)
			}
			expect(t, s, `echo $x $?; pwd; f; kill -0 $bg && echo bg`, "kept 130\n/\nf\nbg\n")
		}
		if _, err := os.Stat(filepath.Join(b.dir, "after")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a command went on: %v", err)
		}
	})
}

func TestTimeoutLeavesFunctions(t *testing.T) {
	t.Parallel()
	s, b := open(t, patient)
	run(t, s, "x=kept")
	for _, command := range []string{
		"f() { while :; do sleep 0.01; done; touch after; }; g() { f; touch after; }; g; touch after",
		"f() { sleep 1000; touch after; }; g() { while :; do f; done; }; g\ntouch after",
		"f() { while :; do :; done; }; f; touch after",
	} {
		r, err := s.Run(t.Context(), shell.RunRequest{Command: command, Timeout: short})
		wantCode(t, err, sandpit.Timeout)
		if r.Outcome != shell.Interrupted || r.ExitCode != 130 {
			t.Errorf("%s: %+v, %v", command, r, err)
		}
		expect(t, s, "echo $x; shopt extdebug | tr -d ' \t'; echo $-; trap -p DEBUG", "kept\nextdebugoff\nhBc\n")
	}
	if _, err := os.Stat(filepath.Join(b.dir, "after")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a command went on: %v", err)
	}
}

func TestTimeoutKillsWhatIgnoresAnInterrupt(t *testing.T) {
	everyShell(t, shell.Options{Grace: time.Second}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		run(t, s, "x=kept; sleep 1000 & bg=$!; sleep 0.1")
		r, err := s.Run(t.Context(), shell.RunRequest{
			Command: `echo before; sh -c 'trap "" INT; while :; do sleep 0.01; done'; echo after`, Timeout: short,
		})
		wantCode(t, err, sandpit.Timeout)
		if !r.TimedOut || r.Outcome != shell.Killed || r.StateLost || r.ExitCode < 130 ||
			!strings.HasPrefix(string(r.Stdout), "before\n") || strings.Contains(string(r.Stdout), "after") { // the shell may say that it was killed
			t.Errorf("got %+v, %v", r, err)
		}
		expect(t, s, `echo $x; kill -0 $bg && echo bg`, "kept\nbg\n")
	})
}

func TestTimeoutReplacesAShellThatDoesNotHear(t *testing.T) {
	everyShell(t, shell.Options{Grace: 100 * time.Millisecond}, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		run(t, s, "x=lost; cd /")
		r, err := s.Run(t.Context(), shell.RunRequest{Command: `trap '' INT; echo before; while :; do :; done`, Timeout: short})
		wantCode(t, err, sandpit.Timeout)
		if !r.TimedOut || r.Outcome != shell.Lost || !r.StateLost || r.ExitCode != 137 || string(r.Stdout) != "before\n" {
			t.Errorf("got %+v, %v", r, err)
		}
		if err != nil && !strings.Contains(err.Error(), "lost") {
			t.Errorf("it does not say so: %v", err)
		}
		if r := expect(t, s, `echo "<$x>"; pwd`, "<>\n"+b.dir+"\n"); !r.Fresh {
			t.Errorf("got %+v", r)
		}
	})
}

func TestCancelStopsTheCommand(t *testing.T) {
	everyShell(t, patient, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		run(t, s, "x=kept")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			defer cancel()
			for ctx.Err() == nil {
				if _, err := os.Stat(filepath.Join(b.dir, "started")); err == nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		r, err := s.Run(ctx, shell.RunRequest{Command: "echo before; touch started; sleep 1000; touch after"})
		if !errors.Is(err, context.Canceled) || r.TimedOut || r.Outcome != shell.Interrupted || string(r.Stdout) != "before\n" {
			t.Errorf("got %+v, %v", r, err)
		}
		expect(t, s, "echo $x; test -e after || echo stopped", "kept\nstopped\n")
		if _, err := s.Run(ctx, shell.RunRequest{Command: "touch after"}); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		deadline, cancel := context.WithTimeout(t.Context(), short)
		defer cancel()
		r, err = s.Run(deadline, shell.RunRequest{Command: "sleep 1000"})
		if !errors.Is(err, context.DeadlineExceeded) || r.TimedOut || r.StateLost {
			t.Errorf("with a deadline: %+v, %v", r, err)
		}
		expect(t, s, "echo $x; test -e after || echo stopped", "kept\nstopped\n")
	})
}

func TestResultsNeverShift(t *testing.T) {
	everyShell(t, patient, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		for _, limit := range []time.Duration{time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond} {
			for range 3 {
				// It may end just in time, just before or just after the interrupt.
				r, err := s.Run(t.Context(), shell.RunRequest{Command: "sleep 0.01; echo slow", Timeout: limit})
				if err == nil && string(r.Stdout) != "slow\n" || err != nil && sandpit.CodeOf(err) != sandpit.Timeout || r.StateLost {
					t.Fatalf("limit %s: %+v, %v", limit, r, err)
				}
				expect(t, s, "echo B1", "B1\n")
				expect(t, s, "echo B2", "B2\n")
			}
		}
	})
}
