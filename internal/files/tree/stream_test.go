package tree_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/tree"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	data := stream(t, dir("./", 0o755), file("a", "12345"), file("b", "12345"))
	for name, tc := range map[string]struct {
		o    tree.Options
		want sandpit.Code
	}{
		"enough bytes":     {tree.Options{MaxBytes: 10}, ""},
		"too few bytes":    {tree.Options{MaxBytes: 9}, sandpit.Exhausted},
		"enough entries":   {tree.Options{MaxEntries: 3}, ""},
		"too few entries":  {tree.Options{MaxEntries: 2}, sandpit.Exhausted},
		"no bounds at all": {tree.Options{}, ""},
	} {
		target := t.TempDir()
		report, err := unpack(t, target, data, tc.o)
		if got := sandpit.CodeOf(err); got != tc.want {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if _, err := os.Stat(filepath.Join(target, "b")); (err == nil) != (tc.want == "") || report.Files < 1 {
			t.Errorf("%s: b: %v, report %+v", name, err, report)
		}
	}
}

// sparse is a GNU sparse member (version 1.0) of the given size with no data.
func sparse(t *testing.T, size string) []byte {
	t.Helper()
	m := file("GNUSparseFile.0/holes", "0\n"+strings.Repeat("\x00", 510))
	m.PAXRecords = map[string]string{
		"GNU.sparsE.major": "1", "GNU.sparsE.minor": "0", "GNU.sparsE.name": "holes", "GNU.sparsE.realsize": size,
	}
	// The writer refuses to write sparse files, so they get their name later.
	return bytes.ReplaceAll(stream(t, m, file("after", "x")), []byte("GNU.sparsE"), []byte("GNU.sparse"))
}

func TestSparse(t *testing.T) {
	t.Parallel()
	target := t.TempDir()
	report, err := unpack(t, target, sparse(t, "104857600"), tree.Options{MaxBytes: 200 << 20})
	must(t, err)
	info := lstat(t, filepath.Join(target, "holes"))
	if info.Size() != 100<<20 || stat(info).Blocks*512 > 1<<20 || report.Bytes != 100<<20+1 {
		t.Errorf("%d bytes, %d blocks, report %+v", info.Size(), stat(info).Blocks, report)
	}
	for _, size := range []string{"104857600", "9223372036854775807"} {
		_, err = unpack(t, target, sparse(t, size), tree.Options{MaxBytes: 100<<20 - 1})
		if sandpit.CodeOf(err) != sandpit.Exhausted {
			t.Errorf("a sparse file of %s bytes: %v, want Exhausted", size, err)
		}
	}
	// Without a bound, it ends with the context.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = tree.Unpack(ctx, bytes.NewReader(sparse(t, "9223372036854775807")), openRoot(t, t.TempDir()), tree.Options{})
	if err == nil {
		t.Error("an endless sparse file was unpacked")
	}
}

func TestTruncated(t *testing.T) {
	t.Parallel()
	whole := stream(t, dir("./", 0o755), dir("d", 0o700), file("d/f", strings.Repeat("x", 3000)), file("g", "y"))
	for cut := 0; cut < len(whole); cut += 256 {
		target := t.TempDir()
		_, err := unpack(t, target, whole[:cut], tree.Options{})
		if sandpit.CodeOf(err) != sandpit.Invalid || !strings.Contains(err.Error(), "unexpected end") {
			t.Fatalf("cut at %d of %d: %v, want an unexpected end", cut, len(whole), err)
		}
		if info, err := os.Stat(filepath.Join(target, "d/f")); err == nil && info.Size() != 3000 {
			t.Errorf("cut at %d: a file of %d bytes is left", cut, info.Size())
		}
	}
}

func TestNoTar(t *testing.T) {
	t.Parallel()
	for _, data := range []string{strings.Repeat("not a tar stream ", 100), strings.Repeat("\xff", 2048)} {
		if _, err := unpack(t, t.TempDir(), []byte(data), tree.Options{}); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("Unpack(%.20q): %v, want Invalid", data, err)
		}
	}
	slash := mend(bytes.ReplaceAll(stream(t, file("dir@", "x")), []byte("dir@"), []byte("dir/")))
	if _, err := unpack(t, t.TempDir(), slash, tree.Options{}); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("a file with the name of a directory: %v, want Invalid", err)
	}
	negative := stream(t, file("f", "x"))
	copy(negative[1024+124:], "-0000000001\x00") // the size, after the record of the time
	if _, err := unpack(t, t.TempDir(), mend(negative), tree.Options{}); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("a negative size: %v, want Invalid", err)
	}
}

// TestReadError checks that an error of the stream's reader comes through, also
// behind the last member.
func TestReadError(t *testing.T) {
	t.Parallel()
	whole := stream(t, file("f", strings.Repeat("x", 3000)))
	broken := sandpit.Errorf(sandpit.Gone, "the sandbox has ended")
	for _, n := range []int{0, 700, 2000, len(whole) - 512, len(whole)} {
		r := io.MultiReader(bytes.NewReader(whole[:n]), errReader{broken})
		_, err := tree.Unpack(t.Context(), r, openRoot(t, t.TempDir()), tree.Options{})
		if sandpit.CodeOf(err) != sandpit.Gone {
			t.Errorf("broken at %d: %v, want Gone", n, err)
		}
	}
	// What was wrong before it broke is still wrong.
	r := readFunc(func(p []byte) (int, error) { return copy(p, strings.Repeat("no tar", 100)), broken })
	if _, err := tree.Unpack(t.Context(), r, openRoot(t, t.TempDir()), tree.Options{}); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("no tar stream, then broken: %v, want Invalid", err)
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

func TestReadsToTheEnd(t *testing.T) {
	t.Parallel()
	r := bytes.NewReader(append(stream(t, file("f", "x")), make([]byte, 10<<10)...))
	_, err := tree.Unpack(t.Context(), r, openRoot(t, t.TempDir()), tree.Options{})
	must(t, err)
	if r.Len() != 0 {
		t.Errorf("%d bytes were left in the stream", r.Len())
	}
}

func TestCanceled(t *testing.T) {
	t.Parallel()
	target := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	whole := stream(t, dir("d", 0o500), file("d/done", "x"), file("d/big", strings.Repeat("x", 4<<20)))
	r := io.MultiReader(bytes.NewReader(whole[:2<<20]), readFunc(func([]byte) (int, error) {
		cancel()
		return 0, nil
	}), bytes.NewReader(whole[2<<20:]))
	report, err := tree.Unpack(ctx, r, openRoot(t, target), tree.Options{})
	if sandpit.CodeOf(err) != sandpit.Canceled || report.Files != 1 {
		t.Errorf("Unpack: %v, report %+v", err, report)
	}
	if _, err := os.Lstat(filepath.Join(target, "d/big")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a part of the file is left: %v", err)
	}
	if mode := lstat(t, filepath.Join(target, "d")).Mode().Perm(); mode != 0o500 {
		t.Errorf("the directory has mode %v", mode)
	}
	must(t, os.Chmod(filepath.Join(target, "d"), 0o700))
	if err := tree.Pack(ctx, io.Discard, openRoot(t, target), "."); sandpit.CodeOf(err) != sandpit.Canceled {
		t.Errorf("Pack: %v", err)
	}
}

// TestCanceledBetweenMembers cancels when all of the stream is read already.
func TestCanceledBetweenMembers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := bytes.NewReader(stream(t, dir("d", 0o755), dir("e", 0o755)))
	late := readFunc(func(p []byte) (int, error) {
		defer cancel()
		return r.Read(p)
	})
	report, err := tree.Unpack(ctx, late, openRoot(t, t.TempDir()), tree.Options{})
	if sandpit.CodeOf(err) != sandpit.Canceled || report.Dirs != 0 {
		t.Errorf("Unpack: %v, report %+v", err, report)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func TestPackStopsWithContextAndWriter(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	write(t, filepath.Join(from, "big"), strings.Repeat("x", 4<<20), 0o644)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &hooked{hook: func(int) { cancel() }}
	if err := tree.Pack(ctx, w, openRoot(t, from), "."); sandpit.CodeOf(err) != sandpit.Canceled || w.Len() > 1<<20 {
		t.Errorf("Pack: %v after %d bytes", err, w.Len())
	}
	broken := sandpit.Errorf(sandpit.Gone, "the receiver has gone")
	if err := tree.Pack(t.Context(), errWriter{broken}, openRoot(t, from), "."); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("Pack to a broken writer: %v", err)
	}
}

type errWriter struct{ err error }

func (e errWriter) Write([]byte) (int, error) { return 0, e.err }

// TestNoSpace fills a small file system. Only root can make one.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	target := t.TempDir()
	mountTmpfs(t, target)
	_, err := unpack(t, target, stream(t, file("big", strings.Repeat("x", 4<<20))), tree.Options{})
	if sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("Unpack onto a full disk: %v, want Exhausted", err)
	}
	if _, err := os.Lstat(filepath.Join(target, "big")); err == nil {
		t.Error("a part of the file is left")
	}
}
