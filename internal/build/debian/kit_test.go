package debian_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/ulikunitz/xz"

	"github.com/sandpit-dev/sandpit/internal/build/debian"
)

func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// today is the day of all tests.
var today = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

// mirror is one with a release of its own.
type mirror struct {
	host string
	key  *openpgp.Entity

	mu     sync.Mutex
	files  map[string][]byte
	asked  int
	change func(path string, data []byte) []byte // what the mirror makes of a file
}

func newKey(tb testing.TB) *openpgp.Entity {
	tb.Helper()
	key, err := openpgp.NewEntity("archive", "", "", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	must(tb, err)
	return key
}

func newMirror(tb testing.TB) *mirror {
	tb.Helper()
	m := &mirror{files: map[string][]byte{}, key: newKey(tb)}
	server := httptest.NewServer(m)
	tb.Cleanup(server.Close)
	m.host = strings.TrimPrefix(server.URL, "http://")
	m.publish(tb, today.Add(-time.Hour), packages())
	return m
}

func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.asked++
	data, ok := m.files[strings.TrimPrefix(r.URL.Path, "/")]
	if ok && m.change != nil {
		data = m.change(r.URL.Path, data)
	}
	m.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(data) // the client may have gone
}

// source is a Source of the mirror.
func (m *mirror) source(tb testing.TB) debian.Source {
	tb.Helper()
	var keys bytes.Buffer
	must(tb, m.key.Serialize(&keys))
	return debian.Source{Dir: tb.TempDir(), Mirrors: []string{m.host}, Keys: keys.Bytes(), Now: func() time.Time { return today }}
}

// deb is a package of the test's.
type deb struct {
	fields string // of its paragraph, but for those that publish adds
	part   string // debian or debian-security
	files  []tar.Header
	pack   string // xz or gz
	raw    []byte // in place of a package
}

func (d deb) bytes(tb testing.TB) []byte {
	tb.Helper()
	if d.raw != nil {
		return d.raw
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	for _, h := range d.files {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text = "file " + path.Base(h.Name)
		}
		h.Size = int64(len(text))
		must(tb, w.WriteHeader(&h))
		_, err := w.Write([]byte(text))
		must(tb, err)
	}
	must(tb, w.Close())
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	for _, m := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.xz", []byte("odd")}, {"data.tar." + d.pack, packed(tb, d.pack, files.Bytes())}} {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, 0, 0, 0, "100644", len(m.data))
		out.Write(m.data)
		if len(m.data)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}

func packed(tb testing.TB, kind string, data []byte) []byte {
	tb.Helper()
	var out bytes.Buffer
	if kind == "gz" {
		w := gzip.NewWriter(&out)
		_, err := w.Write(data)
		must(tb, err, w.Close())
		return out.Bytes()
	}
	w, err := xz.NewWriter(&out)
	must(tb, err)
	_, err = w.Write(data)
	must(tb, err, w.Close())
	return out.Bytes()
}

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755} }

// packages are the archive of the test.
func packages() []deb {
	return []deb{
		{fields: "Package: base\nVersion: 1\nEssential: yes\nPre-Depends: libc (>= 2)\nPriority: required", pack: "xz", files: []tar.Header{
			{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
			{Typeflag: tar.TypeDir, Name: "./bin/", Mode: 0o755},
			file("./bin/sh"),
			{Typeflag: tar.TypeSymlink, Name: "./etc/link", Linkname: "../bin/sh"},
			{Typeflag: tar.TypeLink, Name: "./sbin/hard", Linkname: "./bin/sh"},
			{Typeflag: tar.TypeReg, Name: "./usr/bin/su", Mode: 0o4755},
		}},
		{fields: "Package: libc\nVersion: 2-1\nPriority: optional", pack: "gz", files: []tar.Header{file("./lib/libc.so")}},
		{fields: "Package: apt\nVersion: 1\nDepends: libc (>= 2), missing | awk\nPriority: optional", pack: "xz"},
		{fields: "Package: mawk\nVersion: 1\nProvides: awk\nPriority: standard", pack: "xz"},
		{fields: "Package: gawk\nVersion: 1\nProvides: awk (= 5)\nPriority: optional", pack: "xz"},
		{fields: "Package: tool\nVersion: 1:2.0~rc1-1\nDepends: awk (>= 4), libc:any (<< 3~)\nPriority: optional", pack: "xz"},
		{fields: "Package: tool\nVersion: 1:2.0-1\nDepends: libc\nPriority: optional", part: "debian-security", pack: "xz"},
		{fields: "Package: broken\nVersion: 1\nDepends: libc (>= 9) | nothing\nPriority: optional", pack: "xz"},
		{fields: "Package: loop-a\nVersion: 1\nDepends: loop-b\nPriority: optional", pack: "xz"},
		{fields: "Package: loop-b\nVersion: 1\nDepends: loop-a\nPriority: optional", pack: "xz"},
	}
}

// publish makes a release of packages.
func (m *mirror) publish(tb testing.TB, date time.Time, debs []deb) {
	tb.Helper()
	lists := map[string]string{}
	for i, d := range debs {
		if d.part == "" {
			d.part = "debian"
		}
		data := d.bytes(tb)
		name := fmt.Sprintf("pool/%d.deb", i)
		m.put(d.part+"/"+name, data)
		lists[d.part] += fmt.Sprintf("%s\nFilename: %s\nSize: %d\nSHA256: %s\nDescription: a thing\n with two lines\n\n", d.fields, name, len(data), sum(data))
	}
	for _, p := range []struct{ base, suite string }{{"debian", "test"}, {"debian", "test-updates"}, {"debian-security", "test-security"}} {
		list := lists[p.base]
		if p.suite == "test-updates" {
			list = ""
		}
		index := packed(tb, "xz", []byte(list))
		name := "main/binary-" + runtime.GOARCH + "/Packages.xz"
		m.put(p.base+"/dists/"+p.suite+"/"+name, index)
		m.put(p.base+"/dists/"+p.suite+"/InRelease", m.sign(tb, m.key, releaseText(p.suite, date, date.Add(7*24*time.Hour), name, index)))
	}
}

const timeFormat = "Mon, 02 Jan 2006 15:04:05 UTC"

func releaseText(suite string, date, until time.Time, name string, data []byte) string {
	return fmt.Sprintf("Origin: Test\nSuite: old%s\nCodename: %[1]s\nDate: %s\nValid-Until: %s\nSHA256:\n %s %d %s\n",
		suite, date.UTC().Format(timeFormat), until.UTC().Format(timeFormat), sum(data), len(data), name)
}

func (m *mirror) sign(tb testing.TB, key *openpgp.Entity, text string) []byte {
	tb.Helper()
	var out bytes.Buffer
	w, err := clearsign.Encode(&out, key.PrivateKey, nil)
	must(tb, err)
	_, err = w.Write([]byte(text))
	must(tb, err, w.Close())
	return append(out.Bytes(), '\n')
}

func (m *mirror) put(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = data
}

// count is how often it was asked.
func (m *mirror) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// lie has the mirror change files.
func (m *mirror) lie(change func(path string, data []byte) []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.change = change
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

func names(packages []debian.Package) []string {
	set := map[string]bool{}
	for _, p := range packages {
		name := p.Name + "=" + p.Version
		if p.First {
			name = "first " + name
		}
		set[name] = true
	}
	return slices.Sorted(maps.Keys(set))
}

func request(tb testing.TB, text string) debian.Request {
	tb.Helper()
	r, ok, err := debian.ParseRequest(text)
	if err != nil || !ok {
		tb.Fatalf("%s: %v, %v", text, ok, err)
	}
	return r
}
