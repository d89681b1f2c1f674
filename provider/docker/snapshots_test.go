package docker_test

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
)

// TestLayer reads what a sandbox has changed, and looks for what reading leaves.
func TestLayer(t *testing.T) {
	t.Parallel()
	p := open(t, options(t))
	box := create(t, p, sandpit.Spec{Image: busybox})
	shell(t, box, "mkdir -p /made; echo text > /made/file; rm /bin/wget")
	layer, err := box.ReadLayer(within(t))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]string)
	for archive := tar.NewReader(layer); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		seen[h.Name] = string(text)
	}
	if err := layer.Close(); err != nil {
		t.Error(err)
	}
	if _, removed := seen["bin/.wh.wget"]; !removed || seen["made/file"] != "text\n" {
		t.Errorf("the layer has %q", seen)
	}
	left, err := p.ListSnapshots(within(t))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
	if got := shell(t, box, "cat /made/file"); got != "text\n" {
		t.Errorf("the sandbox has %q", got)
	}
}

// TestRemovedUnderContainers removes a snapshot of which there is a sandbox. The image goes
// once the sandbox has gone.
func TestRemovedUnderContainers(t *testing.T) {
	t.Parallel()
	p := open(t, options(t))
	box := create(t, p, sandpit.Spec{Image: busybox})
	saved, err := box.Snapshot(within(t), sandpit.NewSnapshotID())
	if err != nil {
		t.Fatal(err)
	}
	own, err := client.New(client.WithHost(testdocker.Host(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	img, err := own.ImageInspect(within(t), "sandpit-snapshot:"+string(saved.ID))
	if err != nil {
		t.Fatal(err)
	}
	made := create(t, p, sandpit.Spec{Image: sandpit.SnapshotImage(saved.ID)})
	if err := p.RemoveSnapshot(within(t), saved.ID); err != nil {
		t.Fatal(err)
	}
	if err := made.Destroy(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ListSnapshots(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := own.ImageInspect(within(t), img.ID); !errdefs.IsNotFound(err) {
		t.Errorf("the image: %v, want it gone", err)
	}
}

// TestListDuringSnapshots lists snapshots again and again while they are taken and removed: no list removes the image of
// one that has no name at that moment.
func TestListDuringSnapshots(t *testing.T) {
	t.Parallel()
	p := open(t, options(t))
	box := create(t, p, sandpit.Spec{Image: busybox})
	ctx, stop := context.WithCancel(within(t))
	var lists sync.WaitGroup
	for range 4 {
		lists.Go(func() {
			for ctx.Err() == nil {
				if _, err := p.ListSnapshots(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("list: %v", err)
				}
			}
		})
	}
	defer lists.Wait()
	defer stop()
	for range 5 {
		saved, err := box.Snapshot(within(t), sandpit.NewSnapshotID())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.RemoveSnapshot(within(t), saved.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForgedSnapshot brings in an image that says to be a snapshot with the machine's
// files, as a file for docker load may. No sandbox gets them, or a network.
func TestForgedSnapshot(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Manager, o.Network = "test-"+string(sandpit.NewID()), "bridge"
	p := open(t, o)
	forge := func(manager string, s sandpit.Snapshot) sandpit.SnapshotID {
		about, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		label := func(name, value string) string { return "LABEL " + name + "=" + strconv.Quote(value) }
		id := sandpit.NewSnapshotID()
		testdocker.Import(t, "sandpit-snapshot:"+string(id), testdocker.BusyboxFiles(t),
			label("dev.sandpit.part", "snapshot"), label("dev.sandpit.manager", manager),
			label("dev.sandpit.snapshot", strings.ReplaceAll(string(about), "THIS", string(id))))
		return id
	}
	machine := sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/etc", Target: "/machine"}}}
	online := sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true}}
	for name, id := range map[string]sandpit.SnapshotID{
		"of another manager":         forge("another", sandpit.Snapshot{ID: "THIS", Spec: machine}),
		"without manager, online":    forge("", sandpit.Snapshot{ID: "THIS", Spec: online}),
		"with the id of another one": forge(o.Manager, sandpit.Snapshot{ID: sandpit.NewSnapshotID(), Spec: machine}),
	} {
		box, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: sandpit.SnapshotImage(id)})
		if sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("%s: %v, want that it is not found", name, err)
		}
		if err == nil {
			_ = box.Destroy(within(t))
		}
		if _, err := p.ReadSnapshotLayer(within(t), id); sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("the layer of one %s: %v", name, err)
		}
	}
}

// TestSnapshotsByTheirImages uses the name of a snapshot's image, which is refused: only the
// SnapshotKeeper knows which owner may use a snapshot.
func TestSnapshotsByTheirImages(t *testing.T) {
	t.Parallel()
	p := open(t, options(t))
	box := create(t, p, sandpit.Spec{Image: busybox})
	saved, err := box.Snapshot(within(t), sandpit.NewSnapshotID())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.RemoveSnapshot(within(t), saved.ID) }()
	for _, prefix := range []string{"sandpit-snapshot:", "docker.io/library/sandpit-snapshot:", "library/sandpit-snapshot:", "sandpit-archive:"} {
		name := prefix + string(saved.ID)
		other, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(name)})
		wantCode(t, err, sandpit.NotFound)
		if err == nil {
			_ = other.Destroy(within(t))
		}
		if there, err := p.HasImage(within(t), name); there || err != nil {
			t.Errorf("%s is there: %t, %v", name, there, err)
		}
	}
}
