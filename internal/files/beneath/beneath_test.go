package beneath_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
	"github.com/sandpit-dev/sandpit/internal/testing/testuser"
)

// world returns a directory with "in", which is opened, and "out", which nothing
// may reach.
func world(t *testing.T) (root *beneath.Root, dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, d := range []string{"in/a/b", "out/sub"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"in/file", "in/a/file", "out/secret", "out/sub/secret"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(f), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"in/up": "../out", "in/abs": filepath.Join(dir, "out"), "in/a/chain": "../up", "in/file-link": "../out/secret",
		"in/inside": "a/b/..", "in/loop": "loop2", "in/loop2": "loop", "in/root": "/", "in/dots": "a/../../out",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := beneath.Open(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	})
	return root, dir
}

// everything calls every method with a name, and returns the errors.
func everything(r *beneath.Root, name string) map[string]error {
	errs := map[string]error{}
	if f, err := r.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644); err == nil {
		errs["open"] = f.Close()
	} else {
		errs["open"] = err
	}
	if d, err := r.OpenDir(name); err == nil {
		errs["open directory"] = d.Close()
	} else {
		errs["open directory"] = err
	}
	if below, err := r.OpenRoot(name); err == nil {
		errs["open root"] = below.Close()
	} else {
		errs["open root"] = err
	}
	_, errs["lstat"] = r.Lstat(name)
	_, errs["readlink"] = r.Readlink(name)
	errs["mkdir"] = r.Mkdir(name, 0o755)
	errs["chmod"] = r.Chmod(name, 0o700)
	errs["chown"] = r.Lchown(name, os.Getuid(), os.Getgid())
	errs["rename"] = r.Rename(name, r, "stolen")
	errs["rename to"] = r.Rename("file", r, name)
	errs["remove"] = r.Remove(name)
	errs["remove all"] = r.RemoveAll(name)
	_, errs["read names"] = r.ReadNames(name, 10)
	return errs
}

func TestNothingLeadsOut(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"../out/secret", "a/../../out/secret", "up/secret", "abs/secret", "a/chain/secret", "dots/secret", "root/etc/passwd",
		"up/sub/secret", "up/new", "loop/x", "..", "../in/../out", "/etc/passwd", "", "a\x00b", "missing/../../out/secret",
	} {
		root, dir := world(t)
		for what, err := range everything(root, name) {
			if err == nil && (what != "remove all" || !strings.HasPrefix(name, "missing")) {
				t.Errorf("%s %q went through", what, name)
			}
		}
		untouched(t, dir)
	}
}

func untouched(t *testing.T, dir string) {
	t.Helper()
	for _, f := range []string{"out/secret", "out/sub/secret"} {
		if data, err := os.ReadFile(filepath.Join(dir, f)); err != nil || string(data) != f {
			t.Errorf("outside has changed: %s: %q, %v", f, data, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "out")); err != nil || len(entries) != 2 {
		t.Errorf("outside has changed: %v, %v", entries, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "out", "secret")); err != nil || info.Mode() != 0o644 {
		t.Errorf("outside has changed: %v, %v", info, err)
	}
}

// TestLastLinkStays: the last element is what a name means, not what it leads to.
func TestLastLinkStays(t *testing.T) {
	t.Parallel()
	root, dir := world(t)
	if _, err := root.OpenFile("file-link", os.O_RDWR, 0); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("open: %v", err)
	}
	if _, err := root.OpenDir("up"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("open a directory: %v", err)
	}
	if _, err := root.OpenRoot("up"); !errors.Is(err, beneath.ErrEscapes) {
		t.Errorf("open a root: %v", err)
	}
	if err := root.Chmod("file-link", 0o777); err == nil {
		t.Error("chmod of a link went through")
	}
	info, err := root.Lstat("up")
	if err != nil || info.Mode()&fs.ModeSymlink == 0 || info.Name() != "up" {
		t.Errorf("lstat: %v, %v", info, err)
	}
	if err := root.RemoveAll("up"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "in/up")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link is still there: %v", err)
	}
	untouched(t, dir)
}

func TestInside(t *testing.T) {
	t.Parallel()
	root, dir := world(t)
	if f, err := root.OpenFile("inside/file", os.O_RDONLY, 0); err != nil {
		t.Errorf("through a link inside: %v", err)
	} else if err := f.Close(); err != nil {
		t.Error(err)
	}
	a, err := root.OpenRoot("inside")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	names, err := a.ReadNames(".", 10)
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"b", "chain", "file"}) {
		t.Errorf("got %q, %v", names, err)
	}
	if err := root.Rename("file", a, "b/moved"); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "in/a/b/moved")); err != nil || string(data) != "in/file" {
		t.Errorf("%q, %v", data, err)
	}
	if err := root.Mkdir("new", 0o755); err != nil {
		t.Error(err)
	}
	if err := root.RemoveAll("a"); err != nil {
		t.Error(err)
	}
	if err := root.RemoveAll("a"); err != nil {
		t.Errorf("what is not there: %v", err)
	}
	if err := root.RemoveAll("."); err == nil {
		t.Error("the directory itself was removed")
	}
	if _, err := root.Lstat("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	untouched(t, dir)
}

// TestInfo compares with what os says.
func TestInfo(t *testing.T) {
	t.Parallel()
	root, dir := world(t)
	if err := os.Chmod(filepath.Join(dir, "in/a"), 0o751|fs.ModeSticky|fs.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "in/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "file", "up", "pipe", "."} {
		got, err := root.Lstat(name)
		want, err2 := os.Lstat(filepath.Join(dir, "in", name))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if got.Mode() != want.Mode() || got.Size() != want.Size() || !got.ModTime().Equal(want.ModTime()) || got.IsDir() != want.IsDir() {
			t.Errorf("%s: got %v %d %v, want %v %d %v", name, got.Mode(), got.Size(), got.ModTime(), want.Mode(), want.Size(), want.ModTime())
		}
		ours, theirs := got.Sys().(*syscall.Stat_t), want.Sys().(*syscall.Stat_t)
		if ours.Ino != theirs.Ino || ours.Uid != theirs.Uid || ours.Dev != theirs.Dev {
			t.Errorf("%s: got %+v, want %+v", name, ours, theirs)
		}
	}
}

// TestExchange exchanges a directory for a link to outside while it is used.
func TestExchange(t *testing.T) {
	t.Parallel()
	root, dir := world(t)
	name, away := filepath.Join(dir, "in/a"), filepath.Join(dir, "in/away")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(name, away)
			_ = os.Symlink("../out", name)
			_ = os.Remove(name)
			_ = os.Rename(away, name)
		}
	}()
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		for _, n := range []string{"a/secret", "a/sub/secret"} {
			if f, err := root.OpenFile(n, os.O_RDONLY, 0); err == nil {
				t.Error("opened a file outside")
				_ = f.Close()
			}
			_ = root.RemoveAll(n)
			_ = root.Chmod(n, 0o777)
		}
		_ = root.Mkdir("a/sub/new", 0o755)
	}
	close(stop)
	<-stopped
	untouched(t, dir)
}

func FuzzName(f *testing.F) {
	testuser.Drop(f)
	for _, name := range []string{"a/b", "up/secret", "inside/../up/secret", "a//b/./..", "dots/../secret"} {
		f.Add(name)
	}
	dir := f.TempDir()
	for _, d := range []string{"in/a", "out"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "out/secret"), nil, 0o600); err != nil {
		f.Fatal(err)
	}
	for link, target := range map[string]string{"in/up": "../out", "in/inside": "a", "in/dots": "a/../../out"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			f.Fatal(err)
		}
	}
	root, err := beneath.Open(filepath.Join(dir, "in"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = root.Close() })
	f.Fuzz(func(t *testing.T, name string) {
		if opened, err := root.OpenFile(name, os.O_RDONLY, 0); err == nil {
			defer opened.Close()
			if filepath.Base(name) == "secret" {
				t.Errorf("%q was opened", name)
			}
		}
	})
}
