package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// memory gives layers from memory.
type memory struct {
	data    [][]byte
	digests []string
}

func inMemory(data ...[]byte) *memory {
	m := &memory{data: data}
	for _, d := range data {
		m.digests = append(m.digests, sha256Of(d))
	}
	return m
}

func (m *memory) countLayers() int      { return len(m.data) }
func (m *memory) digestAt(i int) string { return m.digests[i] }

func (m *memory) openLayer(_ context.Context, i int) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(m.data[i])), nil
}

// merged returns the image of layers, and what went wrong.
func merged(tb testing.TB, lim limits, data ...[]byte) (*os.File, error) {
	tb.Helper()
	f, err := os.Create(filepath.Join(tb.TempDir(), "image"))
	must(tb, err)
	tb.Cleanup(func() { _ = f.Close() })
	return f, mergeLayers(tb.Context(), f, inMemory(data...), lim, reservation{})
}

func zstdOf(tb testing.TB, data []byte) []byte {
	tb.Helper()
	w, err := zstd.NewWriter(nil)
	must(tb, err)
	defer w.Close()
	return w.EncodeAll(data, nil)
}

func TestMerge(t *testing.T) {
	t.Parallel()
	type layer = []item
	below := layer{
		dirItem("d", 0o755), file("d/a", "1"), file("d/b", "2"), dirItem("d/sub", 0o755), file("d/sub/deep", "3"), file("f", "4"),
		link(tar.TypeSymlink, "l", "d"), link(tar.TypeLink, "hard", "f"),
	}
	full := map[string]string{"d": "/", "d/a": "1", "d/b": "2", "d/sub": "/", "d/sub/deep": "3", "f": "4", "l": "-> d", "hard": "4"}
	for name, tc := range map[string]struct {
		above []layer
		want  map[string]string // what differs from full; "" for gone
	}{
		"nothing":                 {nil, nil},
		"an empty layer":          {[]layer{{}}, nil},
		"new and changed":         {[]layer{{file("new", "n"), file("d/a", "A")}}, map[string]string{"new": "n", "d/a": "A"}},
		"one hidden":              {[]layer{{file("d/.wh.a", "")}}, map[string]string{"d/a": ""}},
		"a directory hidden":      {[]layer{{file(".wh.d", "")}}, map[string]string{"d": "", "d/a": "", "d/b": "", "d/sub": "", "d/sub/deep": ""}},
		"hidden and made again":   {[]layer{{file(".wh.f", ""), file("f", "F")}}, map[string]string{"f": "F"}},
		"made, then hidden":       {[]layer{{file("f", "F"), file(".wh.f", "")}}, map[string]string{"f": "F"}}, // marks are about the layers below
		"hidden twice":            {[]layer{{file(".wh.f", "")}, {file(".wh.f", "")}}, map[string]string{"f": ""}},
		"hidden, then back":       {[]layer{{file(".wh.f", "")}, {file("f", "F")}}, map[string]string{"f": "F"}},
		"hides what is not there": {[]layer{{file(".wh.nothing", ""), file("no/such/.wh.x", "")}}, nil},
		"opaque first": {
			[]layer{{dirItem("d", 0o700), file("d/.wh..wh..opq", ""), file("d/c", "C")}},
			map[string]string{"d/a": "", "d/b": "", "d/sub": "", "d/sub/deep": "", "d/c": "C"},
		},
		"opaque last": {
			[]layer{{dirItem("d", 0o700), file("d/c", "C"), file("d/sub/new", "N"), file("d/.wh..wh..opq", "")}},
			map[string]string{"d/a": "", "d/b": "", "d/sub/deep": "", "d/c": "C", "d/sub/new": "N"},
		},
		"opaque twice, between": {
			[]layer{{file("d/.wh..wh..opq", ""), file("d/c", "C"), file("d/.wh..wh..opq", ""), file("d/e", "E")}},
			map[string]string{"d/a": "", "d/b": "", "d/sub": "", "d/sub/deep": "", "d/c": "C", "d/e": "E"},
		},
		"opaque root": {
			[]layer{{file(".wh..wh..opq", ""), file("only", "x")}},
			map[string]string{
				"d": "", "d/a": "", "d/b": "", "d/sub": "", "d/sub/deep": "", "f": "", "l": "", "hard": "", "only": "x",
			},
		},
		"a directory replaced": {
			[]layer{{file(".wh.d", ""), dirItem("d", 0o755), file("d/new", "N")}},
			map[string]string{"d/a": "", "d/b": "", "d/sub": "", "d/sub/deep": "", "d/new": "N"},
		},
		"a file for a directory": {[]layer{{file("d", "file")}}, map[string]string{"d": "file", "d/a": "", "d/b": "", "d/sub": "", "d/sub/deep": ""}},
		"a link for a directory": {[]layer{{link(tar.TypeSymlink, "d", "/f")}}, map[string]string{"d": "-> /f", "d/a": "", "d/b": "", "d/sub": "", "d/sub/deep": ""}},
		"a directory for a file": {[]layer{{dirItem("f", 0o755), file("f/x", "X")}}, map[string]string{"f": "/", "f/x": "X"}},
		"a directory for a link": {[]layer{{dirItem("l", 0o755), file("l/x", "X")}}, map[string]string{"l": "/", "l/x": "X"}},
		"a hard link below":      {[]layer{{link(tar.TypeLink, "d/again", "d/a")}, {file(".wh.d", "")}}, map[string]string{"d": "", "d/a": "", "d/b": "", "d/sub": "", "d/sub/deep": ""}},
		"a hard link outlives":   {[]layer{{link(tar.TypeLink, "again", "d/a")}, {file("d/.wh.a", "")}}, map[string]string{"again": "1", "d/a": ""}},
		"through a link":         {[]layer{{file("l/new", "N"), file("l/.wh.a", "")}}, map[string]string{"d/new": "N", "d/a": ""}},
		"marks of other kinds":   {[]layer{{file(".wh..wh.plnk/1", ""), dirItem(".wh..wh.aufs", 0o755)}}, nil},
		"a device hides":         {[]layer{{item{Header: tar.Header{Name: "f", Typeflag: tar.TypeChar}}}}, map[string]string{"f": ""}},
		"a device is left out":   {[]layer{{item{Header: tar.Header{Name: "dev/null", Typeflag: tar.TypeChar}}}}, nil},
		"absolute":               {[]layer{{file("/etc/passwd", "x"), link(tar.TypeSymlink, "/abs", "/f"), file("/abs2/../y", "Y")}}, map[string]string{"etc": "/", "etc/passwd": "x", "abs": "-> /f", "y": "Y"}},
		"twice the same":         {[]layer{{file("f", "1"), file("f", "22"), file("f", "333")}}, map[string]string{"f": "333"}},
		"a link out of it":       {[]layer{{link(tar.TypeSymlink, "out", "../../.."), file("out/etc/x", "X")}}, map[string]string{"out": "-> ../../..", "etc": "/", "etc/x": "X"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := map[string]string{}
			for _, m := range []map[string]string{full, tc.want} {
				for name, text := range m {
					want[name] = text
					if text == "" {
						delete(want, name)
					}
				}
			}
			data := [][]byte{archiveOf(t, below...)}
			pack := []func([]byte) []byte{
				func(b []byte) []byte { return zipped(t, b) }, func(b []byte) []byte { return zstdOf(t, b) },
			}
			for i, l := range tc.above {
				data = append(data, pack[i%2](archiveOf(t, l...)))
			}
			f, err := merged(t, defaultLimits, data...)
			must(t, err)
			if diff := cmp.Diff(want, all(t, f.Name())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			checkWithTools(t, f.Name())
		})
	}
}

// TestMergeMetadata looks at what contents do not tell.
func TestMergeMetadata(t *testing.T) {
	t.Parallel()
	root := dirItem("./", 0o751)
	root.Uid, root.Gid = 7, 8
	setuid := file("su", "x")
	setuid.Mode, setuid.Uid = 0o4755, 42
	again := dirItem("d", 0o700)
	again.Gid = 99
	f, err := merged(t, defaultLimits,
		archiveOf(t, root, dirItem("d", 0o755), file("d/a", "1"), setuid, link(tar.TypeLink, "su2", "su")),
		archiveOf(t, again, link(tar.TypeLink, "d/su3", "su2")))
	must(t, err)
	got, err := listImage(f)
	must(t, err)
	if e := got["."]; e.Mode != os.ModeDir|0o751 || e.UID != 7 || e.GID != 8 {
		t.Errorf("root: %+v", e)
	}
	if e := got["d"]; e.Mode != os.ModeDir|0o700 || e.GID != 99 {
		t.Errorf("directory: %+v", e)
	}
	if e := got["d/su3"]; e.Mode != os.ModeSetuid|0o755 || e.UID != 42 || e.Links != 3 || e.File != got["su"].File {
		t.Errorf("hard link: %+v", e)
	}
}

// TestMergeGivesRoomBack has what is hidden take no room on the disk.
func TestMergeGivesRoomBack(t *testing.T) {
	t.Parallel()
	f, err := merged(t, defaultLimits,
		incompressible(t, "a", 4<<20), incompressible(t, "b", 1<<20), archiveOf(t, file(".wh.a", "")), incompressible(t, "c", 1<<20))
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	if used := st.Blocks * 512; used > 3<<20 {
		t.Errorf("%d bytes on the disk for 2 MiB of files", used)
	}
	if got := all(t, f.Name()); len(got["b"]) != 1<<20 || len(got["c"]) != 1<<20 || len(got) != 2 {
		t.Errorf("%d files", len(got))
	}
}

func TestHostileLayers(t *testing.T) {
	t.Parallel()
	small := limits{entries: 2100, bytes: 2 << 20, names: 1 << 20, steps: 20_000}
	many := make([]item, 0, 2200)
	for i := range 2200 {
		many = append(many, file(strconv.Itoa(i), ""))
	}
	var loops []item
	loops = append(loops, link(tar.TypeSymlink, "l", strings.Repeat("./", 1000)))
	for i := range 900 {
		loops = append(loops, file(fmt.Sprintf("l/l/l/l/l/l/l/l/l/l/%d", i), ""))
	}
	deep := []item{dirItem(strings.Repeat("d/", 1000), 0o755), link(tar.TypeSymlink, "x", strings.Repeat("d/", 1000))}
	for range 2 {
		deep = append(deep, dirItem("x/"+strings.Repeat("e/", 900), 0o755), link(tar.TypeSymlink, "y", "x/"+strings.Repeat("e/", 900)), dirItem("y/"+strings.Repeat("f/", 900), 0o755))
	}
	of := func(items ...item) []byte { return archiveOf(t, items...) }
	for name, tc := range map[string]struct {
		data []byte
		want sandpit.Code
		text string
	}{
		"name above the root":      {of(file("../x", "")), sandpit.Invalid, "outside of the archive"},
		"mark above the root":      {of(file("../.wh.x", "")), sandpit.Invalid, "outside of the archive"},
		"mark with dots":           {of(file("a/.wh...", "")), sandpit.Invalid, "hides an invalid file name"},
		"mark of the directory":    {of(file("a/.wh..", "")), sandpit.Invalid, "hides an invalid file name"},
		"mark of nothing":          {of(file(".wh.", "")), sandpit.Invalid, "hides an invalid file name"},
		"in a marked directory":    {of(file(".wh.a/b", "")), sandpit.Invalid, "marks"},
		"hard link above the root": {of(link(tar.TypeLink, "a", "../../etc/passwd")), sandpit.Invalid, "outside of the archive"},
		"hard link to nothing":     {of(link(tar.TypeLink, "a", "/etc/passwd")), sandpit.Invalid, "hard link"},
		"hard link to directory":   {of(dirItem("d", 0o755), link(tar.TypeLink, "a", "d")), sandpit.Invalid, "hard link"},
		"hard link to itself":      {of(link(tar.TypeLink, "a", "a")), sandpit.Invalid, "hard link"},
		"root is a file":           {of(file(".", "")), sandpit.Invalid, "not a directory"},
		"links in a circle":        {of(link(tar.TypeSymlink, "a", "b"), link(tar.TypeSymlink, "b", "a"), file("a/x", "")), sandpit.Invalid, "too many symbolic links"},
		"long name":                {of(file(strings.Repeat("n", 256), "")), sandpit.Invalid, "not a file name"},
		"long path":                {of(file(strings.Repeat("n/", 2100)+"x", "")), sandpit.Invalid, "path"},
		"zero in a name":           {of(item{Header: tar.Header{Name: "x", Linkname: strings.Repeat("t", 5000), Typeflag: tar.TypeSymlink}}), sandpit.Invalid, "symbolic link"},
		"too many files":           {of(many...), sandpit.Exhausted, "too many files"},
		"too many bytes":           {of(file("a", strings.Repeat("x", 1200<<10)), file("b", strings.Repeat("x", 1200<<10))), sandpit.Exhausted, "too many bytes"},
		"gzip bomb":                {zipped(t, of(file("a", strings.Repeat("\x00", 2<<20+1)))), sandpit.Exhausted, "too many bytes"},
		"zstd bomb":                {zstdOf(t, append(of(file("a", "")), make([]byte, 64<<20)...)), sandpit.Exhausted, "too many bytes"},
		"gzip bomb behind":         {zipped(t, append(of(file("a", "")), make([]byte, 64<<20)...)), sandpit.Exhausted, "too many bytes"},
		"zeros behind":             {append(of(file("a", "")), make([]byte, 3<<20)...), sandpit.Exhausted, "too many bytes"},
		"sparse and huge":          {sparseTar(t, 1<<60), sandpit.Exhausted, "too many bytes"},
		"endless links":            {of(loops...), sandpit.Exhausted, "too many links"},
		"endless depth":            {of(deep...), sandpit.Invalid, "nested directories"},
		"nonsense":                 {[]byte(strings.Repeat("nonsense", 200)), sandpit.Invalid, "not a tar archive"},
		"truncated":                {of(file("a", "text"))[:700], sandpit.Invalid, "truncated"},
		"owner":                    {of(item{Header: tar.Header{Name: "a", Typeflag: tar.TypeReg, Uid: 1 << 40, Format: tar.FormatPAX}}), sandpit.Invalid, "owner"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := merged(t, small, of(file("below", "x")), tc.data)
			if sandpit.CodeOf(err) != tc.want || !strings.Contains(err.Error(), tc.text) || !strings.HasPrefix(err.Error(), "layer 2: ") {
				t.Errorf("%q %v, want %q with %q", sandpit.CodeOf(err), err, tc.want, tc.text)
			}
		})
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	lying := inMemory(of(file("a", "1")))
	lying.digests[0] = sha256Of(nil)
	if err := mergeLayers(t.Context(), f, lying, small, reservation{}); !errors.Is(err, sandpit.Unavailable) {
		t.Errorf("wrong digest: %v", err)
	}
}

// sparseTar is an archive with a file that says it is huge and holds nothing.
func sparseTar(t *testing.T, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	h := file("GNUSparseFile.0/s", "0\n"+strings.Repeat("\x00", 510))
	h.Format = tar.FormatPAX
	must(t, w.WriteHeader(&h.Header))
	_, err := w.Write([]byte(h.text))
	must(t, err, w.Close())
	data := b.Bytes()
	record := func(key, value string) string {
		text := " " + key + "=" + value + "\n"
		n := len(text)
		for len(strconv.Itoa(n))+len(text) != n {
			n = len(strconv.Itoa(n)) + len(text)
		}
		return strconv.Itoa(n) + text
	}
	pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") +
		record("GNU.sparse.name", "s") + record("GNU.sparse.realsize", strconv.FormatInt(size, 10))
	var head bytes.Buffer
	hw := tar.NewWriter(&head)
	x := file("pax", pax)
	must(t, hw.WriteHeader(&x.Header))
	_, err = hw.Write([]byte(pax))
	must(t, err, hw.Flush())
	raw := head.Bytes()
	raw[156] = tar.TypeXHeader
	copy(raw[148:156], "        ")
	sum := 0
	for _, c := range raw[:512] {
		sum += int(c)
	}
	copy(raw[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return append(raw, data...)
}

// FuzzLayers merges anything over a layer with everything in it.
func FuzzLayers(f *testing.F) {
	below := archiveOf(f, dirItem("d", 0o755), file("d/a", "1"), file("d/sub/deep", "3"), link(tar.TypeSymlink, "l", "d"), link(tar.TypeLink, "h", "d/a"))
	f.Add(archiveOf(f, file("d/.wh.a", ""), file("l/.wh..wh..opq", ""), file("d/c", "C")))
	f.Add(archiveOf(f, file(".wh.d", ""), file(".wh..wh.plnk/x", ""), link(tar.TypeLink, "d", "h")))
	f.Add(zipped(f, archiveOf(f, file("../.wh.x", ""), file("a/.wh..", ""))))
	f.Add(zstdOf(f, archiveOf(f, dirItem("h", 0o700), file("h/x", "y"), link(tar.TypeSymlink, "d", "d"))))
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := merged(t, limits{entries: 1000, bytes: 1 << 20, names: 1 << 20, steps: 10_000}, below, data)
		if err != nil {
			if sandpit.CodeOf(err) == sandpit.Internal {
				t.Errorf("no code: %v", err)
			}
			return
		}
		got, err := listImage(out)
		if err != nil {
			t.Fatalf("the image is broken: %v", err)
		}
		for name := range got {
			if strings.HasPrefix(filepath.Base(name), markPrefix) {
				t.Errorf("%s is a mark", name)
			}
		}
	})
}

// FuzzMarks gives one entry any name.
func FuzzMarks(f *testing.F) {
	for _, name := range []string{".wh.a", "d/.wh..wh..opq", ".wh..", ".wh...", "../.wh.a", ".wh..wh.x/y", "a/../.wh.d", ".wh.a/b"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		a := newArchive(nil, limits{entries: 100, bytes: 1, names: 1 << 20, steps: 10_000})
		d := newDir(0o755)
		d.children["x"] = newDir(0o755)
		a.root.children["d"], a.root.children["a"] = d, newDir(0o755)
		a.layer = newLayer()
		parts, err := splitName(name)
		if err != nil || !isMark(parts) {
			return
		}
		if err := a.applyMark(name, parts); sandpit.CodeOf(err) == sandpit.Internal && err != nil {
			t.Errorf("no code: %v", err)
		}
	})
}
