package beneath

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMakeAccessibleFollowsNoLinks puts a link where a directory was, as a sandbox may while its
// files are removed: what the link names keeps its mode.
func TestMakeAccessibleFollowsNoLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "other"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("other", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := makeAccessible(root.FD(), "link"); err == nil {
		t.Error("a link is unlocked")
	}
	if fd, err := openClosed(root.FD(), "link"); err == nil {
		t.Error("a link is opened")
		_ = unix.Close(fd)
	}
	info, err := os.Stat(filepath.Join(dir, "other"))
	if err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("what the link names: %v, %v", info, err)
	}
}
