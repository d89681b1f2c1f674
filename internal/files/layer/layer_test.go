package layer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/layer"
)

// member is a file of a stream.
type member struct {
	name, text string
	kind       byte // default: a regular file
	mode       int64
	link       string
}

func stream(tb testing.TB, members ...member) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Typeflag: m.kind, Mode: m.mode, Linkname: m.link, Size: int64(len(m.text))}
		if m.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if m.mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, m.text); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func read(tb testing.TB, members ...member) *layer.Layer {
	tb.Helper()
	l, err := layer.Read(context.Background(), bytes.NewReader(stream(tb, members...)), true) //nolint:usetesting // also of fuzz targets
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// told sums a comparison up, one line a change.
func told(d sandpit.FileDiff) (lines []string) {
	for _, c := range d.Changes {
		lines = append(lines, fmt.Sprintf("%s %s %s %o %d", c.Kind, c.Path, c.Type, c.Mode, c.Size))
	}
	return lines
}

func TestCompare(t *testing.T) {
	t.Parallel()
	dir := func(name string) member { return member{name: name, kind: tar.TypeDir, mode: 0o755} }
	for name, tc := range map[string]struct {
		from, to []member // nil is the image
		want     []string
	}{
		"the same": {[]member{dir("d"), {name: "d/a", text: "x"}}, []member{{name: "./d/a", text: "x"}, dir("/d/")}, nil},
		"text":     {[]member{{name: "a", text: "x"}}, []member{{name: "a", text: "yz"}}, []string{"changed /a file 644 2"}},
		"mode":     {[]member{{name: "a"}}, []member{{name: "a", mode: 0o755}}, []string{"changed /a file 755 0"}},
		"kind":     {[]member{{name: "a"}}, []member{{name: "a", kind: tar.TypeSymlink, link: "b"}}, []string{"changed /a link 644 0"}},
		"link": {
			[]member{{name: "a", kind: tar.TypeSymlink, link: "b"}},
			[]member{{name: "a", kind: tar.TypeSymlink, link: "c"}},
			[]string{"changed /a link 644 0"},
		},
		"hard links in another order": {
			[]member{{name: "a", text: "x"}, {name: "b", kind: tar.TypeLink, link: "a"}},
			[]member{{name: "b", text: "x"}, {name: "a", kind: tar.TypeLink, link: "b"}},
			nil,
		},
		"removed, and back": {[]member{{name: ".wh.a"}}, []member{{name: "a", text: "x"}}, []string{"added /a file 644 1"}},
		"removed":           {[]member{{name: "d/a", text: "x"}}, []member{{name: "d/.wh.a"}}, []string{"removed /d/a file 644 1"}},
		"removed in both":   {[]member{{name: ".wh.a"}}, []member{{name: ".wh.a"}}, nil},
		"removed above":     {[]member{{name: "d/e/a"}}, []member{{name: ".wh.d"}}, []string{"removed /d  0 0", "removed /d/e/a file 644 0"}},
		"file for a directory": {
			[]member{dir("d"), {name: "d/a"}},
			[]member{{name: "d", text: "x"}},
			[]string{"changed /d file 644 1", "removed /d/a file 644 0"},
		},
		"opaque": {
			[]member{{name: "d/a", text: "x"}, {name: "d/b"}},
			[]member{{name: "d/.wh..wh..opq"}, {name: "d/b"}},
			[]string{"removed /d/a file 644 1"},
		},
		"written": {nil, []member{dir("d"), {name: "d/a", text: "x"}, dir("e")}, []string{"written /d/a file 644 1", "written /e directory 755 0"}},
		"gone from the image": {
			nil,
			[]member{{name: ".wh.a"}, {name: ".wh..wh.odd"}},
			[]string{"removed /a  0 0"},
		},
		"restored":        {[]member{{name: "a", text: "x"}}, nil, []string{"restored /a file 0 0"}},
		"only one writes": {[]member{{name: "a"}}, []member{{name: "a"}, {name: "b"}}, []string{"written /b file 644 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var from, to *layer.Layer
			if tc.from != nil {
				from = read(t, tc.from...)
			}
			if tc.to != nil {
				to = read(t, tc.to...)
			}
			got := layer.Compare(from, to, layer.Limits{Changes: 100})
			if diff := cmp.Diff(tc.want, told(got)); diff != "" || got.Truncated {
				t.Error(diff, got.Truncated)
			}
		})
	}
}

func TestPatch(t *testing.T) {
	t.Parallel()
	from := read(t, member{name: "a", text: "one\ntwo\n"}, member{name: "bin", text: "\x00"}, member{name: "old", text: "x\n"}, member{name: ".wh.new"},
		member{name: "large", text: strings.Repeat("x", 300<<10)}, member{name: "odd\nname", text: "x"})
	to := read(t, member{name: "a", text: "one\n2\n"}, member{name: "bin", text: "\x01"}, member{name: ".wh.old"}, member{name: "new", text: "y\n"},
		member{name: "large", text: "y"}, member{name: "odd\nname", text: "y"})
	d := layer.Compare(from, to, layer.Limits{Changes: 100, Patches: 1 << 20})
	got := make(map[string]string)
	for _, c := range d.Changes {
		got[c.Path] = c.Patch
	}
	want := map[string]string{
		"/a":         "diff a/a b/a\n--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n",
		"/bin":       "",
		"/old":       "diff a/old /dev/null\n--- a/old\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n",
		"/new":       "diff /dev/null b/new\n--- /dev/null\n+++ b/new\n@@ -0,0 +1,1 @@\n+y\n",
		"/large":     "",
		"/odd\nname": "",
	}
	if diff := cmp.Diff(want, got); diff != "" || d.Truncated {
		t.Error(diff, d.Truncated)
	}
	for _, most := range []layer.Limits{{Changes: 2, Patches: 1 << 20}, {Changes: 100, Patches: 10}} {
		if d := layer.Compare(from, to, most); !d.Truncated || len(d.Changes) > most.Changes {
			t.Errorf("%+v: %d changes, truncated %v", most, len(d.Changes), d.Truncated)
		}
	}
	if d := layer.Compare(from, to, layer.Limits{Changes: 100}); d.Truncated || slices.ContainsFunc(d.Changes, func(c sandpit.FileChange) bool { return c.Patch != "" }) {
		t.Errorf("without patches: %+v", d)
	}
}

// TestHostile reads what no provider should send.
func TestHostile(t *testing.T) {
	t.Parallel()
	whole := stream(t, member{name: "a", text: strings.Repeat("x", 5000)}, member{name: "b"})
	for name, tc := range map[string]struct {
		in   io.Reader
		want sandpit.Code
	}{
		"no tar":     {strings.NewReader(strings.Repeat("x", 10_000)), sandpit.Invalid},
		"cut":        {bytes.NewReader(whole[:3000]), sandpit.Invalid},
		"long name":  {bytes.NewReader(stream(t, member{name: strings.Repeat("x/", 3000) + "x"})), sandpit.Invalid},
		"read error": {io.MultiReader(bytes.NewReader(whole[:3000]), failing{}), sandpit.Unavailable},
		"many":       {endless(t), sandpit.Exhausted},
		"large":      {bytes.NewReader(huge(t)), sandpit.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := layer.Read(t.Context(), tc.in, true); sandpit.CodeOf(err) != tc.want {
				t.Errorf("read: %v, want %s", err, tc.want)
			}
		})
	}
	for _, name := range []string{"../../etc/passwd", "/../etc/passwd", "a/../../etc/passwd"} {
		if got := told(layer.Compare(nil, read(t, member{name: name}), layer.Limits{Changes: 9})); !slices.Equal(got, []string{"written /etc/passwd file 644 0"}) {
			t.Errorf("%s is %q", name, got)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := layer.Read(ctx, bytes.NewReader(whole), true); err == nil || err.Error() != "enough" {
		t.Errorf("after its end: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, sandpit.Errorf(sandpit.Unavailable, "away") }

// endless sends empty files with long names without an end.
func endless(t *testing.T) io.Reader {
	t.Helper()
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		out := tar.NewWriter(w)
		for n := 0; ; n++ {
			if out.WriteHeader(&tar.Header{Name: fmt.Sprintf("%s%d", strings.Repeat("x", 3000), n), Typeflag: tar.TypeReg}) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = r.Close(); <-done })
	return r
}

// huge claims a file that is larger than can be.
func huge(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 1 << 40, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzRead reads and compares anything.
func FuzzRead(f *testing.F) {
	f.Add(stream(f, member{name: "d/a", text: "x"}, member{name: "d/.wh.b"}, member{name: "d/.wh..wh..opq"}))
	f.Add(stream(f, member{name: "a", text: "x"}, member{name: "b", kind: tar.TypeLink, link: "a"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // a hole may be large
		defer cancel()
		l, err := layer.Read(ctx, bytes.NewReader(data), true)
		if err != nil {
			return
		}
		most := layer.Limits{Changes: 100, Patches: 1000}
		if d := layer.Compare(l, l, most); len(d.Changes) > 0 {
			t.Errorf("it differs from itself: %+v", d)
		}
		for _, d := range []sandpit.FileDiff{layer.Compare(nil, l, most), layer.Compare(l, nil, most)} {
			for _, c := range d.Changes {
				if !strings.HasPrefix(c.Path, "/") || strings.Contains(c.Path, "/../") {
					t.Errorf("a change of %q", c.Path)
				}
			}
		}
	})
}
