package tree_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/tree"
)

// everything fills dir with one of each.
func everything(tb testing.TB, dir string) {
	tb.Helper()
	at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	must(tb, os.MkdirAll(at("empty", "emptier"), 0o755))
	write(tb, at("plain"), "hello\n", 0o644)
	write(tb, at("nothing"), "", 0o644)
	write(tb, at("private"), "p", 0o600)
	write(tb, at("program"), "#!/bin/sh\n", 0o755)
	write(tb, at("everyone"), "all", 0o777)
	write(tb, at("a", "b", "c"), "deep", 0o444)
	write(tb, at(strings.Repeat("n", 255)), "long part", 0o644)
	write(tb, at(strings.Repeat("d", 200), strings.Repeat("e", 200), strings.Repeat("f", 200)), "long name", 0o644)
	write(tb, at("ünïcode 漢字 🏖"), "non-ASCII", 0o644)
	write(tb, at("bytes\xff\xfe\nline"), "not even UTF-8", 0o644)
	write(tb, at(" leading space"), "", 0o644)
	write(tb, at("a", "first"), "one file", 0o640)
	must(tb, os.Link(at("a", "first"), at("second")))
	must(tb, os.Link(at("a", "first"), at("empty", "third")))
	must(tb, os.Symlink("plain", at("link")))
	must(tb, os.Symlink("../plain", at("a", "up")))
	must(tb, os.Symlink("no/such", at("dangling")))
	must(tb, os.Symlink(strings.Repeat("x/", 300)+"y", at("long link")))
	write(tb, at("locked", "inside"), "in a directory that is not writable", 0o400)
	must(tb, os.Chmod(at("locked"), 0o555))
	tb.Cleanup(func() { _ = os.Chmod(at("locked"), 0o700) })
	big := make([]byte, 3<<20+17)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	write(tb, at("big"), string(big), 0o644)
	holes(tb, at("holes"))
	deep := at("deep" + strings.Repeat("/d", 300))
	must(tb, os.MkdirAll(deep, 0o755))
	write(tb, filepath.Join(deep, "bottom"), "300 levels", 0o644)
	age(tb, dir)
}

// holes makes a file with data in the middle only.
func holes(tb testing.TB, path string) {
	tb.Helper()
	f, err := os.Create(path)
	must(tb, err)
	_, err = f.WriteAt([]byte("island"), 5<<20)
	must(tb, err)
	must(tb, f.Truncate(12<<20+5))
	must(tb, f.Close())
}

// age gives everything but links a time of its own, what is inside first.
func age(tb testing.TB, dir string) {
	tb.Helper()
	var paths []string
	must(tb, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSymlink == 0 {
			paths = append(paths, path)
		}
		return err
	}))
	for i, path := range slices.Backward(paths) {
		t := when.AddDate(0, 0, i).Add(1) // nanoseconds count
		must(tb, os.Chtimes(path, t, t))
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	everything(t, from)
	must(t, os.Chmod(from, 0o750))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(to, "locked"), 0o700) })
	report, err := unpack(t, to, pack(t, from, "."), tree.Options{})
	must(t, err)
	want := snapshot(t, from)
	same(t, want, snapshot(t, to))
	if got := 1 + report.Dirs + report.Files + report.Links; got != len(want) || report.Skipped != nil {
		t.Errorf("report %+v, want %d in all and nothing skipped", report, len(want))
	}
	if used := stat(lstat(t, filepath.Join(to, "holes"))).Blocks * 512; used > 1<<20 {
		t.Errorf("a file with holes takes %d bytes of disk", used)
	}
	// Over itself, with unwritable directories in the way.
	if _, err := unpack(t, to, pack(t, from, "."), tree.Options{}); err != nil {
		t.Fatalf("the same again: %v", err)
	}
	same(t, want, snapshot(t, to))
}

func TestPackIsDeterministic(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	everything(t, from)
	if !bytes.Equal(pack(t, from, "."), pack(t, from, ".")) {
		t.Error("two streams of one tree differ")
	}
}

// names returns the members of a stream as "kind name".
func names(t *testing.T, data []byte) (all []string) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			t.Errorf("member %q tells its owner", h.Name)
		}
		all = append(all, fmt.Sprintf("%c %s", h.Typeflag, h.Name))
	}
}

func TestPackNames(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	write(t, filepath.Join(top, "d", "sub", "f"), "x", 0o644)
	write(t, filepath.Join(top, "d", "a"), "x", 0o644)
	must(t, os.Symlink("d", filepath.Join(top, "l")))
	must(t, syscall.Mkfifo(filepath.Join(top, "d", "fifo"), 0o644))
	// By a relative way: a socket's path must be short.
	ln, err := net.Listen("unix", socketPath(t, filepath.Join(top, "d"))) //nolint:noctx // closed at once
	must(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	for name, want := range map[string][]string{
		".":           {"5 ./", "5 d/", "0 d/a", "5 d/sub/", "0 d/sub/f", "2 l"},
		"d":           {"5 ./", "0 a", "5 sub/", "0 sub/f"},
		"l/sub":       {"5 ./", "0 f"},
		"d/sub/f":     {"0 f"},
		"l/sub/../a/": {"0 a"}, // cleaned by the words
		"l/sub/f":     {"0 f"},
		"l":           {"2 l"},
	} {
		got := names(t, pack(t, top, name))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Pack(%q) (-want +got):\n%s", name, diff)
		}
	}
}

// socketPath names a socket in dir by a path that is short enough.
func socketPath(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return fmt.Sprintf("/proc/self/fd/%d/s", f.Fd())
}

func TestPackErrors(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	write(t, filepath.Join(top, "f"), "x", 0o644)
	must(t, syscall.Mkfifo(filepath.Join(top, "fifo"), 0o644))
	must(t, os.Symlink("/etc", filepath.Join(top, "out")))
	for name, want := range map[string]sandpit.Code{
		"missing":    sandpit.NotFound,
		"missing/f":  sandpit.NotFound,
		"f/below":    sandpit.Invalid,
		"out/passwd": sandpit.Invalid,
		"../x":       sandpit.Invalid,
		"/etc":       sandpit.Invalid,
		"":           sandpit.Invalid,
		"fifo":       sandpit.NotFound,
	} {
		err := tree.Pack(t.Context(), io.Discard, openRoot(t, top), name)
		if got := sandpit.CodeOf(err); got != want {
			t.Errorf("Pack(%q): %v (%s), want %s", name, err, got, want)
		}
	}
}

func TestPackUnreadable(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root can read everything")
	}
	top := t.TempDir()
	write(t, filepath.Join(top, "secret"), "x", 0)
	err := tree.Pack(t.Context(), io.Discard, openRoot(t, top), ".")
	if sandpit.CodeOf(err) != sandpit.PermissionDenied || !strings.Contains(err.Error(), "secret") {
		t.Errorf("Pack with an unreadable file: %v", err)
	}
}

// hooked calls hook before each write.
type hooked struct {
	bytes.Buffer

	hook func(written int)
}

func (h *hooked) Write(p []byte) (int, error) {
	h.hook(h.Len())
	return h.Buffer.Write(p)
}

// TestPackChangingFiles changes files while they are packed.
func TestPackChangingFiles(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	const size = 4 << 20
	for _, name := range []string{"grows", "shrinks", "zz-vanishes", "zz-turns"} {
		write(t, filepath.Join(from, name), strings.Repeat("x", size), 0o644)
	}
	must(t, os.MkdirAll(filepath.Join(from, "zz-removed", "sub"), 0o755))
	at := func(name string) string { return filepath.Join(from, name) }
	step := 0
	w := &hooked{hook: func(written int) {
		switch {
		case step == 0 && written > size/2:
			step++
			f, err := os.OpenFile(at("grows"), os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteString("more")
			must(t, err)
			must(t, f.Close())
		case step == 1 && written > size+size/2:
			step++
			must(t, os.Truncate(at("shrinks"), 1<<20))
			must(t, os.Remove(at("zz-vanishes")))
			must(t, os.RemoveAll(at("zz-removed")))
			must(t, os.Remove(at("zz-turns")))
			must(t, os.Symlink("grows", at("zz-turns")))
		}
	}}
	must(t, tree.Pack(t.Context(), w, openRoot(t, from), "."))
	_, err := unpack(t, to, w.Bytes(), tree.Options{})
	must(t, err)
	if got := read(t, filepath.Join(to, "grows")); got != strings.Repeat("x", size) {
		t.Errorf("grows: %d bytes", len(got))
	}
	got := read(t, filepath.Join(to, "shrinks"))
	if rest := strings.TrimLeft(got, "x"); len(got) != size || len(rest) == 0 || strings.Trim(rest, "\x00") != "" {
		t.Errorf("shrinks: %d bytes, %d after the content", len(got), len(rest))
	}
	if to, err := os.Readlink(filepath.Join(to, "zz-turns")); to != "grows" {
		t.Errorf("zz-turns: %q, %v, want a link", to, err)
	}
	for _, name := range []string{"zz-vanishes", "zz-removed"} {
		if _, err := os.Lstat(filepath.Join(to, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, want it left out", name, err)
		}
	}
}

func TestPackTooDeep(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(top, strings.Repeat("d/", 512), "x"), 0o755))
	err := tree.Pack(t.Context(), io.Discard, openRoot(t, top), ".")
	if sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("513 levels: %v, want Invalid", err)
	}
}

func TestPackTooLongName(t *testing.T) {
	t.Parallel()
	top := openRoot(t, t.TempDir())
	for name := "."; len(name) < 4300; name = filepath.Join(name, strings.Repeat("n", 250)) {
		if name != "." {
			must(t, top.Mkdir(name, 0o755))
		}
	}
	err := tree.Pack(t.Context(), io.Discard, top, ".")
	if sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("a name of more than 4095 bytes: %v, want Invalid", err)
	}
}

func TestSingleFile(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	write(t, filepath.Join(from, "a", "one"), "single", 0o751)
	report, err := unpack(t, to, pack(t, from, "a/one"), tree.Options{})
	must(t, err)
	if diff := cmp.Diff(tree.Report{Files: 1, Bytes: 6}, report); diff != "" {
		t.Error(diff)
	}
	if got := read(t, filepath.Join(to, "one")); got != "single" || lstat(t, filepath.Join(to, "one")).Mode() != 0o751 {
		t.Errorf("content %q, mode %v", got, lstat(t, filepath.Join(to, "one")).Mode())
	}
}
