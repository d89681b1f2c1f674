package uploads

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnpackTogether unpacks archives in one directory, where later files replace earlier ones.
func TestUnpackTogether(t *testing.T) {
	t.Parallel()
	u := New(Options{Dir: t.TempDir()})
	hashes := []string{strings.Repeat("a", 32), strings.Repeat("b", 32)}
	for hash, archive := range map[string][]byte{
		hashes[0]: packed(t, tar.Header{Name: "dir/", Typeflag: tar.TypeDir}, tar.Header{Name: "dir/file"}, tar.Header{Name: "one.txt", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}),
		hashes[1]: packed(t, tar.Header{Name: "dir/", Typeflag: tar.TypeDir}, tar.Header{Name: "dir/file"}, tar.Header{Name: "one.txt"}),
	} {
		if err := u.storeArchive(Name{"ann", hash}, bytes.NewReader(archive), int64(len(archive))); err != nil {
			t.Fatal(err)
		}
	}
	b, err := u.OpenFiles("ann")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Remove()
	if err := b.UnpackTogether(t.Context(), hashes); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dir/file", "one.txt"} {
		if text, err := os.ReadFile(filepath.Join(b.Dir(), name)); err != nil || string(text) != "text" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}
