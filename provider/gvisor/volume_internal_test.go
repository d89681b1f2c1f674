package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

// nest makes directories in one another.
func nest(t *testing.T, dir string, deep int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range deep {
		if err := unix.Mkdirat(fd, "nested", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "nested", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	_ = unix.Close(fd)
}

// TestCountingIsBounded counts files with several names once, and gives up on what is
// too deep.
func TestCountingIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := &Provider{cfg: Config{VolumeDir: dir}}
	if err := os.MkdirAll(filepath.Join(dir, "v", "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "v", "f"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if err := os.Link(filepath.Join(dir, "v", "f"), filepath.Join(dir, "v", "d", fmt.Sprint(i))); err != nil { //nolint:perfsprint // no need for speed
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/usr", filepath.Join(dir, "v", "link")); err != nil {
		t.Fatal(err)
	}
	if size, err := p.VolumeSize(t.Context(), "v"); err != nil || size < 1<<20 || size > 1<<20+64<<10 {
		t.Errorf("size %d, %v; want a megabyte", size, err)
	}
	nest(t, filepath.Join(dir, "v"), maxVolumeDepth+10)
	if _, err := p.VolumeSize(t.Context(), "v"); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("a very deep tree: %v", err)
	}
	if err := os.Symlink("/usr", filepath.Join(dir, "sly")); err != nil {
		t.Fatal(err)
	}
	if size, err := p.VolumeSize(t.Context(), "sly"); err == nil {
		t.Errorf("a link counts %d bytes", size)
	}
	root, err := beneath.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.RemoveTree(t.Context(), "v"); err != nil { // os.RemoveAll may not come to its end
		t.Error(err)
	}
}

// TestExactPaths opens paths with links in them.
func TestExactPaths(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "real", "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]sandpit.Code{
		"real/sub": "", "link": sandpit.PermissionDenied, "link/sub": sandpit.PermissionDenied, "none": sandpit.NotFound,
	} {
		f, err := openExact(unix.AT_FDCWD, filepath.Join(dir, path))
		if f != nil {
			_ = f.Close()
		}
		if got := sandpit.CodeOf(err); got != want {
			t.Errorf("%s: %v (%q), want %q", path, err, got, want)
		}
	}
}
