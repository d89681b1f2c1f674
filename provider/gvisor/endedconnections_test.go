package gvisor_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestResumeForgetsEndedConnections checks that a sandbox that is suspended soon after it was
// resumed does not keep all connections that ever ended in it.
func TestResumeForgetsEndedConnections(t *testing.T) {
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	output(t, box, `(while :; do echo served | busybox nc -l -p 8000; done) >/dev/null 2>&1 & echo ok`)
	const count, connection = 40, 8 << 10 // half of the bytes that one has in a snapshot
	connect := func() {
		output(t, box, `for i in $(busybox seq 40); do
	until busybox nc 127.0.0.1 8000 </dev/null 2>/dev/null; do busybox sleep 0.02; done
done`)
	}
	saveSize := func() int64 {
		snap := snapshotOf(t, box)
		if err := p.RemoveSnapshot(t.Context(), snap.ID); err != nil {
			t.Fatal(err)
		}
		return snap.Size
	}
	for range 2 { // a first snapshot is smaller than later ones of the same programs
		saveSize()
	}
	connect()
	with := saveSize()
	for range 2 {
		if err := box.(sandpit.Suspender).Suspend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := box.(sandpit.Pauser).Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		saveSize() // gVisor drops its last references after a snapshot
	}
	if without := saveSize(); without > with-count*connection {
		t.Errorf("a snapshot has %d KiB with %d ended connections, and %d when they should be forgotten", with>>10, count, without>>10)
	}
	connect() // the port and the programs are as before
}
