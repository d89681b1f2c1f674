package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// item is an entry of an archive to be made.
type item struct {
	tar.Header
	text string
}

func file(name, text string) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}, text}
}

func dirItem(name string, mode int64) item {
	return item{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}}
}

func link(kind byte, name, target string) item {
	return item{Header: tar.Header{Name: name, Typeflag: kind, Linkname: target, Mode: 0o777}}
}

func archiveOf(tb testing.TB, items ...item) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		must(tb, w.WriteHeader(&i.Header))
		_, err := io.WriteString(w, i.text)
		must(tb, err)
	}
	must(tb, w.Close())
	return b.Bytes()
}

func zipped(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	must(tb, err, w.Close())
	return b.Bytes()
}

func convert(tb testing.TB, s *Store, data []byte) (string, error) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "root.tar")
	must(tb, os.WriteFile(path, data, 0o644))
	f, _, err := s.openTar(tb.Context(), path, "", nil)
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// TestTarRoundTrip packs a tree with the machine's tar.
func TestTarRoundTrip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	awkward(t, dir)
	want := readTree(t, dir)
	for name, args := range map[string][]string{
		"gnu":    {"--format=gnu"},
		"posix":  {"--format=posix"},
		"sparse": {"--format=posix", "--sparse"},
		"gzip":   {"--format=gnu", "--gzip", "--sparse"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "root.tar.gz")
			args = append(args, "--numeric-owner", "-cf", path, "-C", dir, ".")
			if out, err := exec.CommandContext(t.Context(), "tar", args...).CombinedOutput(); err != nil {
				t.Skipf("tar: %v: %s", err, out)
			}
			s := newStore(t)
			root, err := s.Resolve(t.Context(), sandpit.Image(path), nil)
			must(t, err)
			got := readImage(t, root.Path)
			if !slices.Contains(args, "--format=posix") {
				for name, e := range want { // the format has whole seconds only
					g := got[name]
					if g.Mtime != e.Mtime/1e9*1e9 && e.Mtime > 0 {
						t.Fatalf("%s: time %d, want that of %d", name, g.Mtime, e.Mtime)
					}
					g.Mtime = e.Mtime
					got[name] = g
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the image differs (-tree +image):\n%.4000s", diff)
			}
			checkWithTools(t, root.Path)
		})
	}
}

func TestTarNames(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		items []item
		want  map[string]string // contents, or -> target
	}{
		"absolute":     {[]item{file("/etc/a", "1")}, map[string]string{"etc/a": "1"}},
		"dots inside":  {[]item{file("a/b/../c", "1"), file("./d", "2")}, map[string]string{"a/c": "1", "d": "2"}},
		"double slash": {[]item{file("a//b", "1")}, map[string]string{"a/b": "1"}},
		"last wins":    {[]item{file("a", "old and long"), file("./a", "new")}, map[string]string{"a": "new"}},
		"file for a directory": {
			[]item{file("a/b", "1"), file("a", "2")}, map[string]string{"a": "2"},
		},
		"directory again keeps what is in it": {
			[]item{dirItem("a", 0o700), file("a/b", "1"), dirItem("a/", 0o755)}, map[string]string{"a/b": "1"},
		},
		"directory for a link": {
			[]item{file("x/f", "1"), link(tar.TypeSymlink, "a", "x"), dirItem("a", 0o755), file("a/f", "2")},
			map[string]string{"x/f": "1", "a/f": "2"},
		},
		"link that leads out stays a link": {
			[]item{link(tar.TypeSymlink, "a", "../../etc"), link(tar.TypeSymlink, "b", "/etc/shadow")},
			map[string]string{"a": "-> ../../etc", "b": "-> /etc/shadow"},
		},
		"through a link": {
			[]item{dirItem("usr/lib", 0o755), link(tar.TypeSymlink, "lib", "usr/lib"), file("lib/x", "1")},
			map[string]string{"lib": "-> usr/lib", "usr/lib/x": "1"},
		},
		"through a link that leads out": {
			[]item{link(tar.TypeSymlink, "up", "../../.."), file("up/tmp/x", "1"), link(tar.TypeSymlink, "abs", "/"), file("abs/y", "2")},
			map[string]string{"up": "-> ../../..", "abs": "-> /", "tmp/x": "1", "y": "2"},
		},
		"hard link": {
			[]item{file("a", "1"), link(tar.TypeLink, "d/b", "./a")}, map[string]string{"a": "1", "d/b": "1"},
		},
		"hard link to what is replaced": {
			[]item{file("a", "1"), link(tar.TypeLink, "b", "/a"), file("a", "2")}, map[string]string{"a": "2", "b": "1"},
		},
		"hard link through a link": {
			[]item{file("usr/a", "1"), link(tar.TypeSymlink, "u", "usr"), link(tar.TypeLink, "b", "u/a")},
			map[string]string{"usr/a": "1", "u": "-> usr", "b": "1"},
		},
		"left out": {
			[]item{
				{Header: tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3}},
				{Header: tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock, Mode: 0o666, Devmajor: 8}},
				file("a", "1"),
			},
			map[string]string{"a": "1"},
		},
		"nothing": {nil, map[string]string{}},
	} {
		for _, pack := range []func(testing.TB, []byte) []byte{func(_ testing.TB, b []byte) []byte { return b }, zipped} {
			path, err := convert(t, newStore(t), pack(t, archiveOf(t, tc.items...)))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			want := map[string]string{}
			for n, v := range tc.want {
				if !strings.HasPrefix(v, "->") {
					sum := sha256.Sum256([]byte(v))
					v = fmt.Sprintf("%d:%x", len(v), sum[:8])
				}
				want[n] = v
			}
			got := map[string]string{}
			for n, e := range readImage(t, path) {
				switch {
				case e.Target != "":
					got[n] = "-> " + e.Target
				case e.Sum != "":
					got[n] = e.Sum
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

func TestHostileTars(t *testing.T) {
	t.Parallel()
	good := archiveOf(t, file("a", "1"), file("b", strings.Repeat("b", 3000)))
	random := make([]byte, 4096)
	for i := range random {
		random[i] = byte(i*i>>3 + i)
	}
	huge := tar.Header{Name: "huge", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1 << 50}
	var hugeHeader bytes.Buffer
	must(t, tar.NewWriter(&hugeHeader).WriteHeader(&huge))
	for name, tc := range map[string]struct {
		data []byte
		want sandpit.Code
		text string // part of the error
	}{
		"outside of the archive": {archiveOf(t, file("../x", "1")), sandpit.Invalid, `"../x"`},
		"leads out later":        {archiveOf(t, file("a/../../x", "1")), sandpit.Invalid, `"a/../../x"`},
		"absolute out":           {archiveOf(t, file("/../x", "1")), sandpit.Invalid, `"/../x"`},
		"link target out":        {archiveOf(t, file("a", "1"), link(tar.TypeLink, "b", "../a")), sandpit.Invalid, `"../a"`},
		"hard link to itself":    {archiveOf(t, link(tar.TypeLink, "b", "b")), sandpit.Invalid, `"b"`},
		"hard link ahead":        {archiveOf(t, link(tar.TypeLink, "b", "a"), file("a", "1")), sandpit.Invalid, `"a"`},
		"hard link to a directory": {
			archiveOf(t, dirItem("d", 0o755), link(tar.TypeLink, "b", "d")), sandpit.Invalid, `"d"`,
		},
		"hard link to the root":  {archiveOf(t, link(tar.TypeLink, "b", "/")), sandpit.Invalid, `"/"`},
		"below a file":           {archiveOf(t, file("a", "1"), file("a/b", "1")), sandpit.Invalid, `"a" is not a directory`},
		"link to itself":         {archiveOf(t, link(tar.TypeSymlink, "l", "l"), file("l/x", "1")), sandpit.Invalid, "too many symbolic links"},
		"links in a circle":      {archiveOf(t, link(tar.TypeSymlink, "l", "m/x"), link(tar.TypeSymlink, "m", "l"), file("l/x", "1")), sandpit.Invalid, "too many"},
		"name too long":          {archiveOf(t, file(strings.Repeat("n", 256), "1")), sandpit.Invalid, "not a file name"},
		"path too long":          {archiveOf(t, file(strings.Repeat("n/", 2048)+"x", "1")), sandpit.Invalid, "4095"},
		"path far too long":      {archiveOf(t, file(strings.Repeat("n/", 200_000)+"x", "1")), sandpit.Invalid, "4095"},
		"target too long":        {archiveOf(t, link(tar.TypeSymlink, "l", strings.Repeat("t", 4096))), sandpit.Invalid, "symbolic link"},
		"no target":              {archiveOf(t, link(tar.TypeSymlink, "l", "")), sandpit.Invalid, "symbolic link"},
		"root is a file":         {archiveOf(t, file(".", "")), sandpit.Invalid, "not a directory"},
		"root is a link":         {archiveOf(t, link(tar.TypeSymlink, ".", "x")), sandpit.Invalid, "not a directory"},
		"owner below zero":       {archiveOf(t, item{Header: tar.Header{Name: "x", Typeflag: tar.TypeReg, Uid: -1}}), sandpit.Invalid, "owner -1:0"},
		"owner beyond 32 bits":   {archiveOf(t, item{Header: tar.Header{Name: "x", Typeflag: tar.TypeReg, Gid: 1 << 33}}), sandpit.Invalid, "owner"},
		"unknown type":           {archiveOf(t, item{Header: tar.Header{Name: "x", Typeflag: 'Z'}}), sandpit.Invalid, "unknown type"},
		"empty file":             {nil, sandpit.Invalid, "truncated"},
		"one byte":               {[]byte{0x1f}, sandpit.Invalid, "truncated"},
		"no archive":             {random, sandpit.Invalid, "not a tar archive"},
		"cut in the contents":    {good[:1024+512+1000], sandpit.Invalid, "truncated"},
		"cut in a header":        {good[:1024+100], sandpit.Invalid, "truncated"},
		"cut between entries":    {good[:1024], sandpit.Invalid, "truncated"},
		"no end mark":            {good[:len(good)-1024], sandpit.Invalid, "truncated"},
		"huge":                   {append(hugeHeader.Bytes(), make([]byte, 4096)...), sandpit.Exhausted, "too many bytes"},
		"gzip cut":               {zipped(t, good)[:60], sandpit.Invalid, "truncated"},
		"gzip without its sum":   {zipped(t, good)[:len(zipped(t, good))-4], sandpit.Invalid, "truncated"},
		"gzip with a wrong sum":  {flip(zipped(t, good), -6), sandpit.Invalid, "checksum"},
		"gzip of nonsense":       {zipped(t, random), sandpit.Invalid, "not a tar archive"},
		"gzip header only":       {[]byte("\x1f\x8b"), sandpit.Invalid, "truncated"},
		"layers of docker":       {archiveOf(t, file("manifest.json", "[]"), file("repositories", "{}"), file("x/layer.tar", "")), sandpit.Invalid, "contains no image"},
		"layers of oci":          {archiveOf(t, file("oci-layout", "{}"), file("index.json", "{}")), sandpit.Invalid, "manifest"},
		"more after the end":     {append(slices.Clone(good), random...), "", ""},
		"more after gzip's end":  {append(zipped(t, good), make([]byte, 512)...), "", ""},
		"a root with a manifest": {archiveOf(t, file("manifest.json", ""), file("repositories", ""), dirItem("usr", 0o755)), "", ""},
	} {
		s := newStore(t)
		_, err := convert(t, s, tc.data)
		if got := sandpit.CodeOf(err); got != tc.want || err != nil && !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %q (%v), want %q with %q", name, got, err, tc.want, tc.text)
		}
		if err != nil && len(err.Error()) > 500 {
			t.Errorf("%s: the message has %d bytes", name, len(err.Error()))
		}
		if left, _ := os.ReadDir(s.cache.dir); err != nil && len(left) != 0 {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
}

// flip changes one byte, counted from the end if at is below zero.
func flip(data []byte, at int) []byte {
	data = slices.Clone(data)
	data[len(data)+at] ^= 0xff
	return data
}

func TestTarLimits(t *testing.T) {
	t.Parallel()
	var items []item
	for i := range 5 {
		items = append(items, file(fmt.Sprintf("d/%d", i), strings.Repeat("x", 100)))
	}
	bomb := archiveOf(t, item{ // skipped, but not for free
		tar.Header{Name: "v", Typeflag: 'V', Size: 0}, "",
	}, file("zeros", strings.Repeat("\x00", 1<<20)))
	for name, tc := range map[string]struct {
		data []byte
		lim  limits
		want sandpit.Code
	}{
		"enough":  {archiveOf(t, items...), limits{entries: 6, bytes: 10 << 10, names: 100, steps: 10_000}, ""},
		"entries": {archiveOf(t, items...), limits{entries: 5, bytes: 10 << 10, names: 100, steps: 10_000}, sandpit.Exhausted},
		"names":   {archiveOf(t, items...), limits{entries: 6, bytes: 10 << 10, names: 10, steps: 10_000}, sandpit.Exhausted},
		"bytes":   {archiveOf(t, items...), limits{entries: 6, bytes: 499, names: 100, steps: 10_000}, sandpit.Exhausted},
		"stream":  {archiveOf(t, items...), limits{entries: 6, bytes: 2000, names: 100, steps: 10_000}, sandpit.Exhausted},
		"bomb":    {zipped(t, bomb), limits{entries: 6, bytes: 100 << 10, names: 100, steps: 10_000}, sandpit.Exhausted},
		"deep":    {archiveOf(t, file(strings.Repeat("d/", 100)+"x", "")), limits{entries: 50, bytes: 10 << 10, names: 1000, steps: 10_000}, sandpit.Exhausted},
	} {
		s := newStore(t)
		s.builder.limits = tc.lim
		if _, err := convert(t, s, tc.data); sandpit.CodeOf(err) != tc.want {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// TestTarOnce tells when an archive is read again.
func TestTarOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "root.tar")
	must(t, os.WriteFile(path, archiveOf(t, file("a", "1")), 0o644))
	resolve := func(path string) (string, bool) {
		read := false
		root, err := s.Resolve(t.Context(), sandpit.Image(path), func(int64, int64) { read = true })
		must(t, err)
		return root.Path, read
	}
	first, read := resolve(path)
	if !read {
		t.Error("first: not read")
	}
	if again, read := resolve(path); read || again != first {
		t.Errorf("again: read %v, %s", read, again)
	}
	now := time.Now().Add(time.Hour)
	must(t, os.Chtimes(path, now, now))
	if again, read := resolve(path); !read || again != first {
		t.Errorf("touched: read %v; the same bytes must give %s, got %s", read, first, again)
	}
	must(t, os.WriteFile(filepath.Join(dir, "copy.tar"), archiveOf(t, file("a", "1")), 0o644))
	if again, _ := resolve(filepath.Join(dir, "copy.tar")); again != first {
		t.Errorf("a copy gave %s", again)
	}
	must(t, os.WriteFile(path, archiveOf(t, file("a", "2")), 0o644))
	if again, read := resolve(path); !read || again == first {
		t.Errorf("changed: read %v, %s", read, again)
	}
	// An index or an image that is lost or damaged is made again.
	indexes, err := filepath.Glob(s.cache.dir + "/*" + indexSuffix)
	must(t, err)
	for _, bad := range []string{"", "{", `{"from":"x","key":"../../etc/passwd"}`} {
		for _, index := range indexes {
			must(t, os.Remove(index), os.WriteFile(index, []byte(bad), 0o600))
		}
		if _, read := resolve(path); !read {
			t.Errorf("index %q was believed", bad)
		}
	}
	second, _ := resolve(path)
	must(t, os.Remove(second))
	if again, read := resolve(path); !read || again != second {
		t.Errorf("lost image: read %v, %s", read, again)
	}
}

// FuzzTar feeds anything to the reader of archives. Whatever it takes for an
// archive must make a sound image, and nothing else.
func FuzzTar(f *testing.F) {
	f.Add(archiveOf(f, file("a", "1"), dirItem("d", 0o755), link(tar.TypeSymlink, "d/l", "../a"), link(tar.TypeLink, "h", "a")))
	f.Add(archiveOf(f, file("../a", "1")))
	f.Add(archiveOf(f, link(tar.TypeSymlink, "l", ".."), file("l/../../x", "1"), file("l/l/l/y", "")))
	f.Add(zipped(f, archiveOf(f, file("a/b/c", "12345"))))
	f.Add(archiveOf(f, file(strings.Repeat("long/", 60)+"x", "1"), item{Header: tar.Header{
		Name: "pax", Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{"SANDPIT.x": "y"},
	}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newStore(t)
		s.builder.limits = limits{entries: 1000, bytes: 1 << 20, names: 1 << 20, steps: 10_000}
		dir := t.TempDir()
		out, err := os.Create(filepath.Join(dir, "out"))
		must(t, err)
		defer out.Close()
		m := &countingReader{ctx: t.Context(), r: bytes.NewReader(data)}
		made, _, err := s.convertTar(m, out, archiveOrigin{})
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("files beside the image: %v", entries)
		}
		if err != nil {
			if sandpit.CodeOf(err) == sandpit.Internal {
				t.Errorf("no code: %v", err)
			}
			return
		}
		if made.inCache { // an image with its layers
			return
		}
		if whole := sha256.Sum256(data); made.key != cacheKey("tar", hex.EncodeToString(whole[:])) {
			t.Error("the digest is not that of the archive")
		}
		if _, err := listImage(out); err != nil {
			t.Errorf("the image is broken: %v", err)
		}
	})
}

func BenchmarkTar(b *testing.B) {
	var items []item
	for i := range 5000 {
		items = append(items, file(fmt.Sprintf("%d/%d", i/100, i), strings.Repeat("0123456789abcdef", 1250)))
	}
	plain := archiveOf(b, items...)
	for name, data := range map[string][]byte{"plain": plain, "gzip": zipped(b, plain)} {
		b.Run(name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "root.tar")
			must(b, os.WriteFile(path, data, 0o644))
			b.SetBytes(int64(len(plain)))
			for b.Loop() {
				f, _, err := newStore(b).openTar(b.Context(), path, "", nil)
				must(b, err, f.Close())
			}
		})
	}
}
