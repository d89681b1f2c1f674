package cli_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// session is the program with a terminal, as a person has it.
type session struct {
	cmd      *exec.Cmd
	terminal *os.File
	read     chan struct{} // closed when the terminal is

	mu     sync.Mutex
	screen bytes.Buffer
}

func (w *world) session(t *testing.T, size pty.Winsize, args ...string) *session {
	t.Helper()
	cmd := w.command(args...)
	cmd.Env = append(cmd.Env, "TERM=xterm")
	return startSession(t, cmd, size)
}

func startSession(t *testing.T, cmd *exec.Cmd, size pty.Winsize) *session {
	t.Helper()
	s := &session{cmd: cmd, read: make(chan struct{})}
	var err error
	if s.terminal, err = pty.StartWithSize(s.cmd, &size); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.read)
		_, _ = io.Copy(s, s.terminal) // ends with an error when the program does
	}()
	return s
}

func (s *session) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.Write(p)
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.String()
}

func (s *session) await(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(long); !strings.Contains(s.text(), text); {
		if time.Now().After(deadline) {
			t.Fatalf("no %q on the screen:\n%s", text, s.text())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *session) enter(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(s.terminal, text); err != nil {
		t.Fatal(err)
	}
}

// end returns the exit status.
func (s *session) end() int {
	_ = s.cmd.Wait()
	<-s.read
	_ = s.terminal.Close()
	return s.cmd.ProcessState.ExitCode()
}

func TestTerminalSession(t *testing.T) {
	w := newWorld(t)
	s := w.session(t, pty.Winsize{Rows: 21, Cols: 83}, "run", "-it", "--", "sh", "-c",
		`trap 'echo INTERRUPTED' INT; tty; stty size; while :; do read -r line || continue; echo "[$line]"; case $line in size) stty size;; bye) exit 5;; esac; done`)
	s.await(t, "/dev/pts/")
	s.await(t, "21 83")
	s.enter(t, "hello\r")
	s.await(t, "[hello]")
	if err := pty.Setsize(s.terminal, &pty.Winsize{Rows: 33, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(time.Minute); !strings.Contains(s.text(), "33 99"); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the new size does not arrive:\n%s", s.text())
		}
		s.enter(t, "size\r") // the new size travels on its own
	}
	s.enter(t, "\x03")
	s.await(t, "INTERRUPTED") // it went to the program inside, not to ours
	s.enter(t, "bye\r")
	if status := s.end(); status != 5 {
		t.Errorf("exit status %d, want 5\n%s", status, s.text())
	}
	w.awaitNothing(t, "the session ended")
}

// interrupt sends a program a number of interrupts, and returns its output and how many it sent. Of several it sends
// some more if the program does not end: interrupts that come before a busy machine delivers the last one are one.
func interrupt(t *testing.T, p *os.Process, number int, ended <-chan string) (output string, sent int) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		if sent < number || number > 1 && sent < 2*number {
			if err := p.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
			sent++
		}
		select {
		case output = <-ended:
			return output, sent
		case <-limit:
			t.Errorf("the program still runs after %d interrupts", sent)
			_ = p.Kill() // it may end at this moment
			return <-ended, sent
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestCtrlCReachesTheCommand has the command clean up and choose the exit status, and ends one
// that ignores signals at the third one.
func TestCtrlCReachesTheCommand(t *testing.T) {
	w := newWorld(t)
	for name, tc := range map[string]struct {
		script  string
		signals int
		status  int
		output  string
	}{
		"it cleans up":    {`trap "echo cleaned up; exit 9" INT; echo running; while :; do sleep 0.05; done`, 1, 9, "cleaned up\n"},
		"it does not end": {`trap "" INT; echo running; while :; do sleep 0.05; done`, 3, 130, ""},
	} {
		cmd := w.command("run", "--", "sh", "-c", tc.script)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("running\n"))); err != nil {
			t.Fatal(err)
		}
		ended := make(chan string, 1)
		go func() {
			rest, _ := io.ReadAll(out) // it ends with the program
			ended <- string(rest)
		}()
		rest, sent := interrupt(t, cmd.Process, tc.signals, ended)
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != tc.status || rest != tc.output || sent < tc.signals {
			t.Errorf("%s: exit status %d and %q after %d interrupts, want %d and %q after %d", name, got, rest, sent, tc.status, tc.output, tc.signals)
		}
		w.awaitNothing(t, name)
	}
}

// TestCtrlC ends a command that does not handle signals, and the program with it.
func TestCtrlC(t *testing.T) {
	w := newWorld(t)
	for sig, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		cmd := w.command("run", "--", "sh", "-c", "echo running; sleep 1000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("running\n"))); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != want || stderr.Len() > 0 {
			t.Errorf("%s: exit status %d and %q, want %d and nothing", sig, got, &stderr, want)
		}
		w.awaitNothing(t, sig.String())
	}
}

// TestClosedPipe ends like any other program does in "| head -1".
func TestClosedPipe(t *testing.T) {
	w := newWorld(t)
	cmd := w.command("run", "--", "sh", "-c", "while echo y; do :; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGPIPE {
		t.Errorf("it ended with %v, want SIGPIPE", cmd.ProcessState)
	}
	w.awaitNothing(t, "the pipe was closed")
}

// TestScreenAsks has a person decide about a command.
func TestScreenAsks(t *testing.T) {
	w := newWorld(t)
	for answer, want := range map[string]int{"yes\r": 9, "\r": 125, "no\r": 125, "\x04": 125, "\x03": 130} {
		s := w.session(t, pty.Winsize{Rows: 24, Cols: 200}, "run", "-i", "--screen=ask", "--", "sh", "-c", "read -r x; echo \"[$x]\"; exit 9; mkfs")
		s.await(t, "potentially dangerous operation: mkfs")
		s.await(t, "[y/N]")
		s.enter(t, answer)
		if want == 9 {
			s.enter(t, "for the command\r")
			s.await(t, "[for the command]")
		}
		if got := s.end(); got != want {
			t.Errorf("%q: exit status %d, want %d:\n%s", answer, got, want, s.text())
		}
	}
}
