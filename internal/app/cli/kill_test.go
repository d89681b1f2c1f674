package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// world is a copy of the program with directories of its own, so that whatever
// it leaves on the machine can be told from everything else. Tests of other packages
// run at the same time and start sandboxes and containers too.
type world struct {
	dir     string
	program string
	engines map[string]bool // all that were ever seen
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), engines: make(map[string]bool)}
	w.program = filepath.Join(w.dir, "sandpit")
	copyFile(t, testengine.Path(t), w.program)
	// Images are made before, so that what is left can be counted.
	if out, err := w.command("run", "--", "true").CombinedOutput(); err != nil {
		t.Fatalf("first run: %v\n%s", err, out)
	}
	return w
}

func (w *world) command(args ...string) *exec.Cmd {
	cmd := exec.Command(w.program, args...) //nolint:noctx // each test ends it in its own way
	cmd.Env = testengine.Environ(w.dir)
	return cmd
}

// leftovers describes what there is of this world besides its images: its
// processes (the programs inside a sandbox are threads of those for the
// machine), files and mounts.
func (w *world) leftovers() []string {
	var left []string
	procs, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, p := range procs {
		exe, err := os.Readlink(p)
		if err == nil && strings.HasPrefix(exe, w.dir+"/") {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
			left = append(left, fmt.Sprintf("process %s %q", filepath.Base(filepath.Dir(p)), bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	for _, dir := range []string{"run/engines", "state/scratch"} {
		entries, _ := os.ReadDir(filepath.Join(w.dir, dir))
		for _, e := range entries {
			left = append(left, "file "+filepath.Join(dir, e.Name()))
			w.engines[e.Name()] = w.engines[e.Name()] || dir == "run/engines"
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		engine, ok := strings.CutPrefix(filepath.Base(path), "sandpit-")
		if err == nil && ok && entry.IsDir() && w.engines[engine] {
			left = append(left, "control group "+path)
		}
		return nil // others come and go meanwhile
	})
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range bytes.Lines(mounts) {
		if bytes.Contains(line, []byte(w.dir+"/")) {
			left = append(left, "mount "+string(line))
		}
	}
	return left
}

const (
	// usualEnd is how soon everything is gone. The tests of another package may keep all
	// processors busy for a while, so only most rounds have to meet it.
	usualEnd = time.Second
	// longestEnd is how soon everything is gone whatever else runs.
	longestEnd = 15 * time.Second
)

// awaitNothing waits until everything is gone, and returns how long that took.
func (w *world) awaitNothing(t *testing.T, when string) time.Duration {
	t.Helper()
	begin := time.Now()
	for {
		left := w.leftovers()
		took := time.Since(begin)
		if len(left) == 0 {
			return took
		}
		if took > longestEnd {
			t.Fatalf("%s, %s later there is still:\n%s", when, longestEnd, strings.Join(left, "\n"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestKilledAtAnyMoment ends the program by force at random moments of its
// life, in each of the ways in which a program usually goes. SANDPIT_TEST_ENDS is how often in each.
func TestKilledAtAnyMoment(t *testing.T) {
	w := newWorld(t)
	whole := timeOf(t, func() {
		if err := w.command("run", "--", "true").Run(); err != nil {
			t.Fatal(err)
		}
	})
	limit := max(usualEnd, 2*whole) // on a busy machine both take longer
	ways := map[string]func(*testing.T, *world, time.Duration){
		"kill -9": func(t *testing.T, w *world, after time.Duration) {
			t.Helper()
			w.endBySignal(t, after, syscall.SIGKILL)
		},
		"SIGTERM": func(t *testing.T, w *world, after time.Duration) {
			t.Helper()
			w.endBySignal(t, after, syscall.SIGTERM)
		},
		"closed pipe":     endByPipe,
		"closed terminal": endByTerminal,
	}
	rounds := 10
	if testing.Short() {
		rounds = 5
	}
	if text := os.Getenv("SANDPIT_TEST_ENDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(keysOf(ways)) {
		t.Run(name, func(t *testing.T) {
			var ends []time.Duration
			for range rounds {
				after := time.Duration(rand.Int64N(int64(whole) * 3 / 2))
				ways[name](t, w, after)
				ends = append(ends, w.awaitNothing(t, fmt.Sprintf("ended by %s after %s", name, after)))
			}
			slices.Sort(ends)
			if median := ends[len(ends)/2]; median > limit {
				t.Errorf("ended by %s, everything was gone %s later in half of the rounds, want at most %s", name, median, limit)
			}
		})
	}
}

func keysOf[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (w *world) endBySignal(t *testing.T, after time.Duration, sig syscall.Signal) {
	t.Helper()
	cmd := w.command("run", "--", "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

func endByPipe(t *testing.T, w *world, after time.Duration) {
	t.Helper()
	cmd := w.command("run", "--", "sh", "-c", "while echo y; do :; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = out.Close() })
	defer timer.Stop()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // SIGPIPE
}

func endByTerminal(t *testing.T, w *world, after time.Duration) {
	t.Helper()
	cmd := w.command("run", "-it", "--", "sleep", "1000")
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	_ = terminal.Close() // the kernel sends SIGHUP
	_ = cmd.Wait()
}

// TestPartsKilled ends each of the processes behind a sandbox by force: the
// others must not stay, and the user must be told.
func TestPartsKilled(t *testing.T) {
	w := newWorld(t)
	for _, role := range []string{"sandpit-reaper", "sandpit-engine", "runsc-sandbox"} {
		t.Run(role, func(t *testing.T) {
			cmd := w.command("run", "--", "sh", "-c", "echo running; sleep 1000")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
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
			if err := syscall.Kill(w.find(t, role), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			err = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != 125 || !strings.Contains(stderr.String(), "ended") {
				t.Errorf("%v, exit status %d, want 125 and a reason; it said: %s", err, got, &stderr)
			}
			w.awaitNothing(t, role+" killed")
		})
	}
}

// find returns the pid of the process of this world with the given role.
func (w *world) find(t *testing.T, role string) int {
	t.Helper()
	for _, left := range w.leftovers() {
		var pid int
		if strings.Contains(left, role) {
			if _, err := fmt.Sscanf(left, "process %d", &pid); err == nil {
				return pid
			}
		}
	}
	t.Fatalf("no process %s among:\n%s", role, strings.Join(w.leftovers(), "\n"))
	return 0
}

func timeOf(t *testing.T, f func()) time.Duration {
	t.Helper()
	begin := time.Now()
	f()
	return time.Since(begin)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, readFile(t, from), 0o755); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
