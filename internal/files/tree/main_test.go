package tree_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
	"github.com/sandpit-dev/sandpit/internal/files/tree"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// when is a time that nothing has by accident.
var when = time.Date(2021, 3, 4, 5, 6, 7, 123456789, time.UTC)

// member is one member of a stream. Typeflag 0 is a file.
type member struct {
	tar.Header

	body string
}

func file(name, body string) member {
	return member{Header: tar.Header{Name: name, Mode: 0o644, ModTime: when}, body: body}
}

func dir(name string, mode int64) member {
	return member{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, ModTime: when}}
}

func symlink(name, target string) member {
	return member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: when}}
}

func hardLink(name, target string) member {
	return member{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}}
}

// stream writes members as a tar stream, bad ones too.
func stream(tb testing.TB, members ...member) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, m := range members {
		h := m.Header
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		h.Size = int64(len(m.body))
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, m.body); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func openRoot(tb testing.TB, dir string) *beneath.Root {
	tb.Helper()
	root, err := beneath.Open(dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = root.Close() })
	return root
}

func unpack(tb testing.TB, dir string, data []byte, o tree.Options) (tree.Report, error) {
	tb.Helper()
	return tree.Unpack(tb.Context(), bytes.NewReader(data), openRoot(tb, dir), o)
}

func pack(tb testing.TB, dir, name string) []byte {
	tb.Helper()
	var buf bytes.Buffer
	if err := tree.Pack(tb.Context(), &buf, openRoot(tb, dir), name); err != nil {
		tb.Fatalf("Pack(%q): %v", name, err)
	}
	return buf.Bytes()
}

// write makes a file and the directories above it.
func write(tb testing.TB, path, body string, mode fs.FileMode) {
	tb.Helper()
	must(tb, os.MkdirAll(filepath.Dir(path), 0o755))
	must(tb, os.WriteFile(path, []byte(body), 0o600))
	must(tb, os.Chmod(path, mode))
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func read(tb testing.TB, path string) string {
	tb.Helper()
	b, err := os.ReadFile(path)
	must(tb, err)
	return string(b)
}

// snapshot describes all below dir: kind, mode, time, content, and which names
// are one file.
func snapshot(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	all := map[string]string{}
	first := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		s := fmt.Sprintf("%v %v", info.Mode(), info.ModTime().UTC().Format(time.RFC3339Nano))
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s += fmt.Sprintf(" %d %.40q", len(b), strings.TrimLeft(string(b), "\x00"))
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			s += " -> " + to
		}
		if st := stat(info); !info.IsDir() && st.Nlink > 1 {
			if first[st.Ino] == "" {
				first[st.Ino] = rel
			}
			s += " = " + first[st.Ino]
		}
		all[rel] = s
		return nil
	})
	must(tb, err)
	return all
}

func stat(info fs.FileInfo) *syscall.Stat_t {
	st, _ := info.Sys().(*syscall.Stat_t)
	return st
}

func lstat(tb testing.TB, path string) fs.FileInfo {
	tb.Helper()
	info, err := os.Lstat(path)
	must(tb, err)
	return info
}

// same checks that two snapshots are alike.
func same(tb testing.TB, want, got map[string]string) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("the trees differ (-want +got):\n%s", diff)
	}
}
