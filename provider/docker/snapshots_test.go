package docker_test

import (
	"archive/tar"
	"errors"
	"io"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testdocker"
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
