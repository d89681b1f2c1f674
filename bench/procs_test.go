package main

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseParent(t *testing.T) {
	t.Parallel()
	got, err := parseParent([]byte("42 (a ) R 7 (b) S 17 42 42 0 -1"))
	if err != nil || got != 17 {
		t.Errorf("got %d, %v", got, err)
	}
	for _, bad := range []string{"", "42", "42 (a)", "42 (a) S", "42 (a) S x"} {
		if _, err := parseParent([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestParseKilobytes(t *testing.T) {
	t.Parallel()
	text := []byte("00400000-7ffc ---p 00000000 00:00 0    [rollup]\nRss:    20 kB\nPss:       12 kB\nPss_Anon: 3 kB\n")
	if got, err := parseKilobytes(text, "Pss"); err != nil || got != 12<<10 {
		t.Errorf("got %d, %v", got, err)
	}
	if _, err := parseKilobytes(text, "Swap"); err == nil {
		t.Error("found what is not there")
	}
}

func TestBelow(t *testing.T) {
	t.Parallel()
	all := []process{{1, 0, "init"}, {2, 1, "a"}, {3, 2, "b"}, {4, 3, "c"}, {5, 1, "other"}}
	want := []process{{3, 2, "b"}, {4, 3, "c"}}
	if diff := cmp.Diff(want, below(all, 2), cmp.AllowUnexported(process{})); diff != "" {
		t.Error(diff)
	}
}

// TestProcessesOfMine finds a child of this process and what it takes.
func TestProcessesOfMine(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip("no sleep here:", err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // killed
	}()
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range below(all, os.Getpid()) {
		if p.pid != cmd.Process.Pid {
			continue
		}
		if n, err := sumPSS([]process{p}); err != nil || n < 1<<10 || n > 1<<30 {
			t.Errorf("it takes %d bytes, %v", n, err)
		}
		return
	}
	t.Error("the child is not found")
}

// TestAddressSpaces compares this process, one of its threads, which has the same address space, and a
// child, which has another.
func TestAddressSpaces(t *testing.T) {
	t.Parallel()
	child := exec.CommandContext(t.Context(), "sleep", "60")
	if err := child.Start(); err != nil {
		t.Skip("no sleep here:", err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait() // killed
	})
	me, thread, other := process{pid: os.Getpid()}, process{pid: secondThread(t)}, process{pid: child.Process.Pid}
	got, err := addressSpaces([]process{me, other, thread})
	if err != nil || len(got) != 2 || !slices.Contains(got, other) {
		t.Errorf("got %v, %v, want 2 with %v", got, err, other)
	}
	if _, err := addressSpaces([]process{me, {pid: 1 << 30}}); err != nil {
		t.Errorf("with a process that has ended: %v", err)
	}
}

// secondThread returns the number of a thread of this process that is not its first. Threads of Go end only with a
// goroutine that is locked to them, and this process has none.
func secondThread(t *testing.T) int {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if n, err := strconv.Atoi(thread.Name()); err == nil && n != os.Getpid() {
			return n
		}
	}
	t.Fatal("this process has one thread")
	return 0
}
