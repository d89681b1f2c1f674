package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// opened gives a layer, and counts how often.
func opened(data []byte, times *int) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) {
		*times++
		return io.NopCloser(bytes.NewReader(data)), nil
	}
}

// TestExtendIsMerge compares extended images with what merging the same layers gives.
func TestExtendIsMerge(t *testing.T) {
	t.Parallel()
	below := archiveOf(t,
		dirItem("d", 0o755), file("d/a", "1"), file("d/b", "2"), dirItem("d/sub", 0o755), file("d/sub/deep", "3"), file("f", "4"),
		link(tar.TypeSymlink, "l", "d"), link(tar.TypeLink, "hard", "f"), file("large", string(bytes.Repeat([]byte("large"), 100_000))),
	)
	for name, above := range map[string][]item{
		"nothing": {},
		"changed": {file("new", "n"), file("d/a", "A"), file(".wh.large", ""), file("d/sub/.wh..wh..opq", ""), link(tar.TypeLink, "again", "f")},
		"emptied": {file(".wh..wh..opq", "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "base.tar")
			must(t, os.WriteFile(path, below, 0o600))
			s := newStore(t)
			times := 0
			for range 2 {
				e, err := s.Extend(t.Context(), Extension{Base: sandpit.Image(path), Key: name, Layer: opened(archiveOf(t, above...), &times)}, nil)
				must(t, err)
				want, err := merged(t, defaultLimits, below, archiveOf(t, above...))
				must(t, err)
				if diff := cmp.Diff(readImage(t, want.Name()), readImage(t, s.cache.imagePath(e.ID))); diff != "" {
					t.Errorf("merged and extended:\n%s", diff)
				}
			}
			if times != 1 {
				t.Errorf("made %d times", times)
			}
		})
	}
}

// TestExtendScratch makes an image of a layer alone, once.
func TestExtendScratch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	layer := archiveOf(t, dirItem("d", 0o755), file("d/a", "1"), link(tar.TypeLink, "hard", "d/a"), file("f", "2"), file(".wh.gone", ""))
	times := 0
	for _, key := range []string{"1", "1", "2"} {
		e, err := s.Extend(t.Context(), Extension{Base: Scratch, Key: key, Layer: opened(layer, &times), Config: Config{User: key}}, nil)
		must(t, err)
		want, err := merged(t, defaultLimits, layer)
		must(t, err)
		if diff := cmp.Diff(readImage(t, want.Name()), readImage(t, s.cache.imagePath(e.ID))); diff != "" {
			t.Errorf("merged and extended:\n%s", diff)
		}
		if root := resolved(t, s, sandpit.Image(e.ID)); root.User != key {
			t.Errorf("the user of image %s is %q", key, root.User)
		}
	}
	if times != 2 {
		t.Errorf("made %d times", times)
	}
}

// TestExtendAgain extends an extended image of every awkward kind of file.
func TestExtendAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	awkward(t, dir)
	s := newStore(t)
	base := resolved(t, s, sandpit.Image(dir))
	times := 0
	first, err := s.Extend(t.Context(), Extension{Base: sandpit.Image(dir), Key: "1", Layer: opened(archiveOf(t, file("added", "x")), &times)}, nil)
	must(t, err)
	second, err := s.Extend(t.Context(), Extension{Base: sandpit.Image(first.ID), Key: "2", Layer: opened(archiveOf(t, file(".wh.added", "")), &times)}, nil)
	must(t, err)
	if diff := cmp.Diff(readImage(t, base.Path), readImage(t, s.cache.imagePath(second.ID))); diff != "" {
		t.Errorf("the base, and what was added and removed:\n%s", diff)
	}
}

func TestTemplateNames(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), "x")
	s := newStore(t)
	if _, err := s.Resolve(ctx, "template:one", nil); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("before it is there: %v", err)
	}
	config := Config{Env: map[string]string{"A": "b"}, User: "me"}
	e, err := s.Extend(ctx, Extension{Base: sandpit.Image(dir), Config: config, Template: json.RawMessage(`{"a":1}`), Source: dir}, nil)
	must(t, err)
	for _, bad := range []sandpit.Image{"one", "template:", "template:One", "template:a/b", "template:-a", "template:../x"} {
		if _, err := s.SetTemplate(ctx, bad, e.ID); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("the name %s: %v", bad, err)
		}
	}
	if _, err := s.SetTemplate(ctx, "template:one", cacheKey("nothing")); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("of no image: %v", err)
	}
	named, err := s.SetTemplate(ctx, "template:one", e.ID)
	if err != nil || named.Name != "template:one" || named.Kind != KindTemplate {
		t.Fatalf("%+v, %v", named, err)
	}
	if got := resolved(t, s, "template:one"); !cmp.Equal(got.Config, config) {
		t.Errorf("configuration: %+v", got.Config)
	}
	if data, err := s.Template(ctx, "template:one"); err != nil || string(data) != `{"a":1}` {
		t.Errorf("what was kept with it: %s, %v", data, err)
	}
	if _, err := s.Prune(ctx, PruneOptions{All: true}); err != nil {
		t.Fatal(err)
	}
	if has, err := s.Has("template:one"); err != nil || !has {
		t.Errorf("after pruning: %v, %v", has, err)
	}
	if _, err := s.Import(ctx, dir, "template:two", nil); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("import under such a name: %v", err)
	}
	if _, err := s.Remove(ctx, "template:one"); err != nil {
		t.Fatal(err)
	}
	if has, err := s.Has("template:one"); err != nil || has {
		t.Errorf("after removing: %v, %v", has, err)
	}
}

func TestExtendRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), "x")
	s := newStore(t)
	failed := errors.New("failed")
	_, err := s.Extend(t.Context(), Extension{Base: sandpit.Image(dir), Layer: func(context.Context) (io.ReadCloser, error) { return nil, failed }}, nil)
	if !errors.Is(err, failed) {
		t.Errorf("a layer that fails: %v", err)
	}
	times := 0
	_, err = s.Extend(t.Context(), Extension{Base: sandpit.Image(dir), Layer: opened([]byte("no tar, but longer than one block"), &times)}, nil)
	if sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("no layer: %v", err)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 {
		t.Errorf("left: %+v, %v", list, err)
	}
	if _, err := s.Extend(t.Context(), Extension{Base: sandpit.HostImage}, nil); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("the host's image: %v", err)
	}
}

// FuzzTree reads images that are damaged.
func FuzzTree(f *testing.F) {
	s := newStore(f)
	dir := f.TempDir()
	write(f, filepath.Join(dir, "d/f"), "x")
	must(f, os.Symlink("f", filepath.Join(dir, "d/l")))
	data, err := os.ReadFile(resolved(f, s, sandpit.Image(dir)).Path)
	must(f, err)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "image")
		must(t, os.WriteFile(path, data, 0o600))
		file, err := os.Open(path)
		must(t, err)
		defer file.Close()
		root, _, err := openTree(file, limits{entries: 1000, bytes: 1 << 20, names: 1 << 20, steps: 1000})
		if err == nil && !root.isDir() {
			t.Error("the root is no directory")
		}
	})
}
