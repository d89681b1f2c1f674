package e2b

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
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
func kept(tb testing.TB, archive []byte) *uploads {
	tb.Helper()
	u := newUploads(tb.TempDir())
	if err := u.keep("ann", someHash, bytes.NewReader(archive), int64(len(archive))); err != nil {
		tb.Fatal(err)
	}
	return u
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
		"no archive":       []byte("nothing of the kind, and long enough for nobody to think so"),
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
	u := newUploads(t.TempDir())
	if err := u.keep("ann", someHash, strings.NewReader("short"), 6); sandpit.CodeOf(err) != sandpit.Invalid || u.has("ann", someHash) {
		t.Errorf("what is too short: %v", err)
	}
	other := strings.Repeat("b", 32)
	for _, hash := range []string{someHash, other} {
		if err := u.keep("ann", hash, strings.NewReader("12345"), 5); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(u.file("ann", someHash), past, past); err != nil {
		t.Fatal(err)
	}
	if err := u.tidy(u.place("ann"), 5); err != nil || u.has("ann", someHash) || !u.has("ann", other) {
		t.Errorf("the older one is to go: %v", err)
	}
	past = time.Now().Add(-2 * uploadAge)
	if err := os.Chtimes(u.file("ann", other), past, past); err != nil {
		t.Fatal(err)
	}
	if err := u.tidy(u.place("ann"), maxUploads); err != nil || u.has("ann", other) {
		t.Errorf("what is old is to go: %v", err)
	}
	if left, err := os.ReadDir(u.place("ann")); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLinks has links be good for what they were given for, and for a while.
func TestLinks(t *testing.T) {
	t.Parallel()
	u, now := newUploads(t.TempDir()), time.Now()
	good := u.sign("ann", someHash, now.Add(time.Hour))
	for query, want := range map[string]bool{
		good: true, "": false, strings.Replace(good, someHash, strings.Repeat("b", 32), 1): false,
		u.sign("ann", someHash, now.Add(-2*time.Second)):             false,
		newUploads("").sign("ann", someHash, now.Add(time.Hour)):     false,
		strings.Replace(good, "owner=", "owner=Ym9i&was=", 1):        false,
		strings.Replace(good, "until=", "until=99999999999&was=", 1): false,
	} {
		owner, hash, err := u.check(httptest.NewRequestWithContext(t.Context(), http.MethodPut, PathUpload+"?"+query, nil), now)
		if ok := err == nil; ok != want || ok && (owner != "ann" || hash != someHash) {
			t.Errorf("%s: %q %q %v", query, owner, hash, err)
		}
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
		_ = u.unpack(t.Context(), "ann", someHash, inner) // most are none
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("beside it there is %v, %v", list, err)
		}
	})
}
