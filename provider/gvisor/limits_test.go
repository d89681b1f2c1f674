package gvisor_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// needControlGroups skips a test of limits where none can be set.
func needControlGroups(t *testing.T, p *gvisor.Provider) {
	t.Helper()
	switch has := hasControlGroups(t, p); {
	case !has && os.Geteuid() == 0:
		testengine.Skip(t, "there are no control groups")
	case !has:
		t.Skip("there are no control groups for an ordinary user")
	}
}

// hasControlGroups reports whether memory and CPU time can be limited. Where they cannot,
// it has seen them refused.
func hasControlGroups(t *testing.T, p *gvisor.Provider) bool {
	t.Helper()
	has := true
	for name, r := range map[string]sandpit.Resources{"memory": {Memory: 64 << 20}, "CPU": {CPUs: 0.5}} {
		box, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Resources: r})
		if err == nil {
			if err := box.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			continue
		}
		has = false
		if sandpit.CodeOf(err) != sandpit.Unsupported || sandpit.HintOf(err) == "" || !strings.Contains(err.Error(), name) {
			t.Fatalf("refuse to limit %s: %v (hint %q)", name, err, sandpit.HintOf(err))
		}
	}
	return has
}

// try runs a script and returns what it prints and how it ends.
func try(t *testing.T, box sandpit.Instance, user, script string) (string, sandpit.ExitStatus) {
	t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := box.Guest().Start(ctx, sandpit.Command{Args: []string{"sh", "-c", script}, User: user, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	status, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, &out)
	}
	return strings.TrimSpace(out.String()), status
}

func statsOf(t *testing.T, box sandpit.Instance) sandpit.Stats {
	t.Helper()
	statser, ok := box.(sandpit.Statser)
	if !ok {
		t.Fatal("no figures")
	}
	s, err := statser.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// hog keeps more and more memory: tail keeps its input until a line ends.
const hog = "exec tail -n 1 /dev/zero"

func TestMemoryLimitKillsTheProgram(t *testing.T) {
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	limits := []int64{64 << 20, 256 << 20}
	if testing.Short() {
		limits = limits[:1]
	}
	for _, limit := range limits {
		box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{Memory: limit}})
		if got, want := output(t, box, "grep MemTotal /proc/meminfo | tr -d -c 0-9; echo; cat /sys/fs/cgroup/memory.max"),
			fmt.Sprintf("%d\n%d", limit>>10, limit); got != want {
			t.Errorf("seen inside: %q, want %q", got, want)
		}
		bystander, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		const rounds = 5
		for range rounds {
			if _, status := try(t, box, "", hog); status.Code != 137 || !status.Signaled {
				t.Errorf("a program that takes all memory: %+v", status)
			}
		}
		if s := statsOf(t, box); s.OOMKills < rounds || s.OOMKills > 3*rounds || s.MemoryPeak > limit+65<<20 || s.Limits.Memory != limit {
			t.Errorf("figures: %+v", s)
		}
		list, err := box.Guest().ListProcesses(t.Context())
		if err != nil || len(list) != 1 || list[0].PID != bystander.PID() {
			t.Errorf("processes that are left: %+v, %v; want the bystander", list, err)
		}
		together := fmt.Sprintf("for i in 1 2 3 4; do (head -c %d /dev/zero | tail -n 1 >/dev/null) & done; wait", limit*2/3)
		if _, status := try(t, box, "", together); status.Code != 0 {
			t.Errorf("several programs that take memory together: %v", status)
		}
		if got := output(t, box, "echo alive"); got != "alive" {
			t.Errorf("afterwards: %q", got)
		}
	}
}

// TestMemoryLimitWithoutGuest stops the guest, which can kill nothing then. The machine's kernel
// kills the program that takes all memory, not the one of which it sees more.
func TestMemoryLimitWithoutGuest(t *testing.T) {
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	needPython(t)
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{Memory: 256 << 20}})
	const script = `exec 2>/dev/null
python3 -c '
import time
x = bytearray(60 << 20)
for i in range(0, len(x), 4096): x[i] = 1
time.sleep(1000)' &
bystander=$!
sleep 1
kill -STOP 1
python3 -c 'bytearray(b"1") * (8 << 30)'
echo "hog $?"
kill $bystander
wait $bystander
echo "bystander $?" # 143: it lived until now
kill -CONT 1`
	// The guest may then obey the order to kill something, so the script's own end says nothing.
	got, _ := try(t, box, "", script)
	if want := "hog 137\nbystander 143"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestMemoryOfNoProgram has root inside fill memory that belongs to no program.
// Either the sandbox ends of it, and says why, or its programs do, and root can
// clean up. Nothing happens to others.
func TestMemoryOfNoProgram(t *testing.T) {
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	other := create(t, p, sandpit.Spec{})
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{Memory: 64 << 20}})
	process, err := box.Guest().Start(t.Context(), sandpit.Command{
		Args: []string{"sh", "-c", "mount -t tmpfs -o size=10g x /mnt; while :; do cat /dev/zero >> /mnt/x; done"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	status, err := process.Wait(ctx)
	if err == nil {
		if status.Code == 0 || statsOf(t, box).OOMKills == 0 {
			t.Errorf("status %v, figures %+v", status, statsOf(t, box))
		}
		for range 100 {
			if _, status := try(t, box, "", "umount /mnt"); status.Code == 0 {
				break
			}
		}
		// The kernel of the sandbox releases the memory of removed files in the background.
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			text, status := try(t, box, "", "echo alive")
			if strings.TrimSpace(text) == "alive" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("afterwards: %q, %v", text, status)
			}
		}
	} else if exit, err := box.Wait(ctx); err != nil || !strings.Contains(exit.Reason, "memory ran out") || exit.Code != 137 {
		t.Errorf("exit: %+v, %v", exit, err)
	}
	if got := output(t, other, "echo alive"); got != "alive" {
		t.Errorf("another sandbox: %q", got)
	}
}

func TestFilesInMemoryAreLimited(t *testing.T) {
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{Memory: 64 << 20, Disk: 20 << 20}})
	for _, dir := range []string{"/tmp", "/dev/shm", "/workspace", "/var/tmp"} {
		got, _ := try(t, box, "1000", "mkdir -p "+dir+"; dd if=/dev/zero of="+dir+"/x bs=1M count=100 2>&1; rm -f "+dir+"/x")
		if dir == "/dev/shm" || dir == "/tmp" {
			if !strings.Contains(got, "No space left") {
				t.Errorf("fill %s: %q", dir, got)
			}
		}
		if got := output(t, box, "echo alive"); got != "alive" {
			t.Errorf("after %s: %q", dir, got)
		}
	}
}

func TestCPULimit(t *testing.T) {
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	const cpus = 0.3
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{CPUs: cpus}})
	if got := output(t, box, "nproc"); got != "1" {
		t.Errorf("processors seen inside: %s", got)
	}
	for range 3 {
		if _, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sh", "-c", "while :; do :; done"}}); err != nil {
			t.Fatal(err)
		}
	}
	before := statsOf(t, box)
	time.Sleep(2 * time.Second)
	after := statsOf(t, box)
	share := float64(after.CPU-before.CPU) / float64(after.At.Sub(before.At))
	if share > 1.4*cpus || share == 0 {
		t.Errorf("three busy programs use %.2f of a processor, want at most %g", share, cpus)
	}
	if got := output(t, box, "echo alive"); got != "alive" {
		t.Errorf("beside them: %q", got)
	}
}

// TestProcessesAreLimited has an ordinary user and root start as many processes
// as they can. Commands still work, so that a user can clean up.
func TestProcessesAreLimited(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	const limit = 40
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{PIDs: limit}})
	for _, user := range []string{"1000", "root"} {
		for _, script := range []string{
			"while :; do sleep 1000 & done",
			"b() { b | b & b; }; b",
		} {
			bomb, err := box.Guest().Start(t.Context(), sandpit.Command{User: user, Args: []string{"sh", "-c", script}})
			if err != nil {
				t.Fatal(err)
			}
			most := 0
			for end := time.Now().Add(10 * time.Second); most < limit-2 && time.Now().Before(end); {
				most = max(most, statsOf(t, box).PIDs)
			}
			if most < limit-2 || most > limit {
				t.Errorf("%s as %s: %d processes, want %d", script, user, most, limit)
			}
			if err := box.Guest().WriteFile(t.Context(), "", "/tmp/x", strings.NewReader("x"), sandpit.WriteOptions{}); err != nil {
				t.Errorf("write beside the bomb: %v", err)
			}
			if got, status := try(t, box, user, "echo alive; kill -9 -1"); got != "alive" {
				t.Errorf("beside %s as %s: %q, %v", script, user, got, status)
			}
			if _, err := bomb.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			for end := time.Now().Add(10 * time.Second); statsOf(t, box).PIDs > 0 && time.Now().Before(end); {
				_, _ = try(t, box, user, "kill -9 -1") // some may have been starting others
			}
			if got := output(t, box, "echo alive"); got != "alive" {
				t.Errorf("after %s as %s: %q", script, user, got)
			}
		}
	}
}

// TestRootCannotLiftTheLimit has root inside change what it finds of limits. Root can
// have its programs use up what is kept for the guest, which may end that sandbox.
func TestRootCannotLiftTheLimit(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	const limit, reserve = 20, 64
	for range 20 {
		box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{PIDs: limit}})
		processes, err := countProcesses(t, box)
		if err != nil && guestEnded(t, box) {
			continue // it tells nothing
		}
		if err != nil {
			t.Fatal(err)
		}
		if processes > limit+reserve {
			t.Errorf("%d processes, want at most %d", processes, limit+reserve)
		}
		return
	}
	t.Error("no sandbox lived long enough to be looked at")
}

// countProcesses counts the processes after root has lifted what it can and has started
// as many as it can.
func countProcesses(t *testing.T, box sandpit.Instance) (int, error) {
	t.Helper()
	got := output(t, box, `exec 2>/dev/null
mkdir /tmp/c
lift() {
  for dir in /sys/fs/cgroup /sys/fs/cgroup/.. /sys/fs/cgroup/programs /tmp/c /tmp/c/.. /proc/1/fd/*/. /proc/1/fd/*/.. /proc/1/fd/*/../.. /proc/1/root/sys/fs/cgroup; do
    echo max > $dir/pids.max
    echo -pids > $dir/cgroup.subtree_control
    echo $$ > $dir/cgroup.procs
  done
}
lift
mount -t cgroup2 none /tmp/c && lift
umount /tmp/c
mount -t cgroup -o pids none /mnt && echo a version 1 tree
unshare -C sh -c 'mkdir /tmp/d; mount -t cgroup2 none /tmp/d; for d in /tmp/d /sys/fs/cgroup; do echo max > $d/pids.max; echo -pids > $d/cgroup.subtree_control; done'
cat /proc/self/cgroup`)
	if strings.Contains(got, "version 1") {
		t.Errorf("got\n%s", got)
	}
	_, _ = try(t, box, "", "for i in $(seq 300); do sleep 30 & done; sleep 1")
	list, err := box.Guest().ListDir(t.Context(), "", "/proc", 1)
	if err != nil {
		return 0, fmt.Errorf("list /proc: %w", err)
	}
	processes := 0
	for _, f := range list {
		if _, err := strconv.Atoi(f.Name); err == nil {
			processes++
		}
	}
	return processes, nil
}

// guestEnded reports whether the sandbox has ended because its guest has.
func guestEnded(t *testing.T, box sandpit.Instance) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exit, err := box.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(exit.Reason, "the guest ended")
}

// TestKernelsShareNothing looks for descriptors that the kernel processes of two
// sandboxes both have. Every kernel has a connection of the engine of its own.
func TestKernelsShareNothing(t *testing.T) {
	p := newProvider(t, t.TempDir())
	for range 5 {
		create(t, p, sandpit.Spec{})
	}
	holders := make(map[string]map[int]bool) // kernel processes by socket or other thing without a name
	kernels := 0
	for _, pid := range descendants(os.Getpid()) {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		if args, err := os.ReadFile(filepath.Join(proc, "cmdline")); err != nil || !bytes.HasPrefix(args, []byte("runsc-sandbox")) {
			continue
		}
		kernels++
		fds, err := os.ReadDir(filepath.Join(proc, "fd"))
		if err != nil {
			t.Skip("only root may look: ", err)
		}
		for _, fd := range fds {
			to, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
			if err == nil && (strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "pipe:")) {
				if holders[to] == nil {
					holders[to] = make(map[int]bool)
				}
				holders[to][pid] = true
			}
		}
	}
	if kernels != 5 || len(holders) == 0 {
		t.Fatalf("%d kernels, %d descriptors", kernels, len(holders))
	}
	for what, pids := range holders {
		if len(pids) > 1 {
			t.Errorf("%s is open in %d kernels", what, len(pids))
		}
	}
}

func TestOpenFilesAreLimited(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{})
	if got := output(t, box, "ulimit -n; ulimit -Hn; ulimit -c"); got != "65536\n65536\n0" {
		t.Errorf("got %q", got)
	}
}

// TestDiskLimitDecidesWhereFilesAre asks for more than fits beside programs.
func TestDiskLimitDecidesWhereFilesAre(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	image := busyboxImage(t)
	for name, tc := range map[string]struct {
		limits sandpit.Resources
		want   int64
	}{
		"in memory":         {sandpit.Resources{}, 256 << 20},
		"in memory, little": {sandpit.Resources{Disk: 8 << 20}, 8 << 20},
		"on disk":           {sandpit.Resources{Disk: 300 << 20}, 300 << 20},
	} {
		box := create(t, p, sandpit.Spec{Image: image, Resources: tc.limits})
		got := output(t, box, "df -k / | tail -1 | awk '{print $2}'")
		if kib, err := strconv.ParseInt(got, 10, 64); err != nil || kib<<10 != tc.want {
			t.Errorf("%s: %q KiB, want %d bytes", name, got, tc.want)
		}
		got = output(t, box, "dd if=/dev/zero of=/big bs=1M count=400 2>&1; rm /big; echo again")
		if !strings.Contains(got, "No space left") || !strings.HasSuffix(got, "again") {
			t.Errorf("%s: %q", name, got)
		}
		if err := box.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestLimitsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	for _, r := range []sandpit.Resources{{Memory: 1 << 20}, {Memory: -1}, {CPUs: -1}, {CPUs: 0.001}, {CPUs: 1e9}, {Disk: 5}, {PIDs: -5}, {PIDs: 1 << 30}} {
		if _, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Resources: r}); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// TestLargestLimits creates a sandbox with the largest limits that are valid.
func TestLargestLimits(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{Memory: 1 << 50, CPUs: 1024, Disk: 1 << 50, PIDs: 1 << 20}})
	if got := output(t, box, "echo runs"); got != "runs" {
		t.Errorf("output %q", got)
	}
}

// TestStats compares what is measured with what is known.
func TestStats(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{})
	idle := statsOf(t, box)
	if idle.PIDs != 0 || idle.Disk > 1<<20 || idle.CPU <= 0 || idle.Limits.PIDs != 1024 || idle.Limits.Disk != 10<<30 {
		t.Errorf("idle: %+v", idle)
	}
	output(t, box, "dd if=/dev/zero of=/big bs=1M count=20 2>/dev/null; sleep 1000 & sleep 1000 & i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	busy := statsOf(t, box)
	if busy.PIDs != 2 || busy.Disk < 20<<20 || busy.Disk > 21<<20 || busy.CPU < idle.CPU+20*time.Millisecond || busy.Memory <= 0 {
		t.Errorf("idle: %+v, busy: %+v", idle, busy)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := box.(sandpit.Statser).Stats(t.Context()); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("of what is gone: %v", err)
	}
}

// TestDefaultLimitsAreReported is for machines and users without control groups.
func TestDefaultLimitsAreReported(t *testing.T) {
	t.Parallel()
	var notes []string
	p := newProviderWith(t, t.TempDir(), func(c *gvisor.Config) { c.Notice = func(text string) { notes = append(notes, text) } })
	for range 2 {
		box := create(t, p, sandpit.Spec{})
		limits := statsOf(t, box).Limits
		if (limits.Memory == 0 || limits.CPUs == 0) != (len(notes) == 1) {
			t.Errorf("limits %+v, notices %q", limits, notes)
		}
	}
}
