package gvisor_test

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// TestOwnersShareCPU has one owner fill the CPU from several sandboxes. Another owner's single
// sandbox still gets its half of what the two use; by sandboxes it would get an eighth. They share
// one processor: while Linux 6.18 moves threads between two, groups of equal weight get anything
// from 8 to 52 %.
func TestOwnersShareCPU(t *testing.T) {
	if testing.Short() {
		t.Skip("takes all processors")
	}
	useOneProcessor(t)
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	createFor := func(owner string) sandpit.Instance {
		return create(t, p, sandpit.Spec{
			Labels:    map[string]string{sandpit.OwnerLabel: owner},
			Resources: sandpit.Resources{CPUs: 1},
		})
	}
	victim := createFor("bob")
	neighbors := make([]sandpit.Instance, 7)
	for i := range neighbors {
		neighbors[i] = createFor("alice")
	}
	for _, box := range append([]sandpit.Instance{victim}, neighbors...) { // now that each one has been created
		loop := sandpit.Command{Args: []string{"sh", "-c", "while :; do :; done"}}
		if _, err := box.Guest().Start(t.Context(), loop); err != nil {
			t.Fatal(err)
		}
	}
	used := func() (bob, alice time.Duration) {
		for _, n := range neighbors {
			alice += statsOf(t, n).CPU
		}
		return statsOf(t, victim).CPU, alice
	}
	bobBefore, aliceBefore := used()
	time.Sleep(8 * time.Second)
	bob, alice := used()
	bob, alice = bob-bobBefore, alice-aliceBefore
	share := float64(bob) / float64(bob+alice)
	t.Logf("bob's sandbox gets %.0f %% of what both owners use", 100*share)
	if share < 0.4 {
		t.Errorf("bob's sandbox gets %.0f %% beside 7 of alice's, want about 50 %%", 100*share)
	}
}

// useOneProcessor has the threads of this process, and what they start, run on one processor until
// the test ends.
func useOneProcessor(t *testing.T) {
	t.Helper()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for cpu := range len(before) * strconv.IntSize {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	for !setProcessors(t, &one) {
	}
	t.Cleanup(func() { setProcessors(t, &before) })
}

// setProcessors reports whether nothing was to be changed: meanwhile a thread may start another one.
func setProcessors(t *testing.T, set *unix.CPUSet) bool {
	t.Helper()
	unchanged := true
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		var had unix.CPUSet
		err = unix.SchedGetaffinity(tid, &had)
		if err == nil && had != *set {
			unchanged = false
			err = unix.SchedSetaffinity(tid, set)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	return unchanged
}
