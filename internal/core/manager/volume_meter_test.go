package manager_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// VolumeSize measures a volume, and may hang before it returns the size.
func (c *cable) VolumeSize(ctx context.Context, name string) (int64, error) {
	size, err := c.Provider.VolumeSize(ctx, name)
	if _, failed := c.pass(ctx, fake.OpVolumeSize); failed != nil {
		return 0, failed
	}
	return size, err
}

// awaitPaused checks volumes until a sandbox is paused.
func (r *rig) awaitPaused(tb testing.TB, id sandpit.ID) {
	tb.Helper()
	for end := time.Now().Add(10 * time.Second); r.state(id) != sandpit.StatePaused; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("sandbox %s is %s, want it paused", id, r.state(id))
		}
		r.CheckVolumes(tb.Context())
	}
}

// TestVolumeBytes lets the volumes of one owner become too large.
func TestVolumeBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxVolumeBytes: 1000})
	ctx := t.Context()
	r.volume(t, "data")
	if _, err := r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "bob", Name: "data"}); err != nil {
		t.Fatal(err)
	}
	writer, bobs := r.create(t, having("ann", "data")).ID, r.create(t, having("bob", "data")).ID
	without := r.create(t, owned()).ID
	r.put(t, writer, "v/small", strings.Repeat("x", 1000))
	r.put(t, bobs, "v/small", strings.Repeat("x", 1000))
	r.CheckVolumes(ctx)
	r.wantState(t, writer, sandpit.StateRunning)

	r.put(t, writer, "v/large", "x")
	r.awaitPaused(t, writer)
	const text = `quota exceeded: volumes of owner "ann" take 0.0 MiB of 0.0 MiB`
	if got := r.get(t, writer).Reason; !strings.Contains(got, text) {
		t.Errorf("the reason is %q", got)
	}
	r.wantState(t, without, sandpit.StateRunning)
	r.wantState(t, bobs, sandpit.StateRunning)
	refuse := func(what string, err error) {
		t.Helper()
		if sandpit.CodeOf(err) != sandpit.Exhausted || !strings.Contains(err.Error(), text) || sandpit.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", what, err, sandpit.HintOf(err))
		}
	}
	refused := func() {
		t.Helper()
		refuse("resume", r.Resume(ctx, writer))
		_, err := r.Create(ctx, having("ann", "data"))
		refuse("create a sandbox", err)
		_, err = r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "ann", Name: "more"})
		refuse("create a volume", err)
	}
	refused()
	if err := r.Stop(ctx, writer); err != nil {
		t.Fatal(err)
	}
	refuse("start", r.Start(ctx, writer))
	r.create(t, having("bob", "data"))

	for _, id := range []sandpit.ID{writer, without} {
		if err := r.Delete(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Volumes().Delete(ctx, "ann", "data"); err != nil {
		t.Fatal(err)
	}
	r.volume(t, "data")
	r.create(t, having("ann", "data"))
}

// TestVolumeDeletedWhileMeasured deletes a volume that is too large before its size is known: it does
// not count afterwards.
func TestVolumeDeletedWhileMeasured(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxVolumeBytes: 1000})
	ctx := t.Context()
	r.volume(t, "data")
	id := r.create(t, having("ann", "data")).ID
	r.put(t, id, "v/large", strings.Repeat("x", 1001))
	r.cable.hang(fake.OpVolumeSize)
	r.CheckVolumes(ctx)
	eventually(t, "the volume is being measured", func() bool { return r.cable.holding() > 0 })
	if err := errors.Join(r.Delete(ctx, id), r.Volumes().Delete(ctx, "ann", "data")); err != nil {
		t.Fatal(err)
	}
	if !r.ChecksVolumes("ann") {
		t.Fatal("the volume was measured before its deletion")
	}
	r.cable.release()
	eventually(t, "the pass has ended", func() bool { return !r.ChecksVolumes("ann") })
	r.volume(t, "data")
	r.create(t, having("ann", "data"))
}

// TestVolumeBytesAfterRestart has the next manager measure the volumes that exist.
func TestVolumeBytesAfterRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxVolumeBytes: 1000})
	r.volume(t, "data")
	id := r.create(t, having("ann", "data")).ID
	r.put(t, id, "v/large", strings.Repeat("x", 1001))
	if err := r.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r.close(t)
	r.open(t)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		made, err := r.Create(t.Context(), having("ann", "data"))
		if err != nil {
			wantCode(t, err, sandpit.Exhausted)
			return
		}
		if time.Now().After(end) {
			t.Fatal("sandboxes with a volume that is too large are created")
		}
		if err := r.Delete(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestVolumeWritersOnFullDisk pauses the sandboxes that fill a disk, and later all that can write
// volumes.
func TestVolumeWritersOnFullDisk(t *testing.T) {
	t.Parallel()
	for range 10 {
		if fillsDisk(t) {
			return
		}
	}
	t.Error("each time, the manager made a pass of its own before the first one was checked")
}

// fillsDisk lets a sandbox fill a disk. It returns false if the manager has made a pass of its own meanwhile, which
// makes the next pass the second one.
func fillsDisk(t *testing.T) bool {
	t.Helper()
	begin := time.Now()
	var free atomic.Int64
	free.Store(1 << 30)
	r := newRig(t, manager.Options{Disk: diskspace.NewDisk(diskspace.DiskOptions{
		MinFree: 1 << 20, Measure: func() (int64, int64, error) { return free.Load(), 1 << 30, nil },
	})})
	ctx := t.Context()
	r.volume(t, "data")
	if _, err := r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "bob", Name: "data"}); err != nil {
		t.Fatal(err)
	}
	writer, bobs, other := r.create(t, having("ann", "data")).ID, r.create(t, having("bob", "data")).ID, r.create(t, having("bob", "data")).ID
	r.put(t, writer, "v/f", "grown")
	free.Store(1)
	r.CheckVolumes(ctx)
	for end := time.Now().Add(10 * time.Second); r.state(writer) != sandpit.StatePaused; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the sandbox that grows is not paused")
		}
	}
	if r.state(bobs) != sandpit.StateRunning && time.Since(begin) >= manager.VolumePassEvery {
		return false
	}
	r.wantState(t, bobs, sandpit.StateRunning)
	wantCode(t, r.Resume(ctx, writer), sandpit.Exhausted)
	r.awaitPaused(t, bobs)
	r.awaitPaused(t, other)

	free.Store(1 << 30)
	r.CheckVolumes(ctx)
	for _, id := range []sandpit.ID{writer, bobs, other} {
		if err := r.Resume(ctx, id); err != nil {
			t.Error(err)
		}
	}
	r.CheckVolumes(ctx)
	r.wantState(t, writer, sandpit.StateRunning)
	return true
}
