package gvisor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

func stopOf(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	if err := box.(sandpit.Stopper).Stop(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

func startOf(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	if err := box.(sandpit.Stopper).Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// manyKinds makes files of every kind, and changes and removes some of the image.
const manyKinds = `set -e; b=busybox
$b mkdir -p /workspace/tree/deep /opt/new
cd /workspace/tree
$b seq 1 100000 > large
$b head -c 3000000 /dev/urandom > random
: > empty
echo text > "a name with
two lines"
echo x > private; $b chmod 600 private; $b chown 1000:2000 private
echo x > program; $b chmod 4755 program
$b chmod 1777 deep
$b ln -s ../tree/large link; $b ln -s nowhere dangling
$b ln large hard
$b mkfifo fifo
$b mknod device c 1 3
$b truncate -s 1099511627776 sparse; echo end | $b dd of=sparse bs=1M seek=1000 conv=notrunc 2>/dev/null
$b touch -d @1000000000 large
$b rm /etc/passwd; $b mkdir /etc/passwd; echo inside > /etc/passwd/file
$b rm -rf /etc/group
echo added >> /etc/hosts
`

// everything lists all files with what can be told of them. Times are those of
// one file: gVisor keeps them in seconds.
const everything = `b=busybox; cd /
list() { $b find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./.sandpit \) -prune -o "$@" -print0 | $b sort -z; }
list | $b xargs -0 $b stat -c '%n|%F|%a|%u|%g|%s|%t|%T'
list ! -type d | $b xargs -0 $b stat -c '%n %h'
list -type l | $b xargs -0 $b ls -l | $b sed 's/.* \.\//.\//'
list -type f -size -100000 | $b xargs -0 $b sha256sum
$b stat -c %Y workspace/tree/large
$b dd if=workspace/tree/sparse bs=1M skip=1000 count=1 2>/dev/null | $b head -c 4
$b du -k workspace/tree/sparse
`

// TestStopKeepsFiles stops and starts sandboxes whose layer is in memory and on disk.
func TestStopKeepsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	images := map[string]sandpit.Image{"on disk": sandpit.HostImage, "in memory": etcImage(t)}
	for name, image := range images {
		t.Run(name, func(t *testing.T) {
			box := create(t, p, sandpit.Spec{Image: image})
			output(t, box, manyKinds)
			before := output(t, box, everything)
			for range 2 {
				stopOf(t, box)
				startOf(t, box)
				if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(output(t, box, everything), "\n")); diff != "" {
					t.Fatalf("what has changed:\n%s", diff)
				}
			}
			output(t, box, "cd /workspace/tree; echo more >> large; echo more >> hard; busybox rm -r /workspace/tree /etc/passwd; echo new > /etc/group")
			if err := box.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// etcImage is busyboxImage with some files that can be changed and removed.
func etcImage(tb testing.TB) sandpit.Image {
	tb.Helper()
	image := busyboxImage(tb)
	if err := os.Mkdir(filepath.Join(string(image), "etc"), 0o755); err != nil {
		tb.Fatal(err)
	}
	for _, name := range []string{"passwd", "group", "hosts"} {
		if err := os.WriteFile(filepath.Join(string(image), "etc", name), nil, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return image
}

// TestStartedSandboxIsTheSame looks at what else a sandbox must have after a stop, and
// must not have.
func TestStartedSandboxIsTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	spec := sandpit.Spec{
		Name: "one", Hostname: "here", Labels: map[string]string{"a": "b"}, Env: map[string]string{"SECRET": "x y"}, WorkDir: "/w",
		Resources: sandpit.Resources{PIDs: 77},
	}
	box := create(t, p, spec)
	const look = `hostname; pwd; echo "$SECRET"; busybox cat /sys/fs/cgroup/programs/pids.max; busybox grep MemTotal /proc/meminfo; busybox df -k / | busybox awk 'NR>1{print $2}'`
	before := output(t, box, look)
	output(t, box, "(sleep 1000 &) ; echo 1 > /dev/shm/memory; echo 1 > /tmp/file")
	ended := make(chan sandpit.Exit, 1)
	go func() {
		exit, err := box.Wait(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Error(err)
		}
		ended <- exit
	}()

	stopOf(t, box)
	if data, err := os.ReadFile(filepath.Join(dir, "stopped", string(box.ID()), "record.json")); err != nil || !strings.Contains(string(data), "x y") {
		t.Errorf("the record: %v, %s", err, data) // so the next line means something
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Spec.Env != nil || list[0].Spec.Labels["a"] != "b" || list[0].ID != box.ID() {
		t.Errorf("list: %+v, %v", list, err)
	}
	if _, err := p.Create(t.Context(), box.ID(), sandpit.Spec{}); sandpit.CodeOf(err) != sandpit.AlreadyExists {
		t.Errorf("create with the id of a stopped one: %v", err)
	}
	if _, err := box.(sandpit.Statser).Stats(t.Context()); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("measure a stopped one: %v", err)
	}
	if _, err := box.(sandpit.NetworkLogger).NetworkLog(t.Context(), 0); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("network log of a stopped one: %v", err)
	}
	if err := box.(sandpit.Pauser).Pause(t.Context()); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("pause a stopped one: %v", err)
	}

	other := newProvider2(t, dir) // as after a restart
	found, err := other.Attach(t.Context(), box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	startOf(t, found)
	for name, b := range map[string]sandpit.Instance{"of the starter": found, "of the stopper": box} {
		if got := output(t, b, look); got != before {
			t.Errorf("%s finds %q, want %q", name, got, before)
		}
	}
	if got := output(t, box, "cat /tmp/file; cat /dev/shm/memory 2>/dev/null || echo none"); got != "1\nnone" {
		t.Errorf("left of memory: %q", got)
	}
	if left, err := box.Guest().ListProcesses(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left of processes: %+v, %v", left, err)
	}
	stopOf(t, box)
	select {
	case exit := <-ended:
		t.Errorf("a stop counts as the end: %+v", exit)
	default:
	}
	if err := found.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit := <-ended; exit.Reason == "" {
		t.Errorf("the end has no reason: %+v", exit)
	}
	for _, b := range []sandpit.Instance{box, found} {
		if err := b.(sandpit.Stopper).Start(t.Context()); sandpit.CodeOf(err) != sandpit.Gone {
			t.Errorf("start what is gone: %v", err)
		}
	}
}

// TestStartedByTwo has two programs start a sandbox at the same time.
func TestStartedByTwo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{})
	stopOf(t, box)
	found, err := newProvider2(t, dir).Attach(t.Context(), box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	both := []sandpit.Instance{box, found}
	errs := make([]error, len(both))
	var wg sync.WaitGroup
	for i, b := range both {
		wg.Go(func() { errs[i] = b.(sandpit.Stopper).Start(t.Context()) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) || sandpit.CodeOf(errs[0]) != sandpit.Conflict && sandpit.CodeOf(errs[1]) != sandpit.Conflict {
		t.Errorf("two starts at the same time: %v and %v; want one, and a conflict", errs[0], errs[1])
	}
	for _, b := range both {
		output(t, b, "true")
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestStopWithManyFiles has so many files that the kernel needs more memory to write
// them down, and to read them again, than the sandbox may use.
func TestStopWithManyFiles(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	const limit = 96 << 20
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{Memory: limit, Disk: 1 << 30}, Image: busyboxImage(t)})
	output(t, box, `i=0; while [ $i -lt 60 ]; do
	busybox mkdir /d$i; j=0; while [ $j -lt 200 ]; do : > /d$i/a-name-of-some-length-$j; j=$((j+1)); done
	i=$((i+1)); done`)
	before := secondLimit(t, box.ID())
	stopOf(t, box)
	startOf(t, box)
	if got := output(t, box, "busybox find /d* -type f | busybox wc -l"); got != "12000" {
		t.Errorf("files: %s, want 12000", got)
	}
	if s := statsOf(t, box); s.Limits.Memory != limit {
		t.Errorf("limit %d, want %d", s.Limits.Memory, int64(limit))
	}
	// It holds again, but for what the kernel keeps of the files' names.
	if after := secondLimit(t, box.ID()); after < before || after > before+limit {
		t.Errorf("the machine's limit is %d, was %d", after, before)
	}
	if got := output(t, box, "echo alive"); got != "alive" {
		t.Errorf("afterwards: %q", got)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// secondLimit returns the limit of memory that the machine's kernel enforces.
func secondLimit(t *testing.T, id sandpit.ID) int64 {
	t.Helper()
	var limit int64
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry os.DirEntry, err error) error {
		if err != nil || filepath.Base(filepath.Dir(path)) != string(id) {
			return nil //nolint:nilerr // others come and go meanwhile
		}
		if entry.Name() != "memory.limit_in_bytes" && entry.Name() != "memory.max" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil {
			limit, err = strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		}
		return err
	})
	if limit == 0 {
		t.Fatal("no limit of memory was found")
	}
	return limit
}

// TestStoppedSandboxKeepsItsImage removes the image and what it was made from.
func TestStoppedSandboxKeepsItsImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	root := etcImage(t)
	box := create(t, p, sandpit.Spec{Image: root})
	output(t, box, "echo kept > /file")
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	prune := func() image.Pruned {
		pruned, err := images.Prune(t.Context(), image.PruneOptions{All: true})
		if err != nil {
			t.Fatal(err)
		}
		return pruned
	}
	if pruned := prune(); len(pruned.Images) != 0 {
		t.Errorf("pruned below a sandbox that runs: %+v", pruned)
	}
	for range 2 { // with a cached image, and with one that has no other name
		stopOf(t, box)
		prune()
		if err := os.RemoveAll(string(root)); err != nil {
			t.Fatal(err)
		}
		startOf(t, box)
		if got := output(t, box, "cat /file; busybox wc -c < /etc/hosts"); got != "kept\n0" {
			t.Errorf("got %q", got)
		}
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestStopOnFullDisk has no room for the files: the sandbox runs on.
func TestStopOnFullDisk(t *testing.T) {
	t.Parallel()
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		if os.Getenv("SANDPIT_REQUIRE") != "" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skipf("no small disk here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p := newProviderWith(t, t.TempDir(), func(c *gvisor.Config) { c.KeepDir = small })
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	if got := output(t, box, "busybox sleep 1000 & echo $! > /pid; busybox head -c 5000000 /dev/urandom > /large; echo ok"); got != "ok" {
		t.Fatal(got)
	}
	for range 2 {
		err := box.(sandpit.Stopper).Stop(t.Context())
		if sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
			t.Fatalf("stop: %v (hint: %s)", err, sandpit.HintOf(err))
		}
		if got := output(t, box, "busybox wc -c < /large; kill -0 $(cat /pid) && echo alive"); got != "5000000\nalive" {
			t.Errorf("afterwards: %q", got)
		}
	}
	output(t, box, "rm /large")
	stopOf(t, box) // the copy of the image fits
	startOf(t, box)
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(small)
	if err != nil || len(entries) != 3 { // the lock, and directories of checkpoints and archived sandboxes
		t.Errorf("left: %v, %v", entries, err)
	}
}

// TestDamagedFilesAreNotLoaded changes what is kept of a stopped sandbox.
func TestDamagedFilesAreNotLoaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{})
	output(t, box, "echo kept > /file")
	stopOf(t, box)
	kept := filepath.Join(dir, "stopped", string(box.ID()))
	entries, err := os.ReadDir(kept)
	if err != nil || len(entries) != 6 {
		t.Fatalf("kept: %v, %v", entries, err)
	}
	for _, e := range entries {
		path := filepath.Join(kept, e.Name())
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// Another file of the same name: the image is linked, and not ours to change.
		if err := os.Rename(path, path+".whole"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, whole[:len(whole)/2], 0o644); err != nil {
			t.Fatal(err)
		}
		if err := box.(sandpit.Stopper).Start(t.Context()); sandpit.CodeOf(err) != sandpit.Internal {
			t.Errorf("start with half of %s: %v", e.Name(), err)
		}
		if err := os.Rename(path+".whole", path); err != nil {
			t.Fatal(err)
		}
	}
	startOf(t, box)
	if got := output(t, box, "cat /file"); got != "kept" {
		t.Errorf("got %q", got)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkStopAndStart stops and starts a sandbox with so many bytes of files.
func BenchmarkStopAndStart(b *testing.B) {
	for _, size := range []int{0, big} {
		b.Run(fmt.Sprintf("%dMiB", size>>20), func(b *testing.B) {
			p := newProvider(b, b.TempDir())
			box := create(b, p, sandpit.Spec{Image: busyboxImage(b)})
			output(b, box, fmt.Sprintf("busybox head -c %d /dev/urandom > /large; echo ok", size))
			var stops, starts time.Duration
			for b.Loop() {
				begin := time.Now()
				stopOf(b, box)
				stops += time.Since(begin)
				begin = time.Now()
				startOf(b, box)
				starts += time.Since(begin)
			}
			b.ReportMetric(float64(stops.Microseconds())/1000/float64(b.N), "stop-ms")
			b.ReportMetric(float64(starts.Microseconds())/1000/float64(b.N), "start-ms")
			if got := output(b, box, "busybox wc -c < /large"); got != strconv.Itoa(size) {
				b.Errorf("size: %s", got)
			}
			if err := box.Destroy(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
