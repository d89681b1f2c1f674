package gvisor_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// TestOwnersShareCPU has one owner fill the CPU from several sandboxes. Another owner's single
// sandbox still gets its half of what the two use; by sandboxes it would get an eighth.
func TestOwnersShareCPU(t *testing.T) {
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	spin := func(owner string) sandpit.Instance {
		box := create(t, p, sandpit.Spec{
			Labels:    map[string]string{sandpit.OwnerLabel: owner},
			Resources: sandpit.Resources{CPUs: float64(runtime.NumCPU())},
		})
		loops := strings.Repeat("while :; do :; done & ", runtime.NumCPU())
		if _, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sh", "-c", loops + "wait"}}); err != nil {
			t.Fatal(err)
		}
		return box
	}
	victim := spin("bob")
	neighbors := make([]sandpit.Instance, 7)
	for i := range neighbors {
		neighbors[i] = spin("alice")
	}
	used := func() (bob, alice time.Duration) {
		for _, n := range neighbors {
			alice += statsOf(t, n).CPU
		}
		return statsOf(t, victim).CPU, alice
	}
	bobBefore, aliceBefore := used()
	time.Sleep(15 * time.Second)
	bob, alice := used()
	bob, alice = bob-bobBefore, alice-aliceBefore
	share := float64(bob) / float64(bob+alice)
	t.Logf("bob's sandbox gets %.0f %% of what both owners use", 100*share)
	if share < 0.3 {
		t.Errorf("bob's sandbox gets %.0f %% beside 7 of alice's, want about 50 %%", 100*share)
	}
}
