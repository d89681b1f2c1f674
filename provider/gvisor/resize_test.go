package gvisor_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

const mebibyte = 1 << 20

// useMemory returns a script that needs a number of bytes of memory for a moment.
func useMemory(bytes int64) string {
	return fmt.Sprintf("head -c %d /dev/zero | tail -n 1 >/dev/null", bytes)
}

func resizeOf(t *testing.T, box sandpit.Instance, r sandpit.Resources) {
	t.Helper()
	if err := box.(sandpit.Resizer).Resize(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// wantFit runs a program that needs memory, and checks whether it was killed for that.
func wantFit(t *testing.T, box sandpit.Instance, bytes int64, fits bool) {
	t.Helper()
	_, status := try(t, box, "", useMemory(bytes))
	if fits != (status.Code == 0) || !fits && status.Code != 137 {
		t.Errorf("a program of %d MiB in %d MiB: status %+v, want that it fits: %t",
			bytes/mebibyte, statsOf(t, box).Limits.Memory/mebibyte, status, fits)
	}
}

// TestResizeMemory has a program killed at the old limit that fits into the new one, while the
// sandbox runs, and the reverse after the limit was lowered while it was stopped.
func TestResizeMemory(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	const low, high, size = 64 * mebibyte, 192 * mebibyte, 128 * mebibyte
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{Memory: low}})
	bystander, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	wantFit(t, box, size, false)
	resizeOf(t, box, sandpit.Resources{Memory: high})
	wantFit(t, box, size, true)
	wantFit(t, box, 2*high, false)
	if s := statsOf(t, box); s.Limits.Memory != high || s.MemoryPeak > high+65*mebibyte {
		t.Errorf("figures: %+v", s)
	}
	if list, err := box.Guest().ListProcesses(t.Context()); err != nil || len(list) != 1 || list[0].PID != bystander.PID() {
		t.Errorf("processes that are left: %+v, %v; want the bystander", list, err)
	}
	stopOf(t, box)
	resizeOf(t, box, sandpit.Resources{Memory: low})
	startOf(t, box)
	wantFit(t, box, size, false)
	if got, want := output(t, box, "grep MemTotal /proc/meminfo | tr -d -c 0-9"), strconv.Itoa(low>>10); got != want {
		t.Errorf("memory seen inside: %s KiB, want %s", got, want)
	}
}

// quotaOf returns the limit of a sandbox's CPU time, in processors, that its control group enforces.
func quotaOf(t *testing.T, box sandpit.Instance) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", kernelOf(t, box.ID())))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, file := range []string{"/sys/fs/cgroup/cpu" + parts[2] + "/cpu.cfs_quota_us", "/sys/fs/cgroup" + parts[2] + "/cpu.max"} {
			data, err := os.ReadFile(file)
			if err != nil || !strings.Contains(parts[2], string(box.ID())) {
				continue // of another version, or controller
			}
			quota, err := strconv.ParseFloat(strings.Fields(string(data))[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			return quota / 100_000
		}
	}
	t.Fatalf("no control group of sandbox %s in\n%s", box.ID(), text)
	return 0
}

// TestResizeCPU gives a running sandbox more CPU time, but no more processors than its kernel has.
func TestResizeCPU(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{CPUs: 0.2}})
	for _, cpus := range []float64{0.2, 0.6, 1} {
		resizeOf(t, box, sandpit.Resources{CPUs: cpus})
		if got := quotaOf(t, box); got != cpus || statsOf(t, box).Limits.CPUs != cpus {
			t.Errorf("the quota is %g, the limit %g; want %g", got, statsOf(t, box).Limits.CPUs, cpus)
		}
	}
	err := box.(sandpit.Resizer).Resize(t.Context(), sandpit.Resources{CPUs: 3})
	if runtime.NumCPU() > 2 && (sandpit.CodeOf(err) != sandpit.Conflict || !strings.Contains(err.Error(), "started with 2 processors")) {
		t.Errorf("more processors than the kernel was started with: %v", err)
	}
	if runtime.NumCPU() > 2 && quotaOf(t, box) != 1 {
		t.Errorf("the quota is %g after an error, want 1", quotaOf(t, box))
	}
}

// TestResizeStoppedDisk makes the disk of a stopped sandbox larger, whose files were in memory.
func TestResizeStoppedDisk(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	box := create(t, p, sandpit.Spec{Resources: sandpit.Resources{Memory: 128 * mebibyte, Disk: 32 * mebibyte}})
	const write = "dd if=/dev/zero of=/workspace/large bs=1M count=100 2>&1"
	if got, status := try(t, box, "", "echo kept > /workspace/file; "+write); status.Code == 0 || !strings.Contains(got, "No space left") {
		t.Errorf("before: %q, %+v", got, status)
	}
	err := box.(sandpit.Resizer).Resize(t.Context(), sandpit.Resources{Disk: 256 * mebibyte})
	if sandpit.CodeOf(err) != sandpit.Conflict || sandpit.HintOf(err) == "" {
		t.Errorf("the disk of a sandbox that runs: %v", err)
	}
	output(t, box, "rm /workspace/large")
	stopOf(t, box)
	if err := box.(sandpit.Resizer).Resize(t.Context(), sandpit.Resources{Disk: 16 * mebibyte}); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("a smaller disk: %v", err)
	}
	for _, size := range []int64{256, 512} { // from memory to a file, and from a file
		resizeOf(t, box, sandpit.Resources{Disk: size * mebibyte})
		startOf(t, box)
		if got := output(t, box, "cat /workspace/file"); got != "kept" {
			t.Errorf("the file: %q", got)
		}
		output(t, box, strings.Replace(write, "count=100", fmt.Sprintf("count=%d", size-56), 1))
		output(t, box, "rm /workspace/large")
		if s := statsOf(t, box); s.Limits.Disk != size*mebibyte {
			t.Errorf("limits: %+v", s.Limits)
		}
		stopOf(t, box)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
