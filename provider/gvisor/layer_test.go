package gvisor_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

func layerOf(tb testing.TB, box sandpit.Instance) []byte {
	tb.Helper()
	r, err := box.(sandpit.LayerReader).ReadLayer(tb.Context())
	if err != nil {
		tb.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
	data, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		tb.Fatal(err)
	}
	return data
}

// entriesOf reads a tar stream.
func entriesOf(tb testing.TB, data []byte) map[string]*tar.Header {
	tb.Helper()
	all := map[string]*tar.Header{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			tb.Fatal(err)
		}
		all[h.Name] = h
	}
}

// layerKinds changes and removes some of an image, in each way that a layer can tell.
const layerKinds = manyKinds + `
$b rm device sparse
$b truncate -s 10M holes; echo middle | $b dd of=holes bs=1M seek=5 conv=notrunc 2>/dev/null
$b mkdir /etc/gone; echo > /etc/gone/x; $b rm -r /etc/gone
$b chmod 750 /bin; $b ln /bin/busybox /bin/again
for f in one two three; do echo $f > /opt/$f; $b mv /opt/$f /opt/new/$f; done
`

// layerListing tells of all files what a layer keeps: sizes of directories and numbers of
// inodes are the file system's own.
const layerListing = `b=busybox; cd /
list() { $b find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./.sandpit -o -path ./tmp -o -path ./workspace/.keep \) -prune -o "$@" -print0 | $b sort -z; }
list -type d | $b xargs -0 $b stat -c '%n|%F|%a|%u|%g'
list ! -type d | $b xargs -0 $b stat -c '%n|%F|%a|%u|%g|%s|%h'
list -type l | $b xargs -0 $b ls -l | $b sed 's/.* \.\//.\//'
list -type f | $b xargs -0 $b sha256sum
$b stat -c %Y workspace/tree/large
`

// TestLayerMakesAnImage makes an image of what a sandbox has changed, and has a sandbox
// of that image compared with the first one, which continues.
func TestLayerMakesAnImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var images *image.Store
	p := newProviderWith(t, dir, func(c *gvisor.Config) { images = c.Images })
	base := etcImage(t)
	for name, spec := range map[string]sandpit.Spec{
		"in memory": {Image: base},
		"on disk":   {Image: base, Resources: sandpit.Resources{Disk: 4 << 30}},
	} {
		t.Run(name, func(t *testing.T) {
			box := create(t, p, spec)
			output(t, box, layerKinds)
			before := output(t, box, layerListing)
			running, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sh", "-c", "read x; echo went on $x"}, Stdin: strings.NewReader("y\n")})
			if err != nil {
				t.Fatal(err)
			}
			e, err := images.Extend(t.Context(), image.Extension{
				Base: base, Key: name, Layer: box.(sandpit.LayerReader).ReadLayer,
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if status, err := running.Wait(t.Context()); err != nil || status.Code != 0 {
				t.Errorf("a program that ran meanwhile: %v, %v", status, err)
			}
			if again := output(t, box, layerListing); again != before {
				t.Errorf("the sandbox is another one:\n%s", cmp.Diff(before, again))
			}
			copied := create(t, p, sandpit.Spec{Image: sandpit.Image(e.ID)})
			if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(output(t, copied, layerListing), "\n")); diff != "" {
				t.Errorf("sandbox and image:\n%s", diff)
			}
			for _, b := range []sandpit.Instance{box, copied} {
				if err := b.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestLayerIsRead has other programs read a layer.
func TestLayerIsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: etcImage(t)})
	output(t, box, manyKinds)
	data := layerOf(t, box)
	got := entriesOf(t, data)
	for name, kind := range map[string]byte{
		"etc/.wh.group": tar.TypeReg, "etc/passwd/": tar.TypeDir, "etc/passwd/file": tar.TypeReg,
		"workspace/tree/large": 0, "workspace/tree/hard": 0, "workspace/tree/link": tar.TypeSymlink,
		"workspace/tree/device": tar.TypeChar, "workspace/tree/fifo": tar.TypeFifo,
	} {
		if h := got[name]; h == nil || kind != 0 && h.Typeflag != kind {
			t.Errorf("%s: %+v", name, h)
		}
	}
	for name := range got {
		if strings.HasPrefix(name, ".sandpit") || strings.HasPrefix(name, "bin/") {
			t.Errorf("%s is in the layer", name)
		}
	}
	if h := got["workspace/tree/sparse"]; h == nil || h.Size != 1<<40 {
		t.Errorf("the sparse file: %+v", h)
	}
	if len(data) > 8<<20 {
		t.Errorf("the layer has %d bytes: holes were written", len(data))
	}
	expectUnpacked(t, data)
}

// expectUnpacked has tar unpack the file with holes.
func expectUnpacked(t *testing.T, data []byte) {
	t.Helper()
	to := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "tar", "-xf", "-", "-C", to, "--no-same-owner", "workspace/tree/sparse", "workspace/tree/random")
	cmd.Stdin = bytes.NewReader(data)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	f, err := os.Open(filepath.Join(to, "workspace/tree/sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	end := make([]byte, 4)
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Size != 1<<40 || st.Blocks > 1<<11 {
		t.Errorf("unpacked: %d bytes in %d blocks, %v", st.Size, st.Blocks, err)
	}
	if _, err := f.ReadAt(end, 1000<<20); err != nil || string(end) != "end\n" {
		t.Errorf("behind the hole: %q, %v", end, err)
	}
}

// TestLayerKeepsAttributes sets an attribute, which an image cannot have and a layer can.
func TestLayerKeepsAttributes(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Image: sandpit.HostImage})
	output(t, box, `exec python3 -c '
import os
open("/workspace/f", "w").close()
os.setxattr("/workspace/f", "user.colour", "blue".encode())'`)
	h := entriesOf(t, layerOf(t, box))["workspace/f"]
	if h == nil || h.PAXRecords["SCHILY.xattr.user.colour"] != "blue" {
		t.Errorf("%+v", h)
	}
}

// TestLayerRefusals asks for layers that there are not.
func TestLayerRefusals(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	reader := box.(sandpit.LayerReader)

	output(t, box, "echo x > /.wh.x")
	r, err := reader.ReadLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("a name that is a mark: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if r, err = reader.ReadLayer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil { // nothing was read of it
		t.Error(err)
	}
	if err := box.(sandpit.Pauser).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err = reader.ReadLayer(t.Context()); err != nil {
		t.Errorf("of a paused one: %v", err)
	} else if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := box.(sandpit.Pauser).Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := reader.ReadLayer(canceled); sandpit.CodeOf(err) != sandpit.Canceled {
		t.Errorf("without a waiting caller: %v", err)
	}
	output(t, box, "true")
	stopOf(t, box)
	if _, err := reader.ReadLayer(t.Context()); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("of a stopped one: %v", err)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.ReadLayer(t.Context()); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("of one that is gone: %v", err)
	}
}
