package survive_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// cpuTree is a hierarchy of control groups with CPU time.
type cpuTree struct {
	mount string
	// home is the group of this process, parent the one below which servers and engines get theirs.
	home, parent string
	// weights are the files of a server's group, with what they say.
	weights map[string]string
}

// newCPUTree finds the hierarchy. In version 2 a group that hands controllers on has no
// processes, and a service stays in the group that systemd made for it. So this process enters
// a group of its own there.
func newCPUTree(t *testing.T) cpuTree {
	t.Helper()
	const v1, v2 = "/sys/fs/cgroup/cpu", "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(v1, "cpu.shares")); err == nil {
		tree := cpuTree{mount: v1, weights: map[string]string{"cpu.shares": "10240"}}
		tree.home = tree.group(t, os.Getpid())
		tree.parent = tree.home
		return tree
	}
	handedOn, err := os.ReadFile(filepath.Join(v2, "cgroup.subtree_control"))
	if err != nil || !strings.Contains(string(handedOn), "cpu ") {
		testengine.Skip(t, "there are no control groups for CPU time: %q, %v", handedOn, err)
	}
	tree := cpuTree{mount: v2, parent: v2, weights: map[string]string{"cpu.weight": "1000", "memory.min": strconv.Itoa(64 << 20)}}
	before := tree.group(t, os.Getpid())
	tree.home, err = os.MkdirTemp(v2, "survive-") //nolint:usetesting // a control group, not a temporary directory
	if err != nil {
		t.Fatal(err)
	}
	enter := func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o600); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		enter(before)
		// Killed processes leave it a moment after they were reaped.
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			err := os.Remove(tree.home)
			if err == nil {
				return
			}
			if !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
				t.Error(err)
				return
			}
		}
	})
	enter(tree.home)
	return tree
}

// group returns the directory of a process's group.
func (c cpuTree) group(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (strings.Contains(","+parts[1]+",", ",cpu,") || len(c.weights["cpu.weight"]) > 0 && parts[0] == "0") {
			return filepath.Join(c.mount, parts[2])
		}
	}
	t.Fatalf("process %d is in no group:\n%s", pid, data)
	return ""
}

// children returns the processes below one, of which the reaper is the first.
func children(t *testing.T, pid int) []int {
	t.Helper()
	var list []int
	tasks, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/children"))
	for _, path := range tasks {
		data, _ := os.ReadFile(path) // threads come and go
		for field := range strings.FieldsSeq(string(data)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, child)
		}
	}
	return list
}

// expectGone waits until a group is gone.
func expectGone(t *testing.T, dir, when string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s there is still %s", when, dir)
		}
	}
}

// TestServerHasAGroup looks at real servers in real control groups, of version 1 or 2.
func TestServerHasAGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the control groups of this process")
	}
	tree := newCPUTree(t)
	w, other := newWorld(t), newWorld(t)
	enter := func(w *world) string {
		t.Helper()
		w.start()
		group := tree.group(t, w.process.Process.Pid)
		if filepath.Dir(group) != tree.parent || !strings.HasPrefix(filepath.Base(group), "sandpit-server-") {
			t.Fatalf("the server is in %s, want a group of its own below %s", group, tree.parent)
		}
		for file, want := range tree.weights {
			got, err := os.ReadFile(filepath.Join(group, file))
			if err != nil || strings.TrimSpace(string(got)) != want {
				t.Fatalf("%s: %q, %v; want %s", file, got, err, want)
			}
		}
		return group
	}
	first, second := enter(w), enter(other)
	if first == second {
		t.Fatalf("both servers are in %s", first)
	}

	c := w.client("unix://" + filepath.Join(w.dir, "run", "sandpit.sock"))
	defer c.Close()
	box, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	reapers := children(t, w.process.Process.Pid)
	if len(reapers) != 1 {
		t.Fatalf("the server's children: %v, want the reaper", reapers)
	}
	if got := tree.group(t, reapers[0]); got != tree.home {
		t.Errorf("the reaper is in %s, want %s", got, tree.home)
	}
	engines, err := os.ReadDir(filepath.Join(w.dir, "run/engines"))
	if err != nil || len(engines) != 1 {
		t.Fatalf("engines: %v, %v", engines, err)
	}
	if _, err := os.Stat(filepath.Join(tree.parent, "sandpit-"+engines[0].Name())); err != nil {
		t.Errorf("the engine's group is not where it was without the server's: %v", err)
	}

	w.kill()
	if _, err := os.Stat(first); err != nil {
		t.Errorf("a killed server's group: %v", err)
	}
	third := enter(w) // with the sandbox of the one before
	expectGone(t, first, "after the restart")
	if _, err := os.Stat(second); err != nil {
		t.Errorf("the other server's group: %v", err)
	}
	if got := tree.group(t, other.process.Process.Pid); got != second {
		t.Errorf("the other server is in %s now, not in %s", got, second)
	}
	if err := box.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.stop()
	expectGone(t, third, "after the end")
	other.stop()
	expectGone(t, second, "after the other's end")
}
