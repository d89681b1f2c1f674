package atomicfile_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	for _, tc := range []struct {
		content string
		mode    fs.FileMode
		opts    []atomicfile.Option
	}{
		{"first", 0o600, nil},
		{"second", 0o666, nil}, // more than the umask leaves
		{"", 0o400, []atomicfile.Option{atomicfile.NoSync("a test"), atomicfile.Pattern("part-*")}},
	} {
		if err := atomicfile.Write(path, tc.mode, []byte(tc.content), tc.opts...); err != nil {
			t.Fatalf("write %q: %v", tc.content, err)
		}
		check(t, path, tc.content, tc.mode)
	}
}

// check fails unless the directory of path has nothing but that file.
func check(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("the directory has %v (%v), want only %s", entries, err, filepath.Base(path))
	}
	data, err := os.ReadFile(path)
	if err != nil || string(data) != content {
		t.Errorf("content %q (%v), want %q", data, err, content)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != mode {
		t.Errorf("%v (%v), want the mode %v", info, err, mode)
	}
}

func TestWriteFuncFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	if err := atomicfile.Write(path, 0o600, []byte("old")); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("no more")
	err := atomicfile.WriteFunc(path, 0o600, func(w io.Writer) error {
		_, err := io.WriteString(w, "ne")
		return errors.Join(err, failure)
	})
	if !errors.Is(err, failure) {
		t.Errorf("error %v, want that of the function", err)
	}
	check(t, path, "old", 0o600)
}

func TestRenameFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(path, 0o600, []byte("new")); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v (%v), want nothing new", entries, err)
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	if err := atomicfile.Create(path, 0o640, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Create(path, 0o600, []byte("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error %v, want fs.ErrExist", err)
	}
	check(t, path, "first", 0o640)
}

func TestWriteReplacesLink(t *testing.T) {
	t.Parallel()
	path, victim := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(path, 0o640, []byte("new")); err != nil {
		t.Fatal(err)
	}
	check(t, path, "new", 0o640)
	check(t, victim, "old", 0o600)
}

func TestNewStaysOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	f, err := atomicfile.New(path, 0o600, atomicfile.Pattern("*.tmp"))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(f.Name()) != ".tmp" || filepath.Dir(f.Name()) != filepath.Dir(path) {
		t.Errorf("temporary name %s", f.Name())
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before Rename: %v, want no file", err)
	}
	if err := f.Rename(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("later"); err != nil {
		t.Errorf("write after Rename: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Discard(); err != nil {
		t.Errorf("discard after Rename: %v", err)
	}
	check(t, path, "later", 0o600)
}

func TestMissingDirectory(t *testing.T) {
	t.Parallel()
	if err := atomicfile.Write(filepath.Join(t.TempDir(), "no", "a"), 0o600, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want fs.ErrNotExist", err)
	}
}

func TestNoSyncNeedsReason(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	atomicfile.NoSync("")
}
