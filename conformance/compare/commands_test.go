package compare_test

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func commandProbes() []probe {
	return []probe{
		{
			name: "output and errors",
			want: "out\nmore\nstderr: err\n",
			do:   sh("echo out; echo err >&2; echo more"),
		},
		{
			name: "no output",
			want: "[nothing]",
			do:   sh("true"),
		},
		{
			name: "exit code 1",
			want: "[exit status 1, code 1]",
			do:   sh("exit 1"),
		},
		{
			name: "exit code 42",
			want: "[exit status 42, code 42]",
			do:   sh("exit 42"),
		},
		{
			name: "exit code beyond 255",
			want: "[exit status 44, code 44]",
			do:   sh("exit 300"),
		},
		{
			name: "a command the shell does not find",
			want: "[exit status 127, code 127]",
			do:   sh("nonesuch 2>/dev/null"),
		},
		{
			name: "a program that is not there",
			want: "refused: not_found",
			do:   command(sandpit.Command{Args: []string{"nonesuch"}}),
		},
		{
			name: "a path that is not there",
			want: "refused: not_found",
			do:   command(sandpit.Command{Args: []string{"/no/such/program"}}),
		},
		{
			name: "a file that may not be run",
			want: "refused: permission_denied",
			do:   command(sandpit.Command{Args: []string{"/data/plain"}}),
		},
		{
			name: "a directory run",
			want: "refused: permission_denied",
			do:   command(sandpit.Command{Args: []string{"/data"}}),
		},
		{
			name: "a script with an interpreter",
			want: "script 2\n",
			do:   command(sandpit.Command{Args: []string{"/data/script", "a", "b c"}}),
		},
		{
			name: "a script whose interpreter is missing",
			want: "refused: not_found",
			do:   command(sandpit.Command{Args: []string{"/data/lost"}}),
		},
		{
			name: "a file that is no program",
			want: "refused: permission_denied",
			do:   command(sandpit.Command{Args: []string{"/data/junk"}}),
		},
		{
			name: "no command",
			want: "refused: invalid",
			do:   command(sandpit.Command{}),
		},
		{
			name: "arguments as they are",
			want: "[a b][][*][$HOME][ä\n][\"'\\]",
			do:   command(sandpit.Command{Args: []string{"printf", `[%s]`, "a b", "", "*", "$HOME", "ä\n", `"'\`}}),
		},
		{
			name: "an argument of 100 KB",
			want: "100000\n",
			do:   command(sandpit.Command{Args: []string{"sh", "-c", `echo ${#1}`, "x", strings.Repeat("a", 100_000)}}),
		},
		{
			name: "an argument of 200 KB",
			want: "refused: invalid",
			do:   command(sandpit.Command{Args: []string{"sh", "-c", `echo ${#1}`, "x", strings.Repeat("a", 200_000)}}),
		},
		{
			name: "1 MB of arguments",
			want: "1000\n",
			do:   command(sandpit.Command{Args: slices.Concat([]string{"sh", "-c", `echo $#`, "x"}, slices.Repeat([]string{strings.Repeat("a", 1000)}, 1000))}),
		},
		{
			name: "the term signal, uncaught",
			want: "[killed by signal 15, code 143]",
			do:   sh("kill -TERM $$"),
		},
		{
			name: "the kill signal",
			want: "[killed by signal 9, code 137]",
			do:   sh("kill -KILL $$"),
		},
		{
			name: "a segmentation fault",
			want: "[killed by signal 11, code 139]",
			do:   sh("kill -SEGV $$"),
		},
		{
			name: "a real-time signal",
			want: "[killed by signal 40, code 168]",
			do:   sh("kill -40 $$"),
		},
		{
			name: "a caught signal",
			want: "caught\non\n",
			do:   sh("trap 'echo caught' TERM; kill -TERM $$; echo on"),
		},
		{
			name: "a broken pipe",
			want: "y\n",
			do:   sh("yes | head -n 1"),
		},
		{
			name: "SIGTERM from outside",
			want: "[killed by signal 15, code 143] signaled true",
			do:   signalled(sandpit.SIGTERM),
		},
		{
			name: "SIGKILL from outside",
			want: "[killed by signal 9, code 137] signaled true",
			do:   signalled(sandpit.SIGKILL),
		},
		{
			name: "a time-out",
			want: "refused: timeout",
			do:   command(sandpit.Command{Args: []string{"sleep", "600"}, Timeout: 300 * time.Millisecond}),
		},
		{
			name: "a time-out of a shell's children",
			want: "refused: timeout",
			do:   command(sandpit.Command{Args: []string{"sh", "-c", "sleep 600 & sleep 600; wait"}, Timeout: 300 * time.Millisecond}),
		},
		{
			name: "a time-out of what ignores SIGTERM",
			want: "refused: timeout",
			do:   command(sandpit.Command{Args: []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"}, Timeout: 300 * time.Millisecond}),
		},
		{
			name: "nothing is left of time-outs",
			want: "none\n",
			do:   sh("for i in $(seq 100); do ps -o args | grep -q '[s]leep 600' || { echo none; break; }; sleep 0.1; done"),
		},
		{
			name: "input",
			want: "one\ntwo\n",
			do:   withInput("one\ntwo\n", "cat"),
		},
		{
			name: "no input",
			want: "0\n",
			do:   command(sandpit.Command{Args: []string{"wc", "-c"}}),
		},
		{
			name: "8 MB of input",
			want: "2058fb53f643fcd58a8d83a05542392b  -\n",
			do:   withInput(strings.Repeat("x", 8<<20), "md5sum"),
		},
		{
			name: "input that no program reads",
			want: "[nothing]",
			do:   withInput(strings.Repeat("x", 8<<20), "true"),
		},
		{
			name: "8 MB of output",
			want: "8388608 bytes, as they were: true",
			do:   bigOutput,
		},
		{
			name: "is there a terminal",
			want: "not a tty\nno\n",
			do:   sh("tty; [ -t 1 ] || echo no"),
		},
		{
			name: "a terminal",
			want: "/dev/pts/0\r\n37 91\r\nall\r\n",
			do: command(sandpit.Command{
				Args: []string{"sh", "-c", "tty; stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all"}, Terminal: &sandpit.TerminalSize{Cols: 91, Rows: 37},
			}),
		},
		{
			name: "the settings of a terminal",
			want: "echo icanon isig ixon opost ",
			do: command(sandpit.Command{
				Args: []string{"sh", "-c", "stty -a | tr ';' '\\n' | grep -o -E -e '-?(isig|icanon|echo|opost|ixon)\\b' | sort | tr '\\n' ' '"}, Terminal: &sandpit.TerminalSize{Cols: 80, Rows: 24},
			}),
		},
		{
			name: "the interrupt key",
			want: "true exit status 3",
			do:   interrupted,
		},
		{
			name: "a child in the background outlives the command",
			want: "started\nlives\n",
			do:   background,
		},
		{
			name: "orphans are buried",
			want: "none\n",
			do:   sh("for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; for i in $(seq 100); do ps -o stat,comm | grep -q '^Z' || { echo none; break; }; sleep 0.1; done"),
		},
		{
			name: "32 commands at once",
			want: "32 of 32 are right",
			do:   manyAtOnce,
		},
		{
			name: "a pipeline of 20 programs",
			want: "x\n",
			do:   sh("echo x | " + strings.Repeat("cat | ", 19) + "cat"),
		},
		{
			name: "a fifo between programs",
			want: "through\n",
			do:   sh("cd /tmp; mkfifo f; echo through > f & cat f; rm f"),
		},
		{
			name: "descriptors that a command has",
			want: "4\n",
			do:   sh("ls /proc/self/fd | wc -l"),
		},
		{
			name: "jobs and wait",
			want: "7\n0\n",
			do:   sh("sleep 0.1 & p=$!; (exit 7) & wait $!; echo $?; wait $p; echo $?"),
		},
		{
			name: "an alarm",
			want: "143\nstderr: Terminated\n",
			do:   sh("timeout 1 sleep 60; echo $?"),
		},
	}
}

// withInput runs a program with an input.
func withInput(text string, args ...string) func(*testing.T, *place) string {
	return func(t *testing.T, p *place) string {
		t.Helper()
		return run(t, p.box, sandpit.Command{Args: args, Stdin: strings.NewReader(text)})
	}
}

// signalled sends a signal to a program that sleeps, and to its child.
func signalled(s sandpit.Signal) func(*testing.T, *place) string {
	return func(t *testing.T, p *place) string {
		t.Helper()
		var out bytes.Buffer
		ready := newSignalWriter("ready")
		cmd := sandpit.Command{Args: []string{"sh", "-c", "sleep 500 & echo ready; wait"}, Stdout: ready, Stderr: &out}
		proc, err := p.box.Guest().Start(within(t), cmd)
		if err != nil {
			t.Fatal(err)
		}
		ready.wait(t)
		if err := proc.Signal(within(t), s); err != nil {
			t.Fatal(err)
		}
		status, err := proc.Wait(within(t))
		if err != nil {
			return failure(err)
		}
		return outcome("", out.String(), status) + fmt.Sprint(" signaled ", status.Signaled)
	}
}

// signalWriter notices when a word has been written.
type signalWriter struct {
	word string
	mu   sync.Mutex
	buf  bytes.Buffer
	seen chan struct{}
}

func newSignalWriter(word string) *signalWriter {
	return &signalWriter{word: word, seen: make(chan struct{})}
}

func (w *signalWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := strings.Contains(w.buf.String(), w.word)
	w.buf.Write(p)
	if !before && strings.Contains(w.buf.String(), w.word) {
		close(w.seen)
	}
	return len(p), nil
}

func (w *signalWriter) wait(t *testing.T) {
	t.Helper()
	select {
	case <-w.seen:
	case <-within(t).Done():
		t.Fatalf("%q did not come", w.word)
	}
}

func (w *signalWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// interrupted types the interrupt key at a shell.
func interrupted(t *testing.T, p *place) string {
	t.Helper()
	out := newSignalWriter("ready")
	in := newSlowInput("\x03")
	defer close(in.stop)
	proc, err := p.box.Guest().Start(within(t), sandpit.Command{
		Args:  []string{"sh", "-c", "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.1; done"},
		Stdin: in, Stdout: out, Terminal: &sandpit.TerminalSize{Cols: 80, Rows: 24},
	})
	if err != nil {
		t.Fatal(err)
	}
	out.wait(t)
	close(in.begin)
	status, err := proc.Wait(within(t))
	if err != nil {
		return failure(err)
	}
	return fmt.Sprint(strings.Contains(out.String(), "interrupted"), " ", status)
}

// slowInput returns its text once it is released, and no end before stop is closed.
type slowInput struct {
	text        string
	begin, stop chan struct{}
	given       bool
}

func newSlowInput(text string) *slowInput {
	return &slowInput{text: text, begin: make(chan struct{}), stop: make(chan struct{})}
}

func (s *slowInput) Read(p []byte) (int, error) {
	if !s.given {
		select {
		case <-s.begin:
			s.given = true
			return copy(p, s.text), nil
		case <-s.stop:
		}
	}
	<-s.stop
	return 0, errUnexpected
}

func bigOutput(t *testing.T, p *place) string {
	t.Helper()
	out := run(t, p.box, sandpit.Command{Args: []string{"sh", "-c", "yes 0123456789abcde | head -n 524288"}})
	return fmt.Sprint(len(out), " bytes, as they were: ", out == strings.Repeat("0123456789abcde\n", 524288))
}

// background looks for a child after the shell that started it has ended.
func background(t *testing.T, p *place) string {
	t.Helper()
	first := run(t, p.box, sandpit.Command{Args: []string{"sh", "-c", "sleep 4711 >/dev/null 2>&1 & echo started"}})
	return first + run(t, p.box, sandpit.Command{Args: []string{"sh", "-c", "p=$(ps -o pid,args | awk '/[s]leep 4711/{print $1}'); [ $p -gt 0 ] && echo lives && kill $p"}})
}

func manyAtOnce(t *testing.T, p *place) string {
	t.Helper()
	const many = 32
	results := make([]string, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			results[i] = run(t, p.box, sandpit.Command{Args: []string{"sh", "-c", fmt.Sprintf("cat; exit %d", i)}, Stdin: strings.NewReader(strconv.Itoa(i))})
		})
	}
	wg.Wait()
	right := 0
	for i, got := range results {
		if i == 0 && got == "0" || i > 0 && strings.HasPrefix(got, strconv.Itoa(i)+"[") && strings.HasSuffix(got, fmt.Sprintf("code %d]", i)) {
			right++
		}
	}
	return fmt.Sprintf("%d of %d are right", right, many)
}
