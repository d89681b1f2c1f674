package debian_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/debian"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPlan chooses packages.
func TestPlan(t *testing.T) {
	t.Parallel()
	m := newMirror(t)
	s := m.source(t)
	first := []string{"first apt=1", "first base=1", "first libc=2-1", "first mawk=1"}
	for text, want := range map[string][]string{
		"apt:test":                  first,
		"apt:test,tool":             append(first[:4:4], "tool=1:2.0-1"),
		"apt:test,tool=1:2.0~rc1-1": append(first[:4:4], "gawk=1", "tool=1:2.0~rc1-1"),
		"apt:test,loop-a,libc,awk":  append(first[:4:4], "loop-a=1", "loop-b=1"),
		"apt:test,tool,tool":        append(first[:4:4], "tool=1:2.0-1"),
	} {
		plan, err := s.Plan(t.Context(), request(t, text), false, nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, names(plan.Packages)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	for text, want := range map[string]struct {
		code sandpit.Code
		says string
	}{
		"apt:test,nothing": {sandpit.NotFound, "choose packages of test: package nothing not found"},
		"apt:test,tool=3":  {sandpit.NotFound, "package tool=3 not found"},
		"apt:test,broken":  {sandpit.Invalid, "package broken depends on libc (>= 9) | nothing, which does not exist"},
		"apt:test,libc=1":  {sandpit.NotFound, "package libc=1 not found"},
		"apt:nothing":      {sandpit.NotFound, "debian/dists/nothing/InRelease: the mirror does not have the file"},
	} {
		if _, err := s.Plan(t.Context(), request(t, text), false, nil); sandpit.CodeOf(err) != want.code || !strings.Contains(fmt.Sprint(err), want.says) {
			t.Errorf("%s: %v, a %s error", text, err, sandpit.CodeOf(err))
		}
	}
	for _, text := range []string{"apt:", "apt:Test", "apt:../x", "apt:test,", "apt:test,A", "apt:test,-o", "apt:test,x;y", "apt:test,x=$(y)"} {
		if _, ok, err := debian.ParseRequest(text); !ok || sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%s: %v, %v", text, ok, err)
		}
	}
	if _, ok, err := debian.ParseRequest("debian:bookworm"); ok || err != nil {
		t.Errorf("an image of a registry: %v, %v", ok, err)
	}
}

// TestPlanStays asks again, without a mirror, and after there is something newer.
func TestPlanStays(t *testing.T) {
	t.Parallel()
	m := newMirror(t)
	s := m.source(t)
	r := request(t, "apt:test,tool")
	plan, err := s.Plan(t.Context(), r, false, nil)
	must(t, err)
	newer := append(packages(), deb{fields: "Package: tool\nVersion: 1:2.1\nPriority: optional", pack: "xz"})
	m.publish(t, today, newer)
	again, err := s.Plan(t.Context(), r, false, nil)
	must(t, err)
	if diff := cmp.Diff(plan, again); diff != "" || plan.Digest() != again.Digest() {
		t.Error(diff)
	}
	fresh, err := s.Plan(t.Context(), r, true, nil)
	must(t, err)
	if fresh.Digest() == plan.Digest() || !strings.Contains(fmt.Sprint(names(fresh.Packages)), "tool=1:2.1") {
		t.Errorf("fresh: %v", names(fresh.Packages))
	}
}

// TestRoot reads the archive of a root file system, the second time without a mirror.
func TestRoot(t *testing.T) {
	t.Parallel()
	m := newMirror(t)
	s := m.source(t)
	plan, err := s.Plan(t.Context(), request(t, "apt:test,tool"), false, nil)
	must(t, err)
	var done, total int64
	for range 2 {
		root, err := s.Root(t.Context(), plan, func(d, of int64) { done, total = d, of })
		must(t, err)
		expectRoot(t, root, plan)
		must(t, root.Close())
		m.lie(func(string, []byte) []byte { return nil })
	}
	if done != total || total == 0 {
		t.Errorf("progress: %d of %d bytes", done, total)
	}
	if args := debian.Configure(plan); args[len(args)-1] != "tool" {
		t.Errorf("%q", args)
	}
}

func expectRoot(tb testing.TB, root io.Reader, plan debian.Plan) {
	tb.Helper()
	got := map[string]string{}
	texts := map[string]string{}
	for r := tar.NewReader(root); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(tb, err)
		text, err := io.ReadAll(r)
		must(tb, err)
		if _, twice := got[h.Name]; twice {
			tb.Errorf("%s is there twice", h.Name)
		}
		got[h.Name], texts[h.Name] = fmt.Sprintf("%c %o %s", h.Typeflag, h.Mode, h.Linkname), string(text)
	}
	want := map[string]string{
		"usr/bin/sh": "0 755 ", "usr/lib/libc.so": "0 755 ", "usr/sbin/hard": "1 0 usr/bin/sh", "etc/link": "2 0 ../bin/sh", "bin": "2 777 usr/bin",
		"usr/bin/su": "0 4755 ", "var/lib/dpkg/status": "0 644 ", "usr/sbin/policy-rc.d": "0 755 ",
	}
	for name, is := range want {
		if got[name] != is {
			tb.Errorf("%s: %q, want %q", name, got[name], is)
		}
	}
	list := texts["var/cache/sandpit-packages/Packages"]
	for _, p := range plan.Packages {
		sub := ""
		if p.First {
			sub = "first/"
		}
		name := sub + p.Name + "_" + p.SHA256[:16] + ".deb"
		if len(texts["var/cache/sandpit-packages/"+name]) != int(p.Size) || !strings.Contains(list, "\nFilename: ./"+name+"\n") {
			tb.Errorf("%s is missing, or in no list", name)
		}
	}
	if strings.Contains(list, "pool/") {
		tb.Errorf("the list tells of the mirror:\n%s", list)
	}
}

// TestHostileMirrors meets mirrors that lie, and expects nothing of what they say to be
// taken.
func TestHostileMirrors(t *testing.T) {
	t.Parallel()
	const release, index = "/debian/dists/test/InRelease", "/debian/dists/test/main/"
	swap := func(at string, f func([]byte) []byte) func(*testing.T, *mirror) {
		return func(_ *testing.T, m *mirror) {
			m.lie(func(path string, data []byte) []byte {
				if strings.HasPrefix(path, at) {
					return f(data)
				}
				return data
			})
		}
	}
	signed := func(text func(m *mirror) string) func(*testing.T, *mirror) {
		return func(t *testing.T, m *mirror) {
			t.Helper()
			m.put("debian/dists/test/InRelease", m.sign(t, m.key, text(m)))
		}
	}
	for name, tc := range map[string]struct {
		do   func(*testing.T, *mirror)
		code sandpit.Code
		says string
	}{
		"no signature": {swap(release, func([]byte) []byte { return []byte("Suite: test\n") }), sandpit.Invalid, "not a signed text"},
		"a changed text": {
			swap(release, func(d []byte) []byte { return []byte(strings.Replace(string(d), "Origin: Test", "Origin: Tess", 1)) }),
			sandpit.PermissionDenied, "not signed by Debian's archive",
		},
		"text behind the signature": {swap(release, func(d []byte) []byte { return append(d, "Suite: test\n"...) }), sandpit.Invalid, "not a signed text"},
		"key of another repository": {func(t *testing.T, m *mirror) {
			t.Helper()
			m.put("debian/dists/test/InRelease", m.sign(t, newKey(t), releaseText("test", today, today.Add(time.Hour), "x", nil)))
		}, sandpit.PermissionDenied, "not signed by Debian's archive"},
		"another release": {signed(func(*mirror) string { return releaseText("other", today, today.Add(time.Hour), "x", nil) }), sandpit.PermissionDenied, "the release file is for \"other\", not for test"},
		"no longer valid": {
			signed(func(*mirror) string {
				return releaseText("test", today.Add(-time.Hour), today.Add(-time.Minute), "x", nil)
			}),
			sandpit.PermissionDenied, "the release was valid until 2030-06-01T11:59:00Z",
		},
		"from the future": {
			signed(func(*mirror) string {
				return releaseText("test", today.Add(48*time.Hour), today.Add(96*time.Hour), "x", nil)
			}),
			sandpit.PermissionDenied, "in the future",
		},
		"older than before": {
			signed(func(*mirror) string {
				return releaseText("test", today.Add(-2*time.Hour), today.Add(time.Hour), "x", nil)
			}),
			sandpit.PermissionDenied, "was seen before",
		},
		"nothing for this machine": {signed(func(*mirror) string { return releaseText("test", today, today.Add(time.Hour), "x", nil) }), sandpit.NotFound, "no packages for"},
		"an endless release":       {swap(release, func([]byte) []byte { return make([]byte, 5<<20) }), sandpit.Exhausted, "more than 4194304 bytes"},
		"another list":             {swap(index, func(d []byte) []byte { return append(d[:len(d)-1:len(d)-1], 0) }), sandpit.Unavailable, "do not match their digest"},
		"a longer list":            {swap(index, func(d []byte) []byte { return append(slices.Clip(d), make([]byte, 1<<20)...) }), sandpit.Unavailable, "do not match their digest"},
		"a shorter list":           {swap(index, func(d []byte) []byte { return d[:len(d)/2] }), sandpit.Unavailable, "do not match their digest"},
		"another package":          {swap("/debian/pool/0.deb", func(d []byte) []byte { return append(d[:len(d)-1:len(d)-1], 0) }), sandpit.Unavailable, "fetch the package base"},
		"a name that leads out":    {publishing("./../../etc/passwd"), sandpit.Invalid, `invalid file name "./../../etc/passwd"`},
		"no package":               {raw([]byte("PK")), sandpit.Invalid, "not a Debian package"},
		"a package without files":  {raw([]byte("!<arch>\n")), sandpit.Invalid, "the package has no files"},
		"a member without size":    {raw([]byte("!<arch>\n" + strings.Repeat("x", 60))), sandpit.Invalid, "a member of the package has an invalid size"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMirror(t)
			s := m.source(t)
			_, err := s.Plan(t.Context(), request(t, "apt:test"), false, nil) // what was seen before
			must(t, err)
			s.Dir = copyOfSeen(t, s.Dir)
			tc.do(t, m)
			plan, err := s.Plan(t.Context(), request(t, "apt:test,loop-a"), true, nil)
			if err == nil {
				var root io.ReadCloser
				if root, err = s.Root(t.Context(), plan, nil); err == nil {
					must(t, root.Close())
				}
			}
			if sandpit.CodeOf(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.says) {
				t.Errorf("%v, a %s error", err, sandpit.CodeOf(err))
			}
		})
	}
}

// publishing has the archive itself sign a package with a file of that name.
func publishing(name string) func(*testing.T, *mirror) {
	return func(t *testing.T, m *mirror) {
		t.Helper()
		debs := packages()
		debs[0].files = append(debs[0].files, file(name))
		m.publish(t, today, debs)
	}
}

func raw(data []byte) func(*testing.T, *mirror) {
	return func(t *testing.T, m *mirror) {
		t.Helper()
		debs := packages()
		debs[0].raw = data
		m.publish(t, today, debs)
	}
}

// TestLists has the archive sign lists that make no sense.
func TestLists(t *testing.T) {
	t.Parallel()
	for fields, says := range map[string]string{
		"Package: ../x\nVersion: 1":                     "invalid package",
		"Package: x\nVersion: 1 2":                      "invalid package",
		"Package: x\nVersion: 1\nVersion: 2":            "duplicate field",
		"Package: x\nVersion: 1\nno field":              "invalid field",
		" begins in the middle\nPackage: x\nVersion: 1": "continuation line",
	} {
		m := newMirror(t)
		m.publish(t, today, append(packages(), deb{fields: fields, pack: "xz"}))
		if _, err := m.source(t).Plan(t.Context(), request(t, "apt:test"), false, nil); sandpit.CodeOf(err) != sandpit.Invalid || !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%q: %v", fields, err)
		}
	}
}

// TestNextMirror asks one that is not there and one that lies before a good one.
func TestNextMirror(t *testing.T) {
	t.Parallel()
	liar, good := newMirror(t), newMirror(t)
	liar.lie(func(string, []byte) []byte { return []byte("no") })
	s := good.source(t)
	s.Mirrors = []string{"127.0.0.1:1", good.host}
	plan, err := s.Plan(t.Context(), request(t, "apt:test,tool"), false, nil)
	must(t, err)
	s.Mirrors = []string{liar.host, good.host}
	root, err := s.Root(t.Context(), plan, nil)
	must(t, err)
	must(t, root.Close())

	elsewhere := httptest.NewServer(http.RedirectHandler("http://localhost:"+strings.Split(good.host, ":")[1]+"/debian/dists/test/InRelease", http.StatusFound))
	defer elsewhere.Close()
	before := good.count()
	s.Mirrors = []string{strings.TrimPrefix(elsewhere.URL, "http://")}
	if _, err := s.Plan(t.Context(), request(t, "apt:test"), false, nil); err == nil || !strings.Contains(err.Error(), "redirect to another host, \"localhost:") || good.count() != before {
		t.Errorf("sent to another host: %v", err)
	}
}

// TestDamagedCache has the disk change a package that was fetched.
func TestDamagedCache(t *testing.T) {
	t.Parallel()
	m := newMirror(t)
	s := m.source(t)
	plan, err := s.Plan(t.Context(), request(t, "apt:test"), false, nil)
	must(t, err)
	for range 2 {
		root, err := s.Root(t.Context(), plan, nil)
		must(t, err)
		expectRoot(t, root, plan)
		must(t, root.Close())
		one := plan.Packages[0]
		must(t, os.WriteFile(filepath.Join(s.Dir, one.SHA256), make([]byte, one.Size), 0o600))
	}
}

// copyOfSeen is a directory in which only what was seen is left.
func copyOfSeen(tb testing.TB, dir string) string {
	tb.Helper()
	to := tb.TempDir()
	files, err := filepath.Glob(filepath.Join(dir, "*.seen"))
	must(tb, err)
	for _, name := range files {
		data, err := os.ReadFile(name)
		must(tb, err, os.WriteFile(filepath.Join(to, filepath.Base(name)), data, 0o600))
	}
	return to
}
