package gvisor_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// TestSuspendCycles suspends, resumes, saves and copies again and again a sandbox in which
// a checker sees that nothing is lost: a hash that runs on in memory and one in a file,
// a port that is listened on, and a shell on a terminal that is typed at from outside.
// SANDPIT_TEST_SNAPSHOT_CYCLES says how often; the default is for every day.
func TestSuspendCycles(t *testing.T) {
	usual := 10
	if testing.Short() {
		usual = 3
	}
	cycles := times(t, "SANDPIT_TEST_SNAPSHOT_CYCLES", usual)
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	c := cycler{t: t, p: p, dir: dir, box: box, shell: checker(t, box), took: make(map[string][]time.Duration)}
	destroy(t, copyOf(t, p, snapshotOf(t, box))) // what is made once is there from now on
	expectRemoved := len(list(t, filepath.Join(dir, "snapshots")))
	before, groups, engine := resourcesOf(t), countGroups(t, dir), engineMemory(t)
	c.says = step(t, box, c.shell, 0)
	for number := 1; number <= cycles; number++ {
		c.cycle(number)
		if number%50 == 0 || number == cycles {
			c.tell(number)
		}
	}
	if after := countGroups(t, dir); after > groups {
		t.Errorf("%d control groups before, %d after", groups, after)
	}
	expectResources(t, before)
	expectEmpty(t, filepath.Join(dir, "suspended"))
	if left := list(t, filepath.Join(dir, "snapshots")); len(left) > expectRemoved {
		t.Errorf("left of the snapshots: %v", left)
	}
	// A collector leaves garbage; what grows with each cycle is more after a thousand.
	const garbage = 64 << 20
	if after := engineMemory(t); after > engine+garbage {
		t.Errorf("the engine has %d MiB, and had %d before", after>>20, engine>>20)
	}
	// The same for what is saved, which is without the connections that ended in each cycle.
	const cycle = 4 << 10
	if first, last := c.sizes[0], c.sizes[len(c.sizes)-1]; last > first+first/2+int64(cycles)*cycle {
		t.Errorf("a snapshot has %d KiB, the first one had %d", last>>10, first>>10)
	}
	destroy(t, box)
}

// cycler is what TestSuspendCycles knows of its sandbox.
type cycler struct {
	t     *testing.T
	p     *gvisor.Provider
	dir   string
	box   sandpit.Instance
	shell int
	says  string // the checker, in the last step
	took  map[string][]time.Duration
	sizes []int64 // of all snapshots, in bytes
}

// cycle pauses the sandbox and lets it go on, in memory and on disk, and saves and copies
// it. The checker continues in it and in the copy, and both are the same.
func (c *cycler) cycle(number int) {
	c.t.Helper()
	var snap sandpit.Snapshot
	var fork sandpit.Instance
	var next, other string
	pauser := c.box.(sandpit.Pauser)
	for _, s := range []struct {
		what string
		do   func() error
	}{
		{"pause", func() error { return pauser.Pause(c.t.Context()) }},
		{"go on", func() error { return pauser.Resume(c.t.Context()) }},
		{"suspend", func() error { return c.box.(sandpit.Suspender).Suspend(c.t.Context()) }},
		{"resume", func() error { return pauser.Resume(c.t.Context()) }},
		{"snapshot", func() error { snap = snapshotOf(c.t, c.box); return nil }},
		{"fork", func() error { fork = copyOf(c.t, c.p, snap); return nil }},
		{"remove", func() error { return c.p.RemoveSnapshot(c.t.Context(), snap.ID) }},
		{"step", func() error { next = step(c.t, c.box, c.shell, number); return nil }},
		{"step of the copy", func() error { other = step(c.t, fork, c.shell, number); return nil }},
		{"destroy", func() error { return fork.Destroy(c.t.Context()) }},
	} {
		begin := time.Now()
		if err := s.do(); err != nil {
			c.t.Fatalf("cycle %d: %s: %v", number, s.what, err)
		}
		c.took[s.what] = append(c.took[s.what], time.Since(begin))
	}
	if other != next || next == c.says {
		c.t.Fatalf("cycle %d: the copy says %q, the original %q, and %q before", number, other, next, c.says)
	}
	c.says, c.sizes = next, append(c.sizes, snap.Size)
}

// tell logs how long steps took since it was last called, and what is held.
func (c *cycler) tell(number int) {
	c.t.Helper()
	var steps []string
	for what, all := range c.took {
		slices.Sort(all)
		steps = append(steps, fmt.Sprintf("%s %s", what, all[len(all)/2].Round(time.Millisecond/10)))
	}
	slices.Sort(steps)
	c.took = make(map[string][]time.Duration)
	c.t.Logf("%d cycles; p50 %s; the first snapshot %d KiB, the last %d; the engine %d MiB; %+v", number, strings.Join(steps, ", "),
		c.sizes[0]>>10, c.sizes[len(c.sizes)-1]>>10, engineMemory(c.t)>>20, resourcesOf(c.t))
}

// times reads from a variable how often something is done.
func times(t *testing.T, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func list(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// engineMemory is how many bytes the engines below this process have for themselves.
func engineMemory(t *testing.T) (sum int64) {
	t.Helper()
	for _, pid := range descendants(os.Getpid()) {
		args, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")) // empty for a process that has ended
		if !bytes.HasPrefix(args, []byte("sandpit-engine")) {
			continue
		}
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "RssAnon:")
		kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += kb << 10
	}
	return sum
}

// checker starts the checking program, and returns the number of the shell's process.
func checker(t *testing.T, box sandpit.Instance) (shell int) {
	t.Helper()
	output(t, box, `busybox mkfifo /ask /answer; echo 0 > /hash
(exec 3<>/ask 4<>/answer; hash=0; while read x <&3; do
	hash=$(echo $hash | busybox md5sum); busybox md5sum < /hash > /next; busybox mv /next /hash
	echo "$hash" >&4
done) >/dev/null 2>&1 &
(while :; do echo served | busybox nc -l -p 8000; done) >/dev/null 2>&1 &
echo ok`)
	p, err := box.Guest().Start(t.Context(), sandpit.Command{
		Args:     []string{"sh", "-c", "lines=0; while read line; do lines=$((lines+1)); echo \"$line $lines\" > /half; busybox mv /half /typed; done"},
		Terminal: &sandpit.TerminalSize{Cols: 80, Rows: 24},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p.PID()
}

// step has the checker do one more, and returns what it says.
func step(t *testing.T, box sandpit.Instance, shell, number int) string {
	t.Helper()
	line := fmt.Sprintf("line-%d", number)
	typeAt(t, box, shell, line)
	return output(t, box, fmt.Sprintf(`echo >/ask; read hash </answer; echo "$hash"; cat /hash
for i in $(busybox seq 500); do busybox grep -q '^%s ' /typed && break; busybox sleep 0.02; done; cat /typed
ls -l /proc/%d/fd/0 | busybox grep -c pts
until busybox nc 127.0.0.1 8000 </dev/null 2>/dev/null; do busybox sleep 0.02; done`, line, shell))
}

// typeAt types a line at the terminal of a process.
func typeAt(t *testing.T, box sandpit.Instance, pid int, line string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, keys := io.Pipe()
	defer in.Close()
	p, err := box.Guest().Connect(ctx, pid, sandpit.Streams{Stdin: in})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(keys, line+"\n"); err != nil {
		t.Fatal(err)
	}
	for range 500 { // what was read is on its way until it has come
		if got := output(t, box, "cat /typed 2>/dev/null || :"); strings.HasPrefix(got, line+" ") {
			cancel()
			_ = in.Close() // wakes its reader
			_, _ = p.Wait(ctx)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("no program reads %q at the terminal", line)
}
