package gvisor_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func suspend(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	if err := box.(sandpit.Suspender).Suspend(tb.Context()); err != nil {
		tb.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
}

func resume(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	if err := box.(sandpit.Pauser).Resume(tb.Context()); err != nil {
		tb.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
}

// TestSuspendSurvivesKernelKills kills the sandbox's kernel while it is written down and
// while it is read: it is on disk with everything, runs on, or is gone as any sandbox
// whose kernel is killed while it runs.
func TestSuspendSurvivesKernelKills(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	suspended, resumed := 0, 0
	for number := range 4 {
		box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
		counting(t, box)
		count(t, box)
		output(t, box, "busybox head -c 20000000 /dev/urandom > /large; echo ok")
		killed := make(chan bool, 1)
		kill := func() { killed <- killKernelOf(box.ID()) }
		if number%2 == 0 {
			time.AfterFunc(time.Duration(rand.IntN(200))*time.Millisecond, kill)
		} else {
			killed <- false // this one later
		}
		err := box.(sandpit.Suspender).Suspend(t.Context())
		<-killed
		if err != nil {
			if _, err := box.Wait(t.Context()); err != nil {
				t.Errorf("wait for the end: %v", err)
			}
			destroy(t, box)
			continue
		}
		suspended++
		started := make(chan error, 1)
		go func() { started <- box.(sandpit.Pauser).Resume(t.Context()) }()
		for len(started) == 0 && !killKernelOf(box.ID()) {
			time.Sleep(time.Millisecond)
		}
		if err := <-started; err != nil { // else it ran already when it was killed
			resumed++
			resume(t, box)
			if got := count(t, box); got != "2" {
				t.Errorf("it counts %s", got)
			}
		}
		destroy(t, box)
	}
	t.Logf("%d of 4 were suspended, and %d found on disk after a resume that failed", suspended, resumed)
}

// suspendOwnerVariable has TestSuspendOwner work in the named directory.
const suspendOwnerVariable = "SANDPIT_TEST_SUSPEND_OWNER"

// TestSuspendOwner is not a test by itself: it is the process that
// TestSuspendSurvivesKills kills.
func TestSuspendOwner(t *testing.T) {
	dir, handle, _ := strings.Cut(os.Getenv(suspendOwnerVariable), "|")
	if dir == "" {
		t.Skip("only run by another test")
	}
	raw, err := base64.StdEncoding.DecodeString(handle)
	if err != nil {
		t.Fatal(err)
	}
	box, err := newProviderWith(t, dir, lasting).Attach(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	for { // until it is killed
		fmt.Fprintln(os.Stderr, "wrote", count(t, box))
		snap := snapshotOf(t, box)
		suspend(t, box)
		resume(t, box)
		if err := box.(sandpit.Rollbacker).Rollback(t.Context(), snap.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSuspendSurvivesKills kills the process that saves, suspends and rolls back a sandbox,
// at any moment, and continues with the sandbox. SANDPIT_TEST_STOP_KILLS says how often.
func TestSuspendSurvivesKills(t *testing.T) {
	t.Parallel()
	kills := 3
	if text := os.Getenv("SANDPIT_TEST_STOP_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	p := newProviderWith(t, dir, lasting)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t), Env: map[string]string{"A": "b"}})
	counting(t, box)
	count(t, box)
	found := map[string]int{}
	for range kills {
		wrote := killOwnerOf(t, "TestSuspendOwner", suspendOwnerVariable, dir, box.Handle())
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p = newProviderWith(t, dir, lasting)
		var err error
		if box, err = p.Attach(t.Context(), box.Handle()); err != nil {
			t.Fatal(err)
		}
		err = box.(sandpit.Pauser).Resume(t.Context())
		found[string(sandpit.CodeOf(err))]++
		if err != nil && sandpit.CodeOf(err) != sandpit.Conflict {
			t.Fatalf("resume: %v", err)
		}
		// What it counts in its memory is saved in each cycle before anything else.
		if n, err := strconv.Atoi(count(t, box)); err != nil || n < wrote || n > wrote+2 {
			t.Fatalf("it counts %d, %v; the killed process heard %d", n, err, wrote)
		}
		if got := output(t, box, "echo $A"); got != "b" {
			t.Fatalf("its environment is %q", got)
		}
	}
	t.Logf("found: %v", found)
	destroy(t, box)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	newProviderWith(t, dir, lasting) // which removes what the killed have left
	awaitEmpty(t, filepath.Join(dir, "run", "engines"))
	expectEmpty(t, filepath.Join(dir, "suspended"))
	half, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.tmp"))
	if err != nil || len(half) > 0 {
		t.Errorf("left: %v, %v", half, err)
	}
}

// TestSnapshotSurvivesKernelKills kills the original: the snapshot is complete or not
// there.
func TestSnapshotSurvivesKernelKills(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	for range 3 {
		box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
		counting(t, box)
		killed := make(chan bool, 1)
		time.AfterFunc(time.Duration(rand.IntN(150))*time.Millisecond, func() { killed <- killKernelOf(box.ID()) })
		snap, err := box.(sandpit.Snapshotter).Snapshot(t.Context(), sandpit.NewSnapshotID())
		<-killed
		destroy(t, box)
		list, listErr := p.ListSnapshots(t.Context())
		if listErr != nil {
			t.Fatal(listErr)
		}
		if err != nil {
			expectEmpty(t, filepath.Join(dir, "snapshots"))
			continue
		}
		if len(list) != 1 || list[0].ID != snap.ID {
			t.Errorf("list: %+v", list)
		}
		fork := copyOf(t, p, snap)
		if got := count(t, fork); got != "1" {
			t.Errorf("the copy counts %s", got)
		}
		destroy(t, fork)
		if err := p.RemoveSnapshot(t.Context(), snap.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkSuspend suspends and resumes a sandbox with so much memory in use.
func BenchmarkSuspend(b *testing.B) {
	for _, size := range []int{0, big} {
		b.Run(fmt.Sprintf("%dMiB", size>>20), func(b *testing.B) {
			dir := b.TempDir()
			p := newProvider(b, dir)
			box := create(b, p, sandpit.Spec{Image: busyboxImage(b)})
			output(b, box, fmt.Sprintf("busybox head -c %d /dev/urandom > /large; echo ok", size))
			var took [4]time.Duration
			measure := func(i int, f func()) {
				begin := time.Now()
				f()
				took[i] += time.Since(begin)
			}
			for b.Loop() {
				measure(0, func() { suspend(b, box) })
				measure(1, func() { resume(b, box) })
				var snap sandpit.Snapshot
				var fork sandpit.Instance
				measure(2, func() { snap = snapshotOf(b, box) })
				measure(3, func() {
					fork = copyOf(b, p, snap)
					output(b, fork, "echo ok")
				})
				destroy(b, fork)
				if err := p.RemoveSnapshot(b.Context(), snap.ID); err != nil {
					b.Fatal(err)
				}
			}
			for i, name := range []string{"suspend-ms", "resume-ms", "snapshot-ms", "fork-ms"} {
				b.ReportMetric(float64(took[i].Microseconds())/1000/float64(b.N), name)
			}
			suspend(b, box)
			b.ReportMetric(float64(ownBytes(b, filepath.Join(dir, "suspended")))/(1<<20), "disk-MiB")
			destroy(b, box)
		})
	}
}

// ownBytes is how much disk is taken up by files that have no other name.
func ownBytes(tb testing.TB, dir string) (sum int64) {
	tb.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "root.erofs" || e.Name() == "guest.erofs" {
			return err
		}
		info, err := e.Info()
		sum += info.Size()
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return sum
}
