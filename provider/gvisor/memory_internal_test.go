package gvisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// writeFiles writes files of a control group.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMemoryAlarmV2 has a guard look at a group of version 2, in plain files. memory.high
// is the next alarm, and never below the use, where it would slow down the sandbox.
func TestMemoryAlarmV2(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conduit, far, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	defer conduit.Close()
	defer far.Close()
	g := &memoryGuard{conduit: conduit, limits: &limits{groups: cgroup.SandboxGroups{cgroup.Memory: dir}}}
	g.limit.Store(64 << 20)
	writeFiles(t, dir, map[string]string{"cgroup.controllers": "", "cgroup.procs": "", "memory.stat": "inactive_file 0\nactive_file 0\n"})
	for _, tc := range []struct {
		used  int64
		high  string
		waits bool
	}{
		{20 << 20, strconv.Itoa(32 << 20), false},
		{32 << 20, "unchanged", false},
		{33 << 20, strconv.Itoa(64 << 20), true},
		{64 << 20, "unchanged", true},
		{65 << 20, "max", true},
		{60 << 20, strconv.Itoa(64 << 20), true},
		{65 << 20, "max", true},
		{10 << 20, strconv.Itoa(32 << 20), false},
	} {
		writeFiles(t, dir, map[string]string{"memory.current": strconv.FormatInt(tc.used, 10), "memory.high": ""})
		if wait := g.checkUse(); wait > 0 != tc.waits {
			t.Errorf("%d bytes: checks again in %v", tc.used, wait)
		}
		high, err := os.ReadFile(filepath.Join(dir, "memory.high"))
		if err != nil {
			t.Fatal(err)
		}
		if len(high) == 0 {
			high = []byte("unchanged")
		}
		if string(high) != tc.high {
			t.Errorf("%d bytes: memory.high %s, want %s", tc.used, high, tc.high)
		}
	}
	if !g.orderedAt.IsZero() {
		t.Error("below the limit, an order to kill still counts")
	}
	if err := os.Remove(filepath.Join(dir, "memory.high")); err != nil {
		t.Fatal(err)
	}
	g.alarm = ""
	if g.checkUse() == 0 {
		t.Error("no alarm can be set, and the guard does not check again")
	}
}

// TestMemoryEventsV1 reads the last threshold of a group of version 1, in plain files: the
// limit, which includes what the sandbox's kernel may take.
func TestMemoryEventsV1(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := &limits{groups: cgroup.SandboxGroups{cgroup.Memory: dir}, kernel: 100 << 20}
	l.enforced.Memory = 64 << 20
	writeFiles(t, dir, map[string]string{"memory.usage_in_bytes": "0", "cgroup.event_control": ""})
	events, err := l.openEventsV1()
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	order, err := os.ReadFile(filepath.Join(dir, "cgroup.event_control"))
	if err != nil {
		t.Fatal(err)
	}
	if fields := strings.Fields(string(order)); len(fields) != 3 || fields[2] != strconv.Itoa(164<<20) {
		t.Errorf("order %q, want the threshold %d", order, 164<<20)
	}
}
