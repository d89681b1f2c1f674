package image

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// TestChanged tells which changes make for a new image.
func TestChanged(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	write(t, in("a/file"), "one")
	write(t, in("b"), "two")
	must(t, os.Symlink("b", in("link")))
	seen := map[string]string{}
	resolve := func(step string) string {
		f, err := s.openDir(t.Context(), dir, nil)
		must(t, err)
		must(t, f.Close())
		return f.Name()
	}
	seen[resolve("first")] = "first"
	if _, ok := seen[resolve("again")]; !ok || len(seen) != 1 {
		t.Fatal("an unchanged directory was converted again")
	}
	steps := []struct {
		name string
		do   func() error
	}{
		{"contents", func() error { return os.WriteFile(in("b"), []byte("TWO"), 0o644) }},
		{"mode", func() error { return os.Chmod(in("b"), 0o600) }},
		{"link", func() error { return errors.Join(os.Remove(in("link")), os.Symlink("a", in("link"))) }},
		{"new file", func() error { return os.WriteFile(in("a/new"), nil, 0o644) }},
		{"removed", func() error { return os.Remove(in("a/new")) }},
		{"renamed", func() error { return os.Rename(in("b"), in("c")) }},
		{"same size and time", func() error {
			info, err := os.Stat(in("c"))
			return errors.Join(err, os.WriteFile(in("c"), []byte("now"), 0o644), os.Chtimes(in("c"), info.ModTime(), info.ModTime()))
		}},
		{"new hard link", func() error { return os.Link(in("c"), in("d")) }},
		{"empty directory", func() error { return os.Mkdir(in("e"), 0o755) }},
		{"mode of the top", func() error { return os.Chmod(dir, 0o711) }},
	}
	for _, step := range steps {
		must(t, step.do())
		path := resolve(step.name)
		if before, ok := seen[path]; ok {
			t.Errorf("after %q the image is that after %q", step.name, before)
		}
		seen[path] = step.name
		if got := len(readImage(t, path)); got != len(readTree(t, dir)) {
			t.Errorf("after %q the image has %d files", step.name, got)
		}
	}
}

// TestLeftOut holds what an image never has.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "tree")
	write(t, filepath.Join(parent, "secret"), "secret")
	write(t, filepath.Join(dir, "file"), "x")
	must(t,
		os.Symlink("../secret", filepath.Join(dir, "out")),
		os.Symlink(parent, filepath.Join(dir, "outdir")),
	)
	// Extended attributes must not reach the image: its reader would refuse the
	// file. File systems may not have them; then there is nothing to leave out.
	_ = unix.Setxattr(filepath.Join(dir, "file"), "user.a", []byte("b"), 0)
	sock, err := net.Listen("unix", filepath.Join(dir, "socket")) //nolint:noctx // no client connects
	must(t, err)
	defer sock.Close()
	if os.Geteuid() == 0 {
		must(t, unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, 1<<8|3))
		must(t, unix.Mknod(filepath.Join(dir, "whiteout"), unix.S_IFCHR|0o666, 0))
	}
	s, err := Open(filepath.Join(dir, "cache"), Options{}) // in the directory itself
	must(t, err)
	f, err := s.openDir(t.Context(), dir, nil)
	must(t, err)
	defer f.Close()
	got := readImage(t, f.Name())
	for _, name := range []string{".", "file", "out", "outdir", "cache"} {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
		delete(got, name)
	}
	if len(got) != 0 {
		t.Errorf("the image has also %v", got)
	}
	again, err := s.openDir(t.Context(), dir, nil)
	must(t, err)
	if again.Name() != f.Name() {
		t.Error("the cache in the directory made for another image")
	}
}

func TestKernelFileSystemsStayEmpty(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	for _, name := range []string{"proc", "data"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	mount := func(kind, name string) {
		if err := unix.Mount(kind, filepath.Join(dir, name), kind, 0, ""); err != nil {
			t.Skip("mount:", err)
		}
		t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, name), unix.MNT_DETACH)) })
	}
	mount("proc", "proc")
	mount("tmpfs", "data")
	write(t, filepath.Join(dir, "data/file"), "on another file system")
	f, err := newStore(t).openDir(t.Context(), dir, nil)
	must(t, err)
	got := readImage(t, f.Name())
	if e, ok := got["data/file"]; !ok || e.Size == 0 || len(got) != 4 {
		t.Errorf("the image has %d files, data/file %v", len(got), e)
	}
}

func TestUnreadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "sub/secret"), "x")
	must(t, os.Chmod(filepath.Join(dir, "sub/secret"), 0))
	s := newStore(t)
	if os.Geteuid() != 0 {
		_, err := s.Resolve(t.Context(), sandpit.Image(dir), nil)
		checkUnreadable(t, err.Error(), sandpit.CodeOf(err), dir)
		return
	}
	// Another process, for ids and rights belong to threads.
	must(t, os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755))
	cache := t.TempDir()
	must(t, os.Chown(cache, 65534, 65534), os.Chmod(filepath.Dir(cache), 0o755))
	self, err := os.Executable()
	must(t, err)
	exe := filepath.Join(t.TempDir(), "image.test")
	must(t, exec.CommandContext(t.Context(), "cp", self, exe).Run(), os.Chmod(filepath.Dir(exe), 0o755))
	cmd := exec.CommandContext(t.Context(), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		exe, "-cache", cache, "-source", dir)
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) || strings.Contains(string(out), "Permission denied\nsetpriv") {
		testengine.Skip(t, "setpriv (Debian: apt-get install util-linux) does not start a program here: %v, %s", err, out)
	}
	checkUnreadable(t, string(out), sandpit.PermissionDenied, dir)
}

func checkUnreadable(t *testing.T, text string, code sandpit.Code, dir string) {
	t.Helper()
	if !strings.Contains(text, filepath.Join(dir, "sub/secret")+" cannot be read") || code != sandpit.PermissionDenied {
		t.Errorf("%s: %q, want one that names the file", code, text)
	}
}

// TestSwapped changes the tree between the look at it and the reading.
func TestSwapped(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "file")
	write(t, secret, "secret")
	for name, swap := range map[string]func(dir string) error{
		"file for a link": func(dir string) error {
			return errors.Join(os.Remove(dir+"/sub/file"), os.Symlink(secret, dir+"/sub/file"))
		},
		"directory for a link": func(dir string) error {
			return errors.Join(os.RemoveAll(dir+"/sub"), os.Symlink(filepath.Dir(secret), dir+"/sub"))
		},
		"file for another": func(dir string) error {
			return errors.Join(os.Remove(dir+"/sub/file"), os.Link(secret, dir+"/sub/file"))
		},
		"grown":   func(dir string) error { return os.WriteFile(dir+"/sub/file", []byte("longer than before"), 0o644) },
		"removed": func(dir string) error { return os.Remove(dir + "/sub/file") },
		"fifo": func(dir string) error {
			return errors.Join(os.Remove(dir+"/sub/file"), unix.Mkfifo(dir+"/sub/file", 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			dir := t.TempDir()
			write(t, dir+"/sub/file", "public")
			root, err := s.walkDir(t.Context(), dir)
			must(t, err, swap(dir))
			_, err = s.builder.makeTree(t.Context(), root, note{}, nil)
			if !errors.Is(err, sandpit.Unavailable) || !strings.Contains(err.Error(), dir+"/sub/file") {
				t.Errorf("got %v, want an error that names the file", err)
			}
			if left, _ := os.ReadDir(s.cache.dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestDirLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 10 {
		write(t, fmt.Sprintf("%s/%d", dir, i), strings.Repeat("x", 100))
	}
	for name, lim := range map[string]limits{
		"entries": {entries: 9, bytes: 1000, names: 1000, steps: 10_000},
		"bytes":   {entries: 10, bytes: 999, names: 1000, steps: 10_000},
		"names":   {entries: 10, bytes: 1000, names: 9, steps: 10_000},
	} {
		s := newStore(t)
		s.builder.limits = lim
		if _, err := s.openDir(t.Context(), dir, nil); !errors.Is(err, sandpit.Exhausted) || sandpit.HintOf(err) == "" {
			t.Errorf("%s: %v, want exhausted", name, err)
		}
	}
	s := newStore(t)
	s.builder.limits = limits{entries: 10, bytes: 1000, names: 10, steps: 10_000}
	if _, err := s.openDir(t.Context(), dir, nil); err != nil {
		t.Errorf("just enough: %v", err)
	}
}

func TestProgressAndCancel(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dir := t.TempDir()
	const size = 5<<20 + 100
	write(t, dir+"/a", strings.Repeat("a", size))
	write(t, dir+"/b", strings.Repeat("b", 100))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.openDir(ctx, dir, func(int64, int64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	var steps []int64
	_, err = s.openDir(t.Context(), dir, func(done, total int64) {
		if total != size+100 || len(steps) > 0 && done < steps[len(steps)-1] {
			t.Errorf("told %d of %d after %v", done, total, steps)
		}
		steps = append(steps, done)
	})
	must(t, err)
	if len(steps) < 5 || steps[len(steps)-1] != size+100 {
		t.Errorf("told %v", steps)
	}
	if _, err = s.openDir(t.Context(), dir, func(int64, int64) { t.Error("told of a finished image") }); err != nil {
		t.Error(err)
	}
}

func BenchmarkDir(b *testing.B) {
	dir := b.TempDir()
	const files, size = 5000, 20_000
	for i := range files {
		write(b, fmt.Sprintf("%s/%d/%d", dir, i/100, i), strings.Repeat("0123456789abcdef", size/16))
	}
	b.Run("cold", func(b *testing.B) {
		b.SetBytes(files * size)
		for b.Loop() {
			s := newStore(b)
			if _, err := s.openDir(b.Context(), dir, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("warm", func(b *testing.B) {
		s := newStore(b)
		for b.Loop() {
			if _, err := s.openDir(b.Context(), dir, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
