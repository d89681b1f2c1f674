package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// conversation asks on the terminal, answers, and works on a second task in the same sandbox.
const conversation = `
[[turn]]
expect.last = "count the files"
  [[turn.call]]
  name = "ask_human"
  arguments = { inquire = "Which\u001b[2J directory?" }
[[turn]]
expect.last = '^/srv$'
text = "I make one first."
usage = { input = 1000, output = 100 }
  [[turn.call]]
  name = "sandbox_shell"
  arguments = { action = "execute_command", command = "echo x > one; ls | wc -l", blocking = true }
[[turn]]
expect.last = '1'
text = "There is one file."
usage = { input = 2000, output = 100 }
[[turn]]
expect.last = "read it"
expect.any = "There is one file"
  [[turn.call]]
  name = "sandbox_shell"
  arguments = { action = "execute_command", command = "cat one", blocking = true }
[[turn]]
expect.last = 'x'
text = "It has an x."
[[turn]]
expect.last = "ask again"
  [[turn.call]]
  name = "ask_human"
  arguments = { inquire = "Really?" }
`

// agentSession starts an agent on a terminal, which waits for a task.
func (w *world) agentSession(t *testing.T) *session {
	t.Helper()
	file := filepath.Join(t.TempDir(), "script.toml")
	if err := os.WriteFile(file, []byte(conversation), 0o600); err != nil {
		t.Fatal(err)
	}
	s := w.session(t, pty.Winsize{Rows: 40, Cols: 200}, "agent", "--script", file, "--price", "3,15")
	s.await(t, "Task (exit to end): ")
	return s
}

// ask types a task and awaits the text of its end.
func (s *session) ask(t *testing.T, task, end string) {
	t.Helper()
	s.enter(t, task+"\r")
	s.await(t, end)
}

// TestAgentTerminal has a person type tasks and answer a question. Progress and costs are shown.
func TestAgentTerminal(t *testing.T) {
	w := newWorld(t)
	s := w.agentSession(t)
	s.enter(t, "\r") // an empty task is not one
	s.ask(t, "count the files", "The agent asks: ")
	s.await(t, "directory?\r\n> ")
	s.ask(t, "/srv", "finished after 3 steps")
	s.ask(t, "read it", "finished after 2 steps")
	s.enter(t, "Exit\r")
	if status := s.end(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	text := s.text()
	for _, part := range []string{
		"transcript: ", "step 1/20", "ask_human: ok, ", "step 2/20", "I make one first.", "  sandbox_shell {", "sandbox_shell: ok, ", " tokens in, ", " out, 0.0",
		"There is one file.\r\n", "It has an x.\r\n", ", cost 0.0",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q on the screen", part)
		}
	}
	if strings.Contains(text, "\x1b[2J") {
		t.Error("a question of the model controls the terminal")
	}
	if t.Failed() {
		t.Logf("the screen:\n%s", text)
	}
	w.awaitNothing(t, "the conversation ended")
}

// TestAgentTerminalEnds ends the program at each of its prompts.
func TestAgentTerminalEnds(t *testing.T) {
	w := newWorld(t)
	for key, want := range map[string]int{"\x03": 130, "\x04": 0} {
		s := w.agentSession(t)
		s.enter(t, key)
		if status := s.end(); status != want {
			t.Errorf("%q at the prompt for a task: exit status %d, want %d\n%s", key, status, want, s.text())
		}
	}
	s := w.agentSession(t)
	s.ask(t, "count the files", "directory?")
	s.enter(t, "\x03")
	if status := s.end(); status != 130 {
		t.Errorf("Ctrl-C at a question: exit status %d\n%s", status, s.text())
	}
	w.awaitNothing(t, "the program was interrupted")
}
