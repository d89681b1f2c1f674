package gvisor_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// fill writes bytes that are no others' into a sandbox.
const fill = "busybox head -c 3000000 /dev/urandom > /large; echo ok"

// revived has a sandbox begin with its checkpoint after its kernel was killed.
func revived(t *testing.T, box sandpit.Instance) sandpit.Instance {
	t.Helper()
	kill(t, box)
	next, err := box.(sandpit.Reviver).Revive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// wantNoRoom has a checkpoint fail for want of room, and the sandbox go on.
func wantNoRoom(t *testing.T, box sandpit.Instance) {
	t.Helper()
	before := count(t, box)
	err := box.(sandpit.Checkpointer).Checkpoint(t.Context())
	if sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
		t.Errorf("checkpoint: %v (hint: %s)", err, sandpit.HintOf(err))
	}
	if after := count(t, box); len(before) != 1 || len(after) != 1 || after[0] != before[0]+1 {
		t.Errorf("its program counted %s before, and %s afterwards", before, after)
	}
}

// TestCheckpointsAreLimited makes checkpoints that are too large together.
func TestCheckpointsAreLimited(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProviderWith(t, dir, func(c *gvisor.Config) { c.CheckpointBytes = 4 << 20 })
	spec := sandpit.Spec{Image: busyboxImage(t)}
	first, second := create(t, p, spec), create(t, p, spec)
	counting(t, second)
	output(t, first, "echo 1 > /note; "+fill)
	output(t, second, "echo 2 > /note")
	checkpointOf(t, second)
	for range 2 { // the one before makes room for the next
		checkpointOf(t, first)
	}
	output(t, second, "echo 3 > /note; "+fill)
	for range 2 {
		wantNoRoom(t, second)
	}
	if got := output(t, revived(t, second), "cat /note"); got != "2" {
		t.Errorf("it came back with %q: the checkpoint before is gone", got)
	}
	// The files of a stop would be the next one.
	output(t, second, "echo 4 > /note; "+fill)
	stopOf(t, second)
	startOf(t, second)
	if left := list(t, filepath.Join(dir, "stopped", "checkpoints")); len(left) != 1 || left[0].Name() != string(first.ID()) {
		t.Errorf("after a stop there are %v", left)
	}
	destroy(t, first)
	checkpointOf(t, second)
	if got := output(t, revived(t, second), "cat /note"); got != "4" {
		t.Errorf("it came back with %q", got)
	}
	destroy(t, second)
}

// TestOldCheckpoints has checkpoints be there for as long as they may.
func TestOldCheckpoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	change := func(c *gvisor.Config) { c.CheckpointAge = time.Hour }
	p := newProviderWith(t, dir, change)
	saved := filepath.Join(dir, "stopped", "checkpoints")
	spec := sandpit.Spec{Image: busyboxImage(t)}
	first, second := create(t, p, spec), create(t, p, spec)
	age := func(box sandpit.Instance, by time.Duration) {
		t.Helper()
		at := time.Now().Add(-by)
		if err := os.Chtimes(filepath.Join(saved, string(box.ID()), "record.json"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	told := func(want bool, when string) {
		t.Helper()
		list, err := p.List(t.Context())
		i := slices.IndexFunc(list, func(one sandpit.Placement) bool { return one.ID == first.ID() })
		if err != nil || i < 0 || list[i].CheckpointedAt.IsZero() == want {
			t.Errorf("%s: %+v, %v", when, list, err)
		}
	}
	told(false, "without a checkpoint")
	checkpointOf(t, first)
	age(first, 59*time.Minute)
	told(true, "with one")
	first = revived(t, first)
	age(first, 61*time.Minute)
	told(false, "with one that is too old")
	kill(t, first)
	_, err := first.(sandpit.Reviver).Revive(t.Context())
	wantError(t, "begin with an old one", err, sandpit.NotFound)
	expectEmpty(t, saved)
	checkpointOf(t, second)
	age(second, 61*time.Minute)
	if err := p.Close(); err != nil { // which ends the engine
		t.Fatal(err)
	}
	newProviderWith(t, dir, change)
	expectEmpty(t, saved)
}

// TestCheckpointOnFullDisk has no room for one.
func TestCheckpointOnFullDisk(t *testing.T) {
	t.Parallel()
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=6m,mode=0700"); err != nil {
		if os.Getenv("SANDPIT_REQUIRE") != "" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skipf("no small disk here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p := newProviderWith(t, t.TempDir(), func(c *gvisor.Config) { c.KeepDir = small })
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	counting(t, box)
	output(t, box, "echo 1 > /note")
	checkpointOf(t, box)
	output(t, box, "echo 2 > /note; busybox head -c 8000000 /dev/urandom > /large; echo ok")
	for range 2 {
		wantNoRoom(t, box)
	}
	if left := list(t, filepath.Join(small, "checkpoints")); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	box = revived(t, box)
	if got := output(t, box, "cat /note"); got != "1" {
		t.Errorf("it came back with %q: the checkpoint before is gone", got)
	}
	destroy(t, box)
}
