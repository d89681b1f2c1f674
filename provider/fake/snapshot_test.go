package fake_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// put writes a file of a sandbox.
func put(t *testing.T, w *fake.World, id sandpit.ID, name, text string) {
	t.Helper()
	view, _ := w.Look(id)
	if err := os.WriteFile(filepath.Join(view.Dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func take(t *testing.T, i sandpit.Instance) sandpit.Snapshot {
	t.Helper()
	s, err := i.(sandpit.Snapshotter).Snapshot(t.Context(), sandpit.NewSnapshotID())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// files returns the files of a layer with their text.
func files(t *testing.T, layer io.ReadCloser, err error) map[string]string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	all := make(map[string]string)
	for in := tar.NewReader(layer); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			all[h.Name] = string(text)
		}
	}
}

// TestSnapshotKeeper rolls back, reads layers, and carries a snapshot to another world.
func TestSnapshotKeeper(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	p := open(t, w)
	i, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{Env: map[string]string{"SECRET": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	put(t, w, i.ID(), "a", "one")
	s := take(t, i)
	if s.Spec.Env != nil || s.Sandbox != i.ID() {
		t.Errorf("the snapshot is %+v", s)
	}
	put(t, w, i.ID(), "a", "two")
	put(t, w, i.ID(), "b", "new")
	layer, err := i.(sandpit.LayerReader).ReadLayer(ctx)
	if got := files(t, layer, err); got["a"] != "two" || got["b"] != "new" {
		t.Errorf("the layer has %q", got)
	}
	if err := i.(sandpit.Rollbacker).Rollback(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Guest().ListProcesses(ctx); err != nil {
		t.Errorf("after a rollback: %v", err)
	}
	layer, err = i.(sandpit.LayerReader).ReadLayer(ctx)
	if got := files(t, layer, err); !maps.Equal(got, map[string]string{"a": "one"}) {
		t.Errorf("after a rollback there is %q", got)
	}
	other, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[sandpit.SnapshotID]sandpit.Code{s.ID: sandpit.Invalid, sandpit.NewSnapshotID(): sandpit.NotFound} {
		if err := other.(sandpit.Rollbacker).Rollback(ctx, id); sandpit.CodeOf(err) != want {
			t.Errorf("roll back to %s: %v, want %s", id, err, want)
		}
	}

	var file bytes.Buffer
	if err := p.ExportSnapshot(ctx, s.ID, &file); err != nil {
		t.Fatal(err)
	}
	away := open(t, newWorld(t))
	id := sandpit.NewSnapshotID()
	if _, err := away.ImportSnapshot(ctx, id, bytes.NewReader(file.Bytes())); err != nil {
		t.Fatal(err)
	}
	if _, err := away.ImportSnapshot(ctx, id, bytes.NewReader(file.Bytes())); sandpit.CodeOf(err) != sandpit.AlreadyExists {
		t.Errorf("import twice: %v", err)
	}
	layer, err = away.ReadSnapshotLayer(ctx, id)
	if got := files(t, layer, err); !maps.Equal(got, map[string]string{"a": "one"}) {
		t.Errorf("what was imported has %q", got)
	}
	if _, err := away.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: sandpit.SnapshotImage(id)}); err != nil {
		t.Error(err)
	}
	for cut := 0; cut < file.Len(); cut += 100 {
		if _, err := away.ImportSnapshot(ctx, sandpit.NewSnapshotID(), bytes.NewReader(file.Bytes()[:cut])); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("cut after %d of %d bytes: %v", cut, file.Len(), err)
		}
	}
	if left := away.World().Snapshots(); !slices.Equal(left, []sandpit.SnapshotID{id}) {
		t.Errorf("there is %q", left)
	}
	for range 2 {
		if err := p.RemoveSnapshot(ctx, s.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.ReadSnapshotLayer(ctx, s.ID); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("read what was removed: %v", err)
	}
	if list, err := p.ListSnapshots(ctx); err != nil || len(list) != 0 {
		t.Errorf("there are %+v, %v", list, err)
	}
}

// TestImportHostile sends what would leave its directory. Nothing of it stays.
func TestImportHostile(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]*tar.Header{
		"above":   {Name: "files/../../x", Typeflag: tar.TypeReg},
		"beside":  {Name: "other", Typeflag: tar.TypeReg},
		"a node":  {Name: "files/null", Typeflag: tar.TypeChar},
		"by link": {Name: "files/out/x", Typeflag: tar.TypeReg},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var file bytes.Buffer
			out := tar.NewWriter(&file)
			info := []byte(`{"id":"x","spec":{}}`)
			err := errors.Join(
				out.WriteHeader(&tar.Header{Name: "snapshot.json", Size: int64(len(info))}), second(out.Write(info)),
				out.WriteHeader(&tar.Header{Name: "files/out", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}),
				out.WriteHeader(h), out.Close())
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(file.Bytes())
			file.Write(sum[:])
			if _, err := open(t, w).ImportSnapshot(t.Context(), sandpit.NewSnapshotID(), &file); sandpit.CodeOf(err) != sandpit.Invalid {
				t.Errorf("import: %v", err)
			}
			if left := w.Snapshots(); !slices.Equal(left, nil) {
				t.Errorf("there is %q", left)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }
