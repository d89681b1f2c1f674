package cli_test

import (
	"bufio"
	"bytes"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
)

// session is the program at a terminal, as a user of a server has it.
func (u *user) session(t *testing.T, size pty.Winsize, args ...string) *session {
	t.Helper()
	cmd := u.command(args...)
	cmd.Env = append(cmd.Env, "TERM=xterm")
	return startSession(t, cmd, size)
}

func TestServerShell(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.run(t, "create", "--name", "work")
	s := u.session(t, pty.Winsize{Rows: 21, Cols: 83}, "shell", "work")
	s.enter(t, "stty size; tty\r")
	s.await(t, "21 83")
	s.await(t, "/dev/pts/")
	if err := pty.Setsize(s.terminal, &pty.Winsize{Rows: 33, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	// The new size travels on its own.
	s.enter(t, "until [ \"$(stty size)\" = '33 99' ]; do sleep 0.1; done; echo RE''SIZED\r")
	s.await(t, "RESIZED")
	s.enter(t, "sh -c 'trap \"echo STO\"\"PPED; exit\" INT; echo REA\"\"DY; while :; do sleep 0.1; done'\r")
	s.await(t, "READY")
	s.enter(t, "\x03")
	s.await(t, "STOPPED") // it went to the program inside, not to ours
	s.enter(t, "exit 5\r")
	if status := s.end(); status != 5 {
		t.Errorf("exit status %d, want 5\n%s", status, s.text())
	}
}

// TestServerTop watches, and quits.
func TestServerTop(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.run(t, "create", "--name", "watched")
	for _, key := range []string{"q", "\x03", "\x1b"} {
		s := u.session(t, pty.Winsize{Rows: 10, Cols: 100}, "top", "--interval", "200ms")
		s.await(t, "1 sandbox on http://127.0.0.1:")
		s.await(t, "watched")
		s.await(t, "0.0 %") // the second drawing
		s.enter(t, key)
		if status := s.end(); status != 0 {
			t.Errorf("%q: exit status %d", key, status)
		}
		if text := s.text(); !strings.HasSuffix(text, "\x1b[?25h\x1b[?1049l") {
			t.Errorf("%q: the terminal is not as it was: %q", key, text[max(0, len(text)-100):])
		}
	}
}

// TestServerColours shows states in colour to users that want it.
func TestServerColours(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.run(t, "create", "--name", "work")
	const green = "\x1b[32mrunning\x1b[0m"
	for _, tc := range []struct {
		environ string
		want    bool
	}{{"TERM=xterm", true}, {"NO_COLOR=1", false}, {"TERM=dumb", false}} {
		cmd := u.command("ls")
		cmd.Env = append(cmd.Env, "TERM=xterm", tc.environ)
		s := startSession(t, cmd, pty.Winsize{Rows: 24, Cols: 200})
		if status := s.end(); status != 0 || strings.Contains(s.text(), green) != tc.want {
			t.Errorf("%s: exit status %d and %q, want colours: %t", tc.environ, status, s.text(), tc.want)
		}
	}
}

// TestServerRemoveAsks has a person decide.
func TestServerRemoveAsks(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.run(t, "create", "--name", "work")
	for _, tc := range []struct {
		answer string
		want   int
	}{{"no\r", 2}, {"\r", 2}, {"\x03", 130}, {"yes\r", 0}} {
		s := u.session(t, pty.Winsize{Rows: 24, Cols: 200}, "rm", "--all")
		s.await(t, "Remove s")
		s.await(t, "(work)? [y/N]")
		s.enter(t, tc.answer)
		if got := s.end(); got != tc.want {
			t.Errorf("%q: exit status %d, want %d:\n%s", tc.answer, got, tc.want, s.text())
		}
	}
	if left := u.run(t, "ls", "-q"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestServerSignals: what would end the program is the command's.
func TestServerSignals(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.run(t, "create", "--name", "work")
	for _, tc := range []struct {
		name, script string
		send         []syscall.Signal
		want         int
		says         string
	}{
		{"terminated", `echo ready; sleep 1000 & wait`, []syscall.Signal{syscall.SIGTERM}, 143, ""},
		{"interrupt handled", `trap 'echo got INT; exit 9' INT; echo ready; while :; do sleep 0.05; done`, []syscall.Signal{syscall.SIGINT}, 9, "got INT"},
		{"user signal", `trap 'echo got USR1; exit 8' USR1; echo ready; while :; do sleep 0.05; done`, []syscall.Signal{syscall.SIGUSR1}, 8, "got USR1"},
		{
			"ignored", `trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.05; done`,
			[]syscall.Signal{syscall.SIGTERM, syscall.SIGTERM, syscall.SIGTERM},
			143, "got TERM",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cmd := u.command("exec", "work", "--", "sh", "-c", tc.script)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			var text strings.Builder
			for sent := 0; lines.Scan(); {
				text.WriteString(lines.Text() + "\n")
				if sent < len(tc.send) { // each once the one before has arrived
					if err := cmd.Process.Signal(tc.send[sent]); err != nil {
						t.Fatal(err)
					}
					sent++
				}
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tc.want || !strings.Contains(text.String(), tc.says) {
				t.Errorf("exit status %d and %q %s, want %d and %q", got, text.String(), &stderr, tc.want, tc.says)
			}
		})
	}
}

// TestServerCopyProgress draws a bar on a terminal, and nothing with -q.
func TestServerCopyProgress(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.run(t, "create", "--name", "work")
	source, target := t.TempDir(), t.TempDir()
	writeFile(t, source+"/data", strings.Repeat("x", 4<<20))
	for _, quiet := range []bool{false, true} {
		args := []string{"cp", source + "/data", "work:" + target + "/data"}
		if quiet {
			args = append(args[:1:1], "-q", args[1], args[2])
		}
		s := u.session(t, pty.Winsize{Rows: 24, Cols: 120}, args...)
		if status := s.end(); status != 0 {
			t.Fatalf("exit status %d\n%s", status, s.text())
		}
		if drawn := strings.Contains(s.text(), "Copying"); drawn == quiet {
			t.Errorf("quiet %t: the screen is %q", quiet, s.text())
		}
	}
}
