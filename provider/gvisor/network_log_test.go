package gvisor_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// TestNetworkLogSurvivesSuspension pauses a sandbox on disk, and rolls it back: its network
// log continues, and a copy has none of it.
func TestNetworkLogSurvivesSuspension(t *testing.T) {
	t.Parallel()
	host := machineAddr(t)
	first, second := serveEcho(t, host), serveEcho(t, host)
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{first.String()}, Inside: everywhere()}})
	wantReached(t, box, first)
	wantRefused(t, box, second)
	snap := snapshotOf(t, box)
	wantReached(t, box, first)
	before := decisions(t, box)
	for what, again := range map[string]func(){
		"a pause": func() { suspend(t, box); resume(t, box) },
		"a rollback": func() {
			if err := box.(sandpit.Rollbacker).Rollback(t.Context(), snap.ID); err != nil {
				t.Fatal(err)
			}
		},
	} {
		again()
		if diff := cmp.Diff(before, decisions(t, box)); diff != "" {
			t.Errorf("after %s: %s", what, diff)
		}
	}
	wantReached(t, box, first)
	after := decisions(t, box)
	if last := after[len(after)-1]; len(after) != len(before) || last.Address != first.String() || last.Count != 3 || last.Seq <= before[len(before)-1].Seq {
		t.Errorf("the next one: %+v, before %+v", after, before)
	}
	fork := copyOf(t, p, snap)
	if got := decisions(t, fork); len(got) != 0 {
		t.Errorf("a copy knows of %+v", got)
	}
	destroy(t, box, fork)
}
