package survive_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/client"
)

// cpuMount is where version 1 of control groups has CPU time.
const cpuMount = "/sys/fs/cgroup/cpu"

// cpuGroup returns the directory of a process's group.
func cpuGroup(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && strings.Contains(","+parts[1]+",", ",cpu,") {
			return filepath.Join(cpuMount, parts[2])
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

// TestServerHasAGroup looks at real servers in real control groups of version 1.
func TestServerHasAGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes groups of version 1")
	}
	if _, err := os.Stat(filepath.Join(cpuMount, "cpu.shares")); err != nil {
		t.Skip("this machine does not have version 1 of control groups for CPU time")
	}
	home := cpuGroup(t, os.Getpid())
	w, other := newWorld(t), newWorld(t)
	enter := func(w *world) string {
		t.Helper()
		w.start()
		group := cpuGroup(t, w.process.Process.Pid)
		if filepath.Dir(group) != home || !strings.HasPrefix(filepath.Base(group), "sandpit-server-") {
			t.Fatalf("the server is in %s, want a group of its own below %s", group, home)
		}
		shares, err := os.ReadFile(filepath.Join(group, "cpu.shares"))
		if err != nil || strings.TrimSpace(string(shares)) != "10240" {
			t.Fatalf("shares: %q, %v", shares, err)
		}
		return group
	}
	first, second := enter(w), enter(other)
	if first == second {
		t.Fatalf("both servers are in %s", first)
	}

	c := w.client("unix://" + filepath.Join(w.dir, "run", "sandpit.sock"))
	defer c.Close()
	box, err := c.Create(t.Context(), client.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	reapers := children(t, w.process.Process.Pid)
	if len(reapers) != 1 {
		t.Fatalf("the server's children: %v, want the reaper", reapers)
	}
	if got := cpuGroup(t, reapers[0]); got != home {
		t.Errorf("the reaper is in %s, want %s", got, home)
	}
	engines, err := os.ReadDir(filepath.Join(w.dir, "run/engines"))
	if err != nil || len(engines) != 1 {
		t.Fatalf("engines: %v, %v", engines, err)
	}
	if _, err := os.Stat(filepath.Join(home, "sandpit-"+engines[0].Name())); err != nil {
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
	if got := cpuGroup(t, other.process.Process.Pid); got != second {
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
