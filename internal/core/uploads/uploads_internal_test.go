package uploads

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// packed is an archive of these entries; the contents of a link are where it leads.
func packed(tb testing.TB, entries ...tar.Header) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		h.Mode = 0o644
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, 4
		}
		err := w.WriteHeader(&h)
		if err == nil && h.Size > 0 {
			_, err = io.WriteString(w, "text")
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func zipped(tb testing.TB, b []byte) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

const someHash = "0123456789abcdef0123456789abcdef"

// kept is what there is with one archive.
func kept(tb testing.TB, archive []byte) *Store {
	tb.Helper()
	u := New(Options{Dir: tb.TempDir()})
	if err := u.storeArchive(Name{"ann", someHash}, bytes.NewReader(archive), int64(len(archive))); err != nil {
		tb.Fatal(err)
	}
	return u
}

// unpack unpacks an archive as a build of an owner does.
func (u *Store) unpack(ctx context.Context, owner, hash, dir string) error {
	b, err := u.OpenFiles(owner)
	if err != nil {
		return err
	}
	defer b.Remove()
	return b.unpackArchive(ctx, hash, dir)
}

// TestUnpack has archives be unpacked where they are to be, and nothing of them elsewhere.
func TestUnpack(t *testing.T) {
	t.Parallel()
	plain := packed(t, tar.Header{Name: "dir/", Typeflag: tar.TypeDir}, tar.Header{Name: "dir/file"}, tar.Header{Name: "/at/root"},
		tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"})
	for name, archive := range map[string][]byte{"plain": plain, "zipped": zipped(t, plain)} {
		u, dir := kept(t, archive), t.TempDir()
		if err := u.unpack(t.Context(), "ann", someHash, dir); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, file := range []string{"dir/file", "at/root"} {
			if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(text) != "text" {
				t.Errorf("%s: %s: %q, %v", name, file, text, err)
			}
		}
	}
	for name, archive := range map[string][]byte{
		"no archive":       []byte("plain text that is longer than the header of an archive"),
		"broken off":       plain[:700],
		"above":            packed(t, tar.Header{Name: "../x"}),
		"above, later":     packed(t, tar.Header{Name: "a/../../x"}),
		"through a link":   packed(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "l/x"}),
		"over a link":      packed(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../x"}, tar.Header{Name: "l"}),
		"to another place": packed(t, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "../x"}),
		"a device":         packed(t, tar.Header{Name: "d", Typeflag: tar.TypeChar}),
	} {
		u, dir := kept(t, archive), t.TempDir()
		inner := filepath.Join(dir, "inner")
		if err := os.Mkdir(inner, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := u.unpack(t.Context(), "ann", someHash, inner); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "x")); err == nil {
			t.Errorf("%s: something is outside", name)
		}
	}
	u := kept(t, plain)
	if err := u.unpack(t.Context(), "bob", someHash, t.TempDir()); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("bob has ann's files: %v", err)
	}
}

// TestKeep has what comes be as long as was said, and the oldest go when it is too much.
func TestKeep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	space := diskspace.NewBudget(diskspace.Options{Name: "files", PerOwner: 10, Total: 25})
	u := New(Options{Dir: dir, Space: space})
	keep := func(owner, hash, text string) error {
		return u.storeArchive(Name{owner, hash}, strings.NewReader(text), 5)
	}
	hash := func(c string) string { return strings.Repeat(c, 32) }
	if err := keep("ann", hash("a"), "1234"); sandpit.CodeOf(err) != sandpit.Invalid || u.HasArchive(Name{"ann", hash("a")}) {
		t.Errorf("what is too short: %v", err)
	}
	if own, all := space.Reserved("ann"); own != 0 || all != 0 {
		t.Errorf("%d of %d bytes are reserved for nothing", own, all)
	}
	for _, h := range []string{"a", "b", "c"} {
		if err := keep("ann", hash(h), "12345"); err != nil {
			t.Fatal(err)
		}
	}
	if u.HasArchive(Name{"ann", hash("a")}) || !u.HasArchive(Name{"ann", hash("b")}) || !u.HasArchive(Name{"ann", hash("c")}) {
		t.Error("not the oldest went")
	}
	if err := keep("ann", hash("c"), "54321"); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if own, _ := space.Reserved("ann"); own > 10 {
		t.Errorf("%d bytes are reserved", own)
	}
	f, done, err := u.openArchive(Name{"ann", hash("c")})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(f); err != nil || string(text) != "54321" {
		t.Errorf("%q, %v", text, err)
	}
	for _, h := range []string{"d", "e"} {
		if err := keep("ann", hash(h), "12345"); err != nil || !u.HasArchive(Name{"ann", hash("c")}) {
			t.Errorf("an archive that is in use went: %v", err)
		}
	}
	done()
	for _, owner := range []string{"bob", "eve"} {
		if err := errors.Join(keep(owner, hash("a"), "12345"), keep(owner, hash("b"), "12345")); owner == "bob" && err != nil {
			t.Fatal(err)
		}
	}
	if _, all := space.Reserved("eve"); all > 25 {
		t.Errorf("all have %d bytes", all)
	}
	// The next server knows what is there, and removes what it does not.
	if err := os.WriteFile(filepath.Join(u.ownerDir("ann"), "part-1"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "build-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	again := diskspace.NewBudget(diskspace.Options{Name: "files", PerOwner: 10, Total: 25})
	u = New(Options{Dir: dir, Space: again})
	if own, all := again.Reserved("ann"); own != 10 || all < 20 || !u.HasArchive(Name{"ann", hash("c")}) {
		t.Errorf("after a restart ann has %d of %d bytes", own, all)
	}
	if left, err := os.ReadDir(u.ownerDir("ann")); err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "build-1")); err == nil {
		t.Error("a build of the last server left its files")
	}
	for n, a := range u.archives {
		a.used = time.Now().Add(-2 * uploadAge)
		u.archives[n] = a
	}
	if err := keep("ann", hash("f"), "12345"); err != nil || u.HasArchive(Name{"ann", hash("c")}) || !u.HasArchive(Name{"ann", hash("f")}) {
		t.Errorf("what is old is to go: %v", err)
	}
}

// TestUploadsOfOneArchive has the second of two wait for the first.
func TestUploadsOfOneArchive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := New(Options{})
		n := Name{"ann", someHash}
		done, err := u.waitForTurn(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		late, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := u.waitForTurn(late, n); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second one at a time: %v", err)
		}
		var second func()
		go func() { second, _ = u.waitForTurn(t.Context(), n) }()
		synctest.Wait()
		done()
		synctest.Wait()
		if second == nil {
			t.Fatal("the second one still waits")
		}
		second()
		if len(u.coming) != 0 {
			t.Errorf("%d uploads are left", len(u.coming))
		}
	})
}

// TestBuildUnpacksOnce has a build use an archive many times, and no more than it may.
func TestBuildUnpacksOnce(t *testing.T) {
	t.Parallel()
	space := diskspace.NewBudget(diskspace.Options{Name: "files", PerOwner: 1 << 20})
	u := New(Options{Dir: t.TempDir(), Space: space})
	other := strings.Repeat("b", 32)
	zeros := func(n int64) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		err := w.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o600, Size: n})
		if err == nil {
			_, err = w.Write(make([]byte, n))
		}
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return zipped(t, b.Bytes())
	}
	for hash, archive := range map[string][]byte{someHash: zeros(300_000), other: zeros(2 << 20)} {
		if err := u.storeArchive(Name{"ann", hash}, bytes.NewReader(archive), int64(len(archive))); err != nil {
			t.Fatal(err)
		}
	}
	b, err := u.OpenFiles("ann")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		dir, err := b.UnpackOnce(t.Context(), someHash)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, "f")); err != nil || info.Size() != 300_000 {
			t.Fatalf("%v, %v", info, err)
		}
	}
	if own, _ := space.Reserved("ann"); own < 300_000 || own > 1<<20 {
		t.Errorf("%d bytes are reserved", own)
	}
	if _, err := b.UnpackOnce(t.Context(), other); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("more than the owner may have: %v, want Exhausted", err)
	}
	b.Remove()
	if own, _ := space.Reserved("ann"); own > 10_000 {
		t.Errorf("%d bytes are reserved after the build", own)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	if b, err = u.OpenFiles("bob"); err != nil {
		t.Fatal(err)
	}
	defer b.Remove()
	cancel(sandpit.Errorf(sandpit.Canceled, "given up"))
	if _, err := b.UnpackOnce(ctx, someHash); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("bob unpacks ann's files: %v", err)
	}
}

// FuzzUnpack has any archive be unpacked without harm: nothing is beside the directory.
func FuzzUnpack(f *testing.F) {
	f.Add(packed(f, tar.Header{Name: "a/b"}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "l/x"}))
	f.Add(zipped(f, packed(f, tar.Header{Name: "../x"})))
	f.Fuzz(func(t *testing.T, archive []byte) {
		if len(archive) == 0 || len(archive) > 1<<16 {
			t.Skip()
		}
		u, dir := kept(t, archive), t.TempDir()
		inner := filepath.Join(dir, "inner")
		if err := os.Mkdir(inner, 0o700); err != nil {
			t.Fatal(err)
		}
		_ = u.unpack(t.Context(), "ann", someHash, inner) // most are not archives
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("beside it there is %v, %v", list, err)
		}
	})
}

// TestPeek refuses what is no archive, and reads little of what is one.
func TestPeek(t *testing.T) {
	t.Parallel()
	plain := packed(t, tar.Header{Name: "file"})
	long := packed(t, tar.Header{Name: "file", PAXRecords: map[string]string{"comment": strings.Repeat("x", 2*maxPeek)}})
	for _, test := range []struct {
		name    string
		archive []byte
		want    sandpit.Code
	}{
		{"plain", plain, ""},
		{"zipped", zipped(t, plain), ""},
		{"empty", packed(t), ""},
		{"more than is read", long, ""},
		{"no archive", []byte("no archive"), sandpit.Invalid},
		{"a broken gzip", []byte("\x1f\x8bxxxxxxxxxxxx"), sandpit.Invalid},
		{"no archive in gzip", zipped(t, []byte(strings.Repeat("no archive", 100))), sandpit.Invalid},
	} {
		if err := kept(t, test.archive).CheckArchive(Name{"ann", someHash}); err != nil && sandpit.CodeOf(err) != test.want || err == nil && test.want != "" {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	if err := kept(t, plain).CheckArchive(Name{"bob", someHash}); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("another owner's: %v, want NotFound", err)
	}
}
