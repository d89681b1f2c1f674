package providertest

import (
	"bytes"
	"io"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

func terminalChecks() []check {
	return []check{
		{"is one", isTerminal},
		{"size", terminalSizes},
		{"resize without one", resizeNone},
		{"control c", controlC},
		{"control d", controlD},
		{"end of the input", endOfTerminal},
		{"hang up", hangUp},
		{"job control", jobControl},
	}
}

// screen collects what a terminal shows.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// openSession starts a process at a terminal.
type session struct {
	c       *trial
	process sandpit.Process
	keys    *io.PipeWriter
	screen  screen
}

func openSession(c *trial, args ...string) *session {
	c.Helper()
	keysR, keysW := io.Pipe()
	c.Cleanup(func() { _ = keysW.Close() })
	s := &session{c: c, keys: keysW}
	s.process = c.start(sandpit.Command{
		Args: args, Stdin: keysR, Stdout: &s.screen, Terminal: &sandpit.TerminalSize{Cols: 91, Rows: 17},
	})
	return s
}

func (s *session) press(keys string) {
	s.c.Helper()
	_, err := io.WriteString(s.keys, keys)
	s.c.must(err, "press keys")
}

func (s *session) expect(text string) {
	s.c.Helper()
	s.c.eventually("on the screen: "+text, func() bool { return strings.Contains(s.screen.String(), text) })
}

func isTerminal(c *trial) {
	s := openSession(c, "sh", "-c", `test -t 0 && test -t 1 && test -t 2 && echo "all three"; echo loud >&2; : < /dev/tty && echo by name`)
	equal(c, "status", c.wait(s.process), sandpit.ExitStatus{})
	equal(c, "screen", s.screen.String(), "all three\r\nloud\r\nby name\r\n")
}

func terminalSizes(c *trial) {
	if !c.hasProgram("stty") {
		c.Skip("the image has no stty")
	}
	s := openSession(c, "sh", "-c", `stty size; while read -r line; do stty size; done`)
	s.expect("17 91")
	c.must(s.process.Resize(c.ctx(), sandpit.TerminalSize{Cols: 200, Rows: 50}), "resize")
	s.press("\r")
	s.expect("50 200")
	s.press("\x04")
	equal(c, "status", c.wait(s.process), sandpit.ExitStatus{})
}

func resizeNone(c *trial) {
	p := c.start(sandpit.Command{Args: []string{"sleep", "1000"}})
	c.wantCode(p.Resize(c.ctx(), sandpit.TerminalSize{Cols: 80, Rows: 24}), "resize without a terminal", sandpit.Conflict)
}

func controlC(c *trial) {
	s := openSession(c, "sleep", "1000")
	s.press("\x03")
	equal(c, "status", c.wait(s.process), sandpit.ExitStatus{Code: 130, Signaled: true})
	shell := openSession(c, "sh", "-c", `trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done`)
	shell.expect("ready")
	shell.press("\x03")
	equal(c, "status", c.wait(shell.process), sandpit.ExitStatus{Code: 9})
	shell.expect("caught")
}

func controlD(c *trial) {
	s := openSession(c, "cat")
	s.press("some words\r")
	s.expect("some words\r\nsome words\r\n") // the echo of the input, and cat's output
	s.press("\x04")
	equal(c, "status", c.wait(s.process), sandpit.ExitStatus{})
}

func endOfTerminal(c *trial) {
	s := openSession(c, "cat")
	s.press("last words\r")
	c.must(s.keys.Close(), "close the input")
	equal(c, "status", c.wait(s.process), sandpit.ExitStatus{})
}

func hangUp(c *trial) {
	s := openSession(c, "sh", "-c", "echo ready; sleep 1000")
	s.expect("ready")
	c.must(s.process.Signal(c.ctx(), sandpit.SIGKILL), "kill")
	equal(c, "status", c.wait(s.process), sandpit.ExitStatus{Code: 137, Signaled: true})
}

// jobControl stops a job, lists it, continues it in the background and in the foreground, and ends it
// with a key, which requires a shell with its own controlling terminal. A dumb terminal keeps the
// shell from writing control sequences before its prompt.
func jobControl(c *trial) {
	if !c.hasProgram("bash") {
		c.Skip("the image has no bash")
	}
	s := openSession(c, "env", "TERM=dumb", "bash", "--norc", "-i")
	s.press("PS1='ready> '\r")
	s.expect("\nready> ")
	s.press("sh -c 'echo it runs; exec sleep 1000'\r")
	s.expect("\nit runs")
	s.press("\x1a")
	s.expect("Stopped")
	s.press("bg\r")
	s.expect("sleep 1000' &")
	s.press("jobs\r")
	s.expect("Running")
	s.press("fg\r")
	s.expect("> fg\r\nsh -c 'echo it runs; exec sleep 1000'\r\n")
	s.press("\x03")
	s.press("echo status $?\r")
	s.expect("\nstatus 130")
	s.press("exit 5\r")
	equal(c, "status", c.wait(s.process), sandpit.ExitStatus{Code: 5})
}
