package gvisor_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// TestOwnersShareCPU has one owner fill the CPU from several sandboxes. Another owner's single
// sandbox still gets its half; by sandboxes it would get an eighth.
func TestOwnersShareCPU(t *testing.T) {
	p := newProvider(t, t.TempDir())
	needControlGroups(t, p)
	processors := float64(runtime.NumCPU())
	spin := func(owner string) sandpit.Instance {
		box := create(t, p, sandpit.Spec{
			Labels:    map[string]string{sandpit.OwnerLabel: owner},
			Resources: sandpit.Resources{CPUs: processors},
		})
		loops := strings.Repeat("while :; do :; done & ", runtime.NumCPU())
		if _, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sh", "-c", loops + "wait"}}); err != nil {
			t.Fatal(err)
		}
		return box
	}
	victim := spin("bob")
	for range 7 {
		spin("alice")
	}
	before := statsOf(t, victim)
	time.Sleep(15 * time.Second)
	after := statsOf(t, victim)
	got := float64(after.CPU-before.CPU) / float64(after.At.Sub(before.At)) / processors
	t.Logf("bob's sandbox gets %.0f %% of the CPU", 100*got)
	if got < 0.3 {
		t.Errorf("bob's sandbox gets %.0f %% of the CPU beside 7 of alice's, want about 50 %%", 100*got)
	}
}
