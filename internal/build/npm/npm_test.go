package npm_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/npm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// registry is one of npm's, and what a lock file says of it.
type registry struct {
	*httptest.Server
	mu       sync.Mutex
	files    map[string][]byte // by path
	packages map[string]map[string]any
}

func newRegistry(tb testing.TB) *registry {
	tb.Helper()
	r := &registry{files: map[string][]byte{}, packages: map[string]map[string]any{"": {"name": "all"}}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		data, ok := r.files[q.URL.Path]
		r.mu.Unlock()
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(data) // the client may have gone
	}))
	tb.Cleanup(r.Close)
	return r
}

// publish puts a package where a lock file has it at a path, with more that this says.
func (r *registry) publish(tb testing.TB, at, url string, more map[string]any, headers ...tar.Header) {
	tb.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range headers {
		text := "the file " + h.Name
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(text))
		}
		must(tb, w.WriteHeader(&h))
		if h.Size > 0 {
			_, err := io.WriteString(w, text)
			must(tb, err)
		}
	}
	must(tb, w.Close(), z.Close())
	r.put(url, b.Bytes())
	sum := sha512.Sum512(b.Bytes())
	p := map[string]any{"version": "1.0.0", "integrity": "sha1-x sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
	maps.Copy(p, more)
	r.packages[at] = p
}

func (r *registry) put(url string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[url] = data
}

func (r *registry) lock(tb testing.TB) npm.Lock {
	tb.Helper()
	data, err := json.Marshal(map[string]any{"lockfileVersion": 3, "packages": r.packages})
	must(tb, err)
	l, err := npm.ParseLock(data)
	must(tb, err)
	return l
}

func file(name string, mode int64) tar.Header { return tar.Header{Name: name, Mode: mode} }

// TestTree makes a directory of packages, the second time without a registry.
func TestTree(t *testing.T) {
	t.Parallel()
	r := newRegistry(t)
	r.publish(t, "node_modules/tool", "/tool/-/tool-1.0.0.tgz", map[string]any{"bin": map[string]string{"tool": "./cli.js", "again": "cli.js"}},
		file("package/cli.js", 0o600), file("./package/./lib/run.sh", 0o700), file("package/package.json", 0o666),
		tar.Header{Name: "package/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"})
	r.publish(t, "node_modules/tool/lib/node_modules/@of/part", "/@of/part/-/part-1.0.0.tgz", nil, file("any/index.js", 0o644))
	r.publish(t, "node_modules/as", "/@of/other/-/other-2.0.0-linux.tgz", map[string]any{"name": "@of/other", "version": "2.0.0-linux", "os": "linux"}, file("package/a", 0o644))
	r.packages["node_modules/mac"] = map[string]any{"version": "1.0.0", "integrity": r.packages["node_modules/as"]["integrity"], "os": []string{"darwin"}, "optional": true}
	r.packages["node_modules/tests"] = map[string]any{"version": "1.0.0", "dev": true}
	s := npm.Source{Dir: t.TempDir(), Registries: []string{"http://127.0.0.1:1", r.URL}}
	for range 2 {
		tree, err := s.Tree(t.Context(), r.lock(t), "/opt/x")
		must(t, err)
		got := map[string]string{}
		for in := tar.NewReader(tree); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			text, err := io.ReadAll(in)
			must(t, err)
			if got[h.Name] != "" {
				t.Errorf("%s is there twice", h.Name)
			}
			got[h.Name] = strings.TrimSpace(fmt.Sprintf("%c %o %d:%d %s%s", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, text))
		}
		must(t, tree.Close())
		const dir = "5 755 0:0"
		want := map[string]string{
			"opt/x/node_modules/": dir, "opt/x/node_modules/.bin/": dir, "opt/x/node_modules/as/": dir, "opt/x/node_modules/tool/": dir, "opt/x/node_modules/tool/lib/": dir,
			"opt/x/node_modules/tool/lib/node_modules/": dir, "opt/x/node_modules/tool/lib/node_modules/@of/": dir, "opt/x/node_modules/tool/lib/node_modules/@of/part/": dir,
			"opt/x/node_modules/tool/cli.js": "0 755 0:0 the file package/cli.js", "opt/x/node_modules/tool/lib/run.sh": "0 755 0:0 the file ./package/./lib/run.sh",
			"opt/x/node_modules/tool/package.json": "0 644 0:0 the file package/package.json", "opt/x/node_modules/tool/lib/node_modules/@of/part/index.js": "0 644 0:0 the file any/index.js",
			"opt/x/node_modules/as/a":      "0 644 0:0 the file package/a",
			"opt/x/node_modules/.bin/tool": "2 777 0:0 ../tool/cli.js", "opt/x/node_modules/.bin/again": "2 777 0:0 ../tool/cli.js",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		s.Registries = s.Registries[:1]
	}
}

// TestHostilePackages meets registries and packages that are not what they should be.
func TestHostilePackages(t *testing.T) {
	t.Parallel()
	const url = "/bad/-/bad-1.0.0.tgz"
	for name, tc := range map[string]struct {
		entry tar.Header
		spoil func(*registry)
		code  sandpit.Code
		says  string
	}{
		"other bytes":      {file("package/a", 0o644), func(r *registry) { r.put(url, []byte("no")) }, sandpit.Unavailable, "fetch the package bad: bad/-/bad-1.0.0.tgz: the contents from the mirror do not match their digest"},
		"nothing":          {file("package/a", 0o644), func(r *registry) { delete(r.files, url) }, sandpit.NotFound, "the mirror does not have the file"},
		"a way out":        {file("package/../../../etc/passwd", 0o644), nil, sandpit.Invalid, `the package bad: invalid file name "package/../../../etc/passwd"`},
		"a way to /":       {file("package//etc/passwd", 0o644), nil, sandpit.Invalid, "invalid file name"},
		"a layer's mark":   {file("package/x/.wh.y", 0o644), nil, sandpit.Invalid, "invalid file name"},
		"no directory":     {file("a", 0o644), nil, sandpit.Invalid, "invalid file name"},
		"an endless file":  {tar.Header{Name: "package/a", Typeflag: tar.TypeReg, Size: 9 << 30}, nil, sandpit.Exhausted, "more than 8589934592 bytes"},
		"a file cut short": {tar.Header{Name: "package/a", Typeflag: tar.TypeReg, Size: 1000}, nil, sandpit.Invalid, "not an npm package"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t)
			publishCut(t, r, tc.entry)
			l := r.lock(t)
			if tc.spoil != nil {
				tc.spoil(r)
			}
			tree, err := npm.Source{Dir: t.TempDir(), Registries: []string{r.URL}}.Tree(t.Context(), l, "/opt")
			if err == nil {
				must(t, tree.Close())
			}
			if sandpit.CodeOf(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.says) {
				t.Errorf("%v, a %s error", err, sandpit.CodeOf(err))
			}
		})
	}
}

// publishCut publishes a package with one file, which may end before its header says.
func publishCut(tb testing.TB, r *registry, h tar.Header) {
	tb.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
	}
	must(tb, w.WriteHeader(&h), z.Close())
	sum := sha512.Sum512(b.Bytes())
	r.put("/bad/-/bad-1.0.0.tgz", b.Bytes())
	r.packages["node_modules/bad"] = map[string]any{"version": "1.0.0", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
}

var sum = "sha512-" + base64.StdEncoding.EncodeToString(make([]byte, 64))

// TestLocksRefused reads lock files from which nothing is taken.
func TestLocksRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		code sandpit.Code
		says string
	}{
		``:                                      {sandpit.Invalid, "not a lock file of npm"},
		`{"lockfileVersion": 1}`:                {sandpit.Invalid, "lock file of version 1, want 2 or 3"},
		strings.Repeat(" ", npm.MaxLock) + `{}`: {sandpit.Invalid, "at most 1048576 bytes"},
		one(`"node_modules/a": {"version": "1.0.0"}`):                                                                {sandpit.Invalid, `"node_modules/a": the package has no SHA-512 digest`},
		one(`"node_modules/a": {"version": "1.0.0", "integrity": "sha1-x"}`):                                         {sandpit.Invalid, "the package has no SHA-512 digest"},
		one(`"node_modules/a": {"version": "1.0.0", "integrity": "sha512-AAAA"}`):                                    {sandpit.Invalid, "the package has no SHA-512 digest"},
		one(`"node_modules/a": {"version": "../../b", "integrity": "` + sum + `"}`):                                  {sandpit.Invalid, "not from a registry"},
		one(`"node_modules/a": {"version": "1.0.0", "name": "../b", "integrity": "` + sum + `"}`):                    {sandpit.Invalid, "not from a registry"},
		one(`"node_modules/../a": {"version": "1.0.0", "integrity": "` + sum + `"}`):                                 {sandpit.Invalid, "not from a registry"},
		one(`"packages/a": {"version": "1.0.0", "integrity": "` + sum + `"}`):                                        {sandpit.Invalid, "not from a registry"},
		one(`"node_modules/.bin": {"version": "1.0.0", "integrity": "` + sum + `"}`):                                 {sandpit.Invalid, "not from a registry"},
		one(`"node_modules/a": {"link": true, "resolved": "packages/a"}`):                                            {sandpit.Invalid, "not from a registry"},
		one(`"node_modules/a": {"version": "1.0.0", "resolved": "git+ssh://x/a.git#1", "integrity": "` + sum + `"}`): {sandpit.Invalid, "not from a registry"},
		one(`"node_modules/a": {"version": "1.0.0", "os": ["!linux"], "integrity": "` + sum + `"}`):                  {sandpit.Unsupported, "is not for this machine"},
		one(`"node_modules/a": {"version": "1.0.0", "libc": ["musl"], "integrity": "` + sum + `"}`):                  {sandpit.Unsupported, "is not for this machine"},
		one(`"node_modules/a": {"version": "1.0.0", "bin": {"../x": "a"}, "integrity": "` + sum + `"}`):              {sandpit.Invalid, `invalid command "../x"`},
		one(`"node_modules/a": {"version": "1.0.0", "bin": {"x": "../../../bin/sh"}, "integrity": "` + sum + `"}`):   {sandpit.Invalid, `invalid command "x" with the program "../../../bin/sh"`},
		one(`"node_modules/a": {"version": "1.0.0", "bin": {"x": "/bin/sh"}, "integrity": "` + sum + `"}`):           {sandpit.Invalid, `invalid command "x" with the program "/bin/sh"`},
		one(many(5001)): {sandpit.Invalid, "more than 5000 packages"},
	} {
		if _, err := npm.ParseLock([]byte(text)); sandpit.CodeOf(err) != want.code || !strings.Contains(fmt.Sprint(err), want.says) {
			t.Errorf("%.200s: %v", text, err)
		}
	}
}

func one(text string) string { return `{"lockfileVersion": 3, "packages": {` + text + `}}` }

func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"node_modules/p%d": {}, `, i)
	}
	return strings.TrimSuffix(b.String(), ", ")
}

// FuzzLock reads lock files and expects paths that lead nowhere else.
func FuzzLock(f *testing.F) {
	f.Add([]byte(one(`"node_modules/a": {"version": "1.0.0", "bin": {"x": "./a.js"}, "os": "linux", "cpu": ["!ia32"], "integrity": "` + sum + `"}`)))
	f.Add([]byte(one(`"": {}, "node_modules/@a/b/node_modules/c": {"version": "1.0.0-rc.1+x", "resolved": "https://x/", "integrity": "` + sum + `"}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := npm.ParseLock(data)
		if err != nil {
			return
		}
		for _, p := range l.Packages {
			text := fmt.Sprint(p.Path, " ", p.Name, " ", p.Version, " ", p.Bin)
			if strings.Contains(text, "../") || strings.ContainsAny(p.Name+p.Version, "?#%\\ ") || len(p.SHA512) != 128 {
				t.Errorf("%s: %+v", data, p)
			}
		}
	})
}
