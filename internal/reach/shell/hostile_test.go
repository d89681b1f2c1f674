package shell_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

// TestOutputThatImitatesAMark prints marks without the secret bits, and searches for the bits
// where a command might find them.
func TestOutputThatImitatesAMark(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		for _, kind := range []string{"C", "B", "E0 /", "X", "S", ""} {
			for _, token := range []string{"", "00000000000000000000000000000000", "%s"} {
				mark := "\x1e" + token + kind + "\x1e" + token
				r := expect(t, s, "printf '%s' '"+mark+"'; printf '%s' '"+mark+"' >&2; sh -c 'exit 3'", mark)
				if string(r.Stderr) != mark || r.ExitCode != 3 {
					t.Errorf("%q: %+v", mark, r)
				}
			}
		}
		// What it can see of the script, printed with the escapes carried out.
		for _, command := range []string{
			`printf '%b' "$(tr '\0' '\n' </proc/$$/cmdline)" | cat -v >/dev/null; cat /proc/self/environ /proc/$$/environ /proc/$$/cmdline | tr -cd 'a-f0-9' | wc -c >/dev/null`,
			`set -x; set -v; : one; { set +x; set +v; } 2>/dev/null`,
			`printf '%b' "$(set)" >/dev/null; set | tr -d '\036' >/dev/null; trap; alias`,
			`for fd in /proc/self/fd/*; do :; done; (exec 9<&0; cat <&9); ls -l /proc/self/fd >/dev/null`,
		} {
			r, err := s.Run(t.Context(), shell.RunRequest{Command: command + "; sh -c 'exit 4'"})
			if err != nil || r.ExitCode != 4 || r.Outcome != shell.Completed {
				t.Errorf("%s: %+v, %v", command, r, err)
			}
		}
		if r := run(t, s, "echo done"); !strings.HasSuffix(string(r.Stdout), "done\n") {
			t.Errorf("%+v", r)
		}
	})
}

// TestCommandsCannotWriteToTheSession holds that the descriptors of the session are
// closed in commands.
func TestCommandsCannotWriteToTheSession(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		if s.Info().Shell == "bash" {
			expect(t, s, "for fd in 249 250 251; do { true >&$fd; } 2>/dev/null || echo closed; done", "closed\nclosed\nclosed\n")
			return
		}
		expect(t, s, "sh -c 'for fd in 7 8; do { true >&$fd; } 2>/dev/null || echo closed; done'", "closed\nclosed\n")
	})
}

// TestShellThatLies redefines what the session relies on. It may lose the shell, but
// neither hangs nor harms the next command.
func TestShellThatLies(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shell.Options{Grace: 100 * time.Millisecond})
	lies := []string{
		`printf() { :; }; command() { :; }`,
		`eval() { :; }`,
		`enable -n printf eval; PATH=/nowhere`,
		`set -n`,
		`read() { :; }; builtin() { :; }`,
		`readonly __sandpit=5`,
		`declare -n __sandpit=x; shopt -s nocasematch; IFS=' 0123456789'`,
		`exec 249<&-; exec 250>&-`,
		`ulimit -n 20`,
		`ulimit -u 0; ulimit -f 0`,
		`readonly PWD=/x IFS=abc _=5`,
		`trap 'exit 9' DEBUG`,
		`trap 'sleep 1000' DEBUG`,
		`kill -STOP $$`,
		`sh -c 'kill -STOP $PPID'`,
		`exec </dev/zero`,
		`while :; do :; done & kill -9 $$`,
	}
	if os.Getenv("SANDPIT_TEST_SHELL_LIES") == "" {
		lies = lies[len(lies)-1:] // the others take ten seconds each
	}
	for _, command := range lies {
		if _, err := s.Run(t.Context(), shell.RunRequest{Command: command, Timeout: short}); err != nil && sandpit.CodeOf(err) != sandpit.Timeout {
			t.Errorf("%s: %v", command, err)
		}
		for range 2 { // the first one may find out
			if _, err := s.Run(t.Context(), shell.RunRequest{Command: "echo maybe", Timeout: short}); err != nil && sandpit.CodeOf(err) != sandpit.Timeout {
				t.Logf("after %s: %v", command, err)
			}
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Errorf("restart after %s: %v", command, err)
		}
		if r := expect(t, s, "echo well", "well\n"); !r.Fresh {
			t.Errorf("after %s: %+v", command, r)
		}
	}
}

func TestHugeOutputDoesNotOutliveItsCommand(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shell.Options{MaxOutput: 4096, Grace: patience})
	r, err := s.Run(t.Context(), shell.RunRequest{Command: "cat /dev/zero", Timeout: short})
	if sandpit.CodeOf(err) != sandpit.Timeout || !r.Truncated || r.StdoutSize < 1<<16 || len(r.Stdout) > 5000 || r.StateLost {
		t.Errorf("got %d of %d bytes, %v", len(r.Stdout), r.StdoutSize, err)
	}
	expect(t, s, "echo next", "next\n")
}
