package gvisor_test

import (
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestMeasuredWhileDestroyed has many measure sandboxes while these are destroyed: that
// fails, or tells figures, and harms no other sandbox in the same engine.
func TestMeasuredWhileDestroyed(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	spec := sandpit.Spec{Image: busyboxImage(t)}
	bystander := create(t, p, spec)
	for range 10 {
		box := create(t, p, spec)
		var group sync.WaitGroup
		for range 8 {
			called := make(chan struct{})
			group.Go(func() {
				for first := true; ; first = false {
					_, err := box.(sandpit.Statser).Stats(t.Context())
					if first {
						close(called)
					}
					if err != nil {
						if sandpit.CodeOf(err) != sandpit.Gone {
							t.Errorf("while it was destroyed: %v (%s)", err, sandpit.CodeOf(err))
						}
						return
					}
				}
			})
			<-called
		}
		if err := box.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		group.Wait()
	}
	if got := output(t, bystander, "echo alive"); got != "alive" {
		t.Errorf("the other sandbox says %q", got)
	}
	destroy(t, bystander)
}
