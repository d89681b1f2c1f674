package manager_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func (c *cable) CreateVolume(ctx context.Context, name string) error {
	ctx, err := c.pass(ctx, fake.OpCreateVolume)
	if err != nil {
		return err
	}
	return c.Provider.CreateVolume(ctx, name)
}

func (c *cable) RemoveVolume(ctx context.Context, name string) error {
	ctx, err := c.pass(ctx, fake.OpRemoveVolume)
	if err != nil {
		return err
	}
	return c.Provider.RemoveVolume(ctx, name)
}

// volume makes ann's volume.
func (r *rig) volume(tb testing.TB, name string) {
	tb.Helper()
	v, err := r.Volumes().Create(tb.Context(), manager.VolumeRequest{Owner: "ann", Name: name})
	if err != nil {
		tb.Fatal(err)
	}
	if v.Name != name || v.Owner != "ann" || v.Provider != "fake" || v.CreatedAt.IsZero() {
		tb.Errorf("made %+v", v)
	}
}

// wantVolumes expects so many rows and so many volumes in the world.
func (r *rig) wantVolumes(tb testing.TB, rows, there int) {
	tb.Helper()
	list, err := r.store.Volumes().ListVolumes(tb.Context(), store.VolumeFilter{All: true})
	if err != nil || len(list) != rows {
		tb.Errorf("%d rows %+v, %v; want %d", len(list), list, err, rows)
	}
	names, err := r.world.Volumes()
	if err != nil || len(names) != there {
		tb.Errorf("volumes %q, %v; want %d", names, err, there)
	}
}

func having(owner, volume string) manager.CreateRequest {
	return manager.CreateRequest{Owner: owner, Spec: sandpit.Spec{Mounts: []sandpit.Mount{{Volume: volume, Target: "/v"}}}}
}

// TestVolumes takes volumes through their life.
func TestVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxVolumes: 2})
	ctx := t.Context()
	r.volume(t, "data")
	_, err := r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "ann", Name: "data"})
	wantCode(t, err, sandpit.AlreadyExists)
	if _, err := r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "bob", Name: "data"}); err != nil {
		t.Errorf("a name that is another owner's: %v", err)
	}
	for _, bad := range []manager.VolumeRequest{{Name: "../x"}, {Name: ""}} {
		_, err = r.Volumes().Create(ctx, bad)
		wantCode(t, err, sandpit.Invalid)
	}
	_, err = r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "ann", Name: "x", Provider: "none"})
	wantCode(t, err, sandpit.Unsupported)
	r.volume(t, "more")
	_, err = r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "ann", Name: "too-many"})
	wantCode(t, err, sandpit.Exhausted)
	r.wantVolumes(t, 3, 3)

	a := r.create(t, having("ann", "data"))
	b := r.create(t, having("ann", "data"))
	if a.Spec.Mounts[0].Volume != "data" {
		t.Errorf("the sandbox says %+v, want the name that was asked for", a.Spec.Mounts)
	}
	for owner, name := range map[string]string{"ann": "none", "bob": "more", "eve": "data", "": "data"} {
		_, err := r.Create(ctx, having(owner, name))
		wantCode(t, err, sandpit.NotFound)
	}
	seen, err := r.Volumes().Get(ctx, "ann", "data")
	slices.Sort(seen.Sandboxes)
	if want := []sandpit.ID{min(a.ID, b.ID), max(a.ID, b.ID)}; err != nil || !slices.Equal(seen.Sandboxes, want) || seen.Size == nil {
		t.Errorf("the volume is %+v, %v; want the sandboxes %v", seen, err, want)
	}
	_, err = r.Volumes().Get(ctx, "eve", "data")
	wantCode(t, err, sandpit.NotFound)
	wantCode(t, r.Volumes().Delete(ctx, "ann", "data"), sandpit.Conflict)
	wantCode(t, r.Volumes().Delete(ctx, "eve", "data"), sandpit.NotFound)
	if err := r.Stop(ctx, a.ID); err != nil {
		t.Error(err)
	}
	if err := r.Delete(ctx, b.ID); err != nil {
		t.Error(err)
	}
	wantCode(t, r.Volumes().Delete(ctx, "ann", "data"), sandpit.Conflict) // one that is stopped has it
	if err := r.Delete(ctx, a.ID); err != nil {
		t.Error(err)
	}
	r.wantVolumes(t, 3, 3) // they survive their sandboxes
	if err := r.Volumes().Delete(ctx, "ann", "data"); err != nil {
		t.Error(err)
	}
	wantCode(t, r.Volumes().Delete(ctx, "ann", "data"), sandpit.NotFound)
	_, err = r.Create(ctx, having("ann", "data"))
	wantCode(t, err, sandpit.NotFound)
	r.wantVolumes(t, 2, 2)
}

// TestVolumesForbidden has a limit of none.
func TestVolumesForbidden(t *testing.T) {
	t.Parallel()
	o := testoptions.Manager(manager.Options{})
	o.MaxVolumes = 0
	r := newExactRig(t, o)
	_, err := r.Volumes().Create(t.Context(), manager.VolumeRequest{Owner: "ann", Name: "data"})
	wantCode(t, err, sandpit.Exhausted)
	r.wantVolumes(t, 0, 0)
}

// TestVolumesOfAnotherProvider asks for a volume of another provider.
func TestVolumesOfAnotherProvider(t *testing.T) {
	t.Parallel()
	one, two := fake.NewWorld(t.TempDir()), fake.NewWorld(t.TempDir())
	t.Cleanup(func() {
		if err := one.Close(); err != nil {
			t.Error(err)
		}
		if err := two.Close(); err != nil {
			t.Error(err)
		}
	})
	r := newRig(t, manager.Options{Provider: "one", Providers: map[string]sandpit.Provider{
		"one": one.NewProvider(), "two": two.NewProvider(), "none": struct{ sandpit.Provider }{one.NewProvider()},
	}})
	if _, err := r.Volumes().Create(t.Context(), manager.VolumeRequest{Owner: "ann", Name: "data", Provider: "two"}); err != nil {
		t.Fatal(err)
	}
	_, err := r.Create(t.Context(), having("ann", "data"))
	wantCode(t, err, sandpit.Invalid)
	wantText(t, err, "kept by provider two")
	_, err = r.Volumes().Create(t.Context(), manager.VolumeRequest{Owner: "ann", Name: "other", Provider: "none"})
	wantCode(t, err, sandpit.Unsupported)
	wantText(t, err, "has no volumes")
}

// TestVolumesFail has the provider fail: nothing half made stays, and what could not be
// removed can be tried again.
func TestVolumesFail(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Reconcile: 10 * time.Millisecond})
	ctx := t.Context()
	for _, after := range []bool{false, true} {
		r.world.Inject(fake.Fault{Op: fake.OpCreateVolume, Err: errOrdered, After: after})
		_, err := r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "ann", Name: "data"})
		wantCode(t, err, sandpit.Unavailable)
		r.wantVolumes(t, 0, 0)
	}
	stop := r.world.Inject(fake.Fault{Op: fake.OpRemoveVolume, Err: errOrdered, Times: -1})
	r.volume(t, "data")
	wantCode(t, r.Volumes().Delete(ctx, "ann", "data"), sandpit.Unavailable)
	_, err := r.Create(ctx, having("ann", "data")) // it is as good as gone
	wantCode(t, err, sandpit.NotFound)
	r.wantVolumes(t, 1, 1)
	stop()
	eventually(t, "what could not be removed is removed", func() bool {
		names, err := r.world.Volumes()
		list, bad := r.store.Volumes().ListVolumes(ctx, store.VolumeFilter{All: true})
		return err == nil && bad == nil && len(names)+len(list) == 0
	})
	r.volume(t, "data") // the name is free
}

// TestVolumesCrash ends the manager while a volume is made or deleted.
func TestVolumesCrash(t *testing.T) {
	t.Parallel()
	for _, op := range []fake.Op{fake.OpCreateVolume, fake.OpRemoveVolume} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{})
			ctx := t.Context()
			r.volume(t, "kept")
			if op == fake.OpRemoveVolume {
				r.volume(t, "data")
			}
			r.cable.hang(op)
			ended := make(chan error, 1)
			go func() {
				if op == fake.OpRemoveVolume {
					ended <- r.Volumes().Delete(ctx, "ann", "data")
					return
				}
				_, err := r.Volumes().Create(ctx, manager.VolumeRequest{Owner: "ann", Name: "data"})
				ended <- err
			}()
			eventually(t, "the call hangs", func() bool { return r.cable.holding() == 1 })
			r.crash(t)
			if err := <-ended; err == nil {
				t.Error("what was interrupted tells of no error")
			}
			r.open(t)
			eventually(t, "what was half done is gone", func() bool {
				_, err := r.Volumes().Get(ctx, "ann", "data")
				return sandpit.CodeOf(err) == sandpit.NotFound
			})
			r.wantVolumes(t, 1, 1)
			r.create(t, having("ann", "kept"))
		})
	}
}

// TestVolumesAreHeld makes sandboxes and deletes their volume at the same time: either
// the sandbox gets it and it stays, or there is no volume.
func TestVolumesAreHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	ctx := t.Context()
	for range 20 {
		r.volume(t, "data")
		var group sync.WaitGroup
		var made sandpit.Sandbox
		var createErr, deleteErr error
		group.Go(func() { made, createErr = r.Create(ctx, having("ann", "data")) })
		group.Go(func() { deleteErr = r.Volumes().Delete(ctx, "ann", "data") })
		group.Wait()
		switch got := fmt.Sprint(sandpit.CodeOf(createErr), "+", sandpit.CodeOf(deleteErr)); got {
		case string("+" + sandpit.Conflict):
			if err := r.Delete(ctx, made.ID); err != nil {
				t.Error(err)
			}
			if err := r.Volumes().Delete(ctx, "ann", "data"); err != nil {
				t.Error(err)
			}
		case string(sandpit.NotFound + "+"):
		case string(sandpit.NotFound + "+" + sandpit.Conflict): // it asked while the other was being refused
			if err := r.Volumes().Delete(ctx, "ann", "data"); err != nil {
				t.Error(err)
			}
		default:
			t.Fatalf("%s: create %v, delete %v", got, createErr, deleteErr)
		}
		r.wantVolumes(t, 0, 0)
	}
}
