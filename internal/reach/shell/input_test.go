package shell_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

// TestRunReadsInputWhileItRuns runs commands that read input, which is written after they have
// asked for it.
func TestRunReadsInputWhileItRuns(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bash", "sh"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := open(t, shell.Options{Shell: name})
			in, asked := shell.NewInput(), make(chan struct{})
			var once sync.Once
			var mu sync.Mutex
			seen := map[bool]string{}
			go func() {
				<-asked
				for _, line := range []string{"one\n", "two\n"} {
					if err := in.Write(t.Context(), []byte(line)); err != nil {
						t.Errorf("write %q: %v", line, err)
					}
				}
			}()
			r, err := s.Run(t.Context(), shell.RunRequest{
				Command: `echo asked >&2; read -r a; read -r b; echo "got $a $b"`, Input: in, SeparateStderr: true,
				Output: func(stderr bool, p []byte) {
					mu.Lock()
					defer mu.Unlock()
					seen[stderr] += string(p)
					if strings.Contains(seen[true], "asked") {
						once.Do(func() { close(asked) })
					}
				},
			})
			if err != nil || r.ExitCode != 0 || seen[false] != "got one two\n" || seen[true] != "asked\n" {
				t.Errorf("run: %+v, %v, error %v", r, seen, err)
			}
			if err := in.Write(t.Context(), []byte("late\n")); sandpit.CodeOf(err) != sandpit.Gone {
				t.Errorf("write after the end: error %v, want Gone", err)
			}
			r, err = s.Run(t.Context(), shell.RunRequest{Command: `echo "$a"`})
			if err != nil || string(r.Stdout) != "one\n" {
				t.Errorf("the variable: %q, error %v", r.Stdout, err)
			}
		})
	}
}

// TestRunWithUnreadInput ends commands that do not read their input.
func TestRunWithUnreadInput(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shell.Options{})
	for _, command := range []string{"true", "exec 5<&0; true", "false || echo done"} {
		in := shell.NewInput()
		if err := in.Write(t.Context(), []byte("unread\n")); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Run(t.Context(), shell.RunRequest{Command: command, Input: in}); err != nil || r.ExitCode != 0 {
			t.Errorf("%q: %+v, error %v", command, r, err)
		}
	}
	in := shell.NewInput()
	r, err := s.Run(t.Context(), shell.RunRequest{Command: "cat", Input: in, Timeout: short})
	if sandpit.CodeOf(err) != sandpit.Timeout || !r.TimedOut {
		t.Errorf("a command that waits for input: %+v, error %v, want Timeout", r, err)
	}
	if r, err := s.Run(t.Context(), shell.RunRequest{Command: "echo usable"}); err != nil || string(r.Stdout) != "usable\n" {
		t.Errorf("after it: %+v, error %v", r, err)
	}
}
