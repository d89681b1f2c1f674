package shell_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen; it is never the time that
// something must take.
const patience = 2 * time.Minute

// box is a sandbox of real processes on this machine.
type box struct {
	sandpit.Instance

	world *fake.World
	dir   string // a directory for the test's files
}

func newBox(t *testing.T) *box {
	t.Helper()
	w := fake.NewWorld(t.TempDir())
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close the world: %v", err)
		}
	})
	p := w.NewProvider()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close the provider: %v", err)
		}
	})
	i, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &box{i, w, dir}
}

// open returns a session in a sandbox of its own.
func open(t *testing.T, o shell.Options) (*shell.Session, *box) {
	t.Helper()
	b := newBox(t)
	if o.Dir == "" {
		o.Dir = b.dir
	}
	return openIn(t, b, o), b
}

func openIn(t *testing.T, b *box, o shell.Options) *shell.Session {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	s, err := shell.Open(t.Context(), b.Guest(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the session: %v", err)
		}
	})
	return s
}

// run runs a command that must succeed as far as the session goes.
func run(t *testing.T, s *shell.Session, command string) shell.Result {
	t.Helper()
	r, err := s.Run(t.Context(), shell.RunRequest{Command: command, SeparateStderr: true})
	if err != nil {
		t.Fatalf("%.200s: %v (hint: %s)\n%+v", command, err, sandpit.HintOf(err), r)
	}
	return r
}

// expect runs a command and compares its standard output.
func expect(t *testing.T, s *shell.Session, command, want string) shell.Result {
	t.Helper()
	r := run(t, s, command)
	if got := string(r.Stdout); got != want {
		t.Errorf("%.200s: got %.400q, want %.400q (stderr %.400q, exit code %d)", command, got, want, r.Stderr, r.ExitCode)
	}
	return r
}

func wantCode(t *testing.T, err error, want sandpit.Code) {
	t.Helper()
	if got := sandpit.CodeOf(err); got != want {
		t.Errorf("got the error %v (%s), want %s", err, got, want)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never happened: %s", what)
		}
	}
}

// shells are those that a machine may have, by the directory that makes a session
// find them.
func shells(t *testing.T) map[string]map[string]string {
	t.Helper()
	found := map[string]map[string]string{"bash": nil}
	for name, program := range map[string]string{"dash": "/bin/dash", "busybox": "/bin/busybox"} {
		if _, err := os.Stat(program); err != nil {
			t.Logf("this machine has no %s", program)
			continue
		}
		found[name] = map[string]string{"PATH": binaries(t, program)}
	}
	return found
}

// binaries makes a directory with program as sh, no bash, and the other programs
// that tests use.
func binaries(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link(program, "sh")
	for _, name := range []string{"cat", "sleep", "seq", "head", "tr", "env", "wc", "touch", "mkdir", "rm", "printf", "echo", "false", "true", "ls", "od", "dd", "timeout", "stty", "setsid"} {
		for _, from := range []string{"/usr/bin", "/bin"} {
			if _, err := os.Stat(filepath.Join(from, name)); err == nil {
				link(filepath.Join(from, name), name)
				break
			}
		}
	}
	return dir
}

// everyShell runs a test with a session of each shell.
func everyShell(t *testing.T, o shell.Options, test func(*testing.T, *shell.Session, *box)) {
	t.Helper()
	t.Parallel()
	for name, env := range shells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := o
			own.Env = env
			s, b := open(t, own)
			want := "sh"
			if name == "bash" {
				want = "bash"
			}
			if got := s.Info().Shell; got != want {
				t.Fatalf("the shell is %q, want %q", got, want)
			}
			test(t, s, b)
		})
	}
}
