package beneath_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

// TestRemoveTree removes what a sandbox may leave to make that hard. A directory that
// a link names stays.
func TestRemoveTree(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(dir, "tree")
	for _, sub := range []string{"a/b/c", "closed/inner", ".removed-1/x", ".removed-2"} {
		if err := os.MkdirAll(filepath.Join(top, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"f", "a/f", "a/b/f", "closed/inner/f"} {
		if err := os.WriteFile(filepath.Join(top, name), []byte("x"), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"link", "a/link", "a/b/c/link"} {
		if err := os.Symlink(outside, filepath.Join(top, name)); err != nil {
			t.Fatal(err)
		}
	}
	nest(t, filepath.Join(top, "a"), 3000) // longer than a path can be
	for _, name := range []string{"closed/inner", "closed", "a/b", ""} {
		if err := os.Chmod(filepath.Join(top, name), 0o000); err != nil {
			t.Fatal(err)
		}
	}
	root, err := beneath.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for range 2 { // the second time nothing is there
		if err := root.RemoveTree(t.Context(), "tree"); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "f")); err != nil {
		t.Errorf("outside: %v", err)
	}
}

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

func TestRemoveTreeIsGivenUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 10 {
		if err := os.MkdirAll(filepath.Join(dir, "tree", fmt.Sprint(i), "d"), 0o700); err != nil { //nolint:perfsprint // no need for speed
			t.Fatal(err)
		}
	}
	root, err := beneath.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := root.RemoveTree(ctx, "tree"); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if err := root.RemoveTree(t.Context(), "tree"); err != nil {
		t.Error(err)
	}
}
