package providertest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func treeChecks() []check {
	return []check{
		{"read", readTree},
		{"write", writeTree},
		{"round trip", treeRoundTrip},
		{"of one file", treeOfFile},
		{"members that lead outside", treeOutside},
		{"not a tar stream", notTar},
		{"errors", treeErrors},
		{"many files", treeOfMany},
	}
}

// emptyTar is a tar stream without members.
var emptyTar = strings.Repeat("\x00", 1024)

// member is one member of a tar stream.
type member struct {
	tar.Header

	content string
}

// plant creates a tree with every kind of member.
const plant = `cd "$1" && mkdir -p dir/sub empty 'odd name ü' && echo text > dir/file && echo deep > dir/sub/deep &&
printf 'a\377b' > 'odd name ü/bytes' && : > nothing && chmod 700 dir && chmod 640 dir/file && chmod 755 nothing &&
ln -s dir/file link && ln -s /no/where dangling && ln -s ../.. dir/up && ln dir/file hard &&
TZ=UTC touch -d '2001-02-03 04:05:06' dir/file empty && mkfifo pipe`

// readMembers reads a tar stream.
func readMembers(c *trial, r io.Reader) map[string]member {
	c.Helper()
	all := make(map[string]member)
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		c.must(err, "read the tar stream")
		data, err := io.ReadAll(t)
		c.must(err, "read the tar stream")
		if _, twice := all[h.Name]; twice {
			c.Errorf("member %s comes twice", h.Name)
		}
		if len(all) == 0 && h.Typeflag == tar.TypeDir {
			equal(c, "first member", h.Name, "./")
		}
		all[h.Name] = member{*h, string(data)}
	}
}

// newStream returns a tar stream.
func newStream(c *trial, members ...member) *bytes.Buffer {
	c.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, m := range members {
		if m.Typeflag == 0 {
			m.Typeflag = tar.TypeReg
		}
		if m.Mode == 0 {
			m.Mode = 0o644
		}
		m.Size = int64(len(m.content))
		c.must(w.WriteHeader(&m.Header), "write a header")
		_, err := io.WriteString(w, m.content)
		c.must(err, "write content")
	}
	c.must(w.Close(), "close")
	return &buf
}

func file(name, content string) member { return member{tar.Header{Name: name}, content} }

func readTree(c *trial) {
	dir := c.dir()
	c.shell(plant, dir)
	r, err := c.guest().ReadTree(c.ctx(), "", dir)
	c.must(err, "read the tree")
	all := readMembers(c, r)
	c.must(r.Close(), "close")
	clean := make(map[string]member)
	for name, m := range all {
		clean[strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")] = m
	}
	names := strings.Join(slices.Sorted(maps.Keys(clean)), "|")
	equal(c, "names", names, "|dangling|dir|dir/file|dir/sub|dir/sub/deep|dir/up|empty|hard|link|nothing|odd name ü|odd name ü/bytes")
	equal(c, "link", clean["link"].Linkname, "dir/file")
	equal(c, "link", clean["dangling"].Linkname, "/no/where")
	equal(c, "content", clean["odd name ü/bytes"].content, "a\xffb")
	first := clean["dir/file"]
	if first.Typeflag == tar.TypeLink {
		first = clean["hard"]
	}
	equal(c, "content", first.content, "text\n")
	equal(c, "mode", first.Mode&0o777, 0o640)
	equal(c, "mode of a directory", clean["dir"].Mode&0o777, 0o700)
	if want := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC); !first.ModTime.Equal(want) {
		c.Errorf("time: got %s, want %s", first.ModTime, want)
	}
}

func writeTree(c *trial) {
	dir := c.dir() + "/made/if/missing"
	at := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	stream := newStream(c,
		member{tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o750}, ""},
		member{tar.Header{Name: "script", Mode: 0o755, ModTime: at}, "#!/bin/sh\necho ran\n"},
		member{tar.Header{Name: "closed/", Typeflag: tar.TypeDir, Mode: 0o555}, ""},
		file("closed/file", "in a directory that is closed"),
		file("without/parents/file", "deep"),
		member{tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "script"}, ""},
		member{tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "script"}, ""},
	)
	c.must(c.guest().WriteTree(c.ctx(), "", dir, stream), "write the tree")
	script := `cd "$1"; stat -c %a . script closed; ./script; cat closed/file without/parents/file; readlink link; stat -c %h hard; stat -c %Y script; chmod 755 closed`
	want := "750\n755\n555\nran\nin a directory that is closeddeepscript\n2\n" + fmt.Sprintln(at.Unix())
	equal(c, "the tree", c.shell(script, dir), want)
}

func treeRoundTrip(c *trial) {
	from, to := c.dir(), c.dir()
	c.shell(plant, from)
	r, err := c.guest().ReadTree(c.ctx(), "", from)
	c.must(err, "read the tree")
	c.must(c.guest().WriteTree(c.ctx(), "", to, r), "write the tree")
	c.must(r.Close(), "close")
	const describe = `cd "$1"; rm -f pipe; find . | LC_ALL=C sort | while read -r f; do
		stat -c '%n %A %h' "$f"; test -L "$f" && readlink "$f"; test -f "$f" && ! test -L "$f" && stat -c '%s %Y' "$f" && sha256sum < "$f"; done; :`
	before, after := c.shell(describe, from), c.shell(describe, to)
	equal(c, "the tree", after, before)
	equal(c, "time of an empty directory", c.shell(`stat -c %Y "$1/empty"`, to), c.shell(`stat -c %Y "$1/empty"`, from))
}

func treeOfFile(c *trial) {
	dir := c.dir()
	c.put(dir+"/a file", "content")
	r, err := c.guest().ReadTree(c.ctx(), "", dir+"/a file")
	c.must(err, "read the tree")
	defer r.Close()
	all := readMembers(c, r)
	equal(c, "number of members", len(all), 1)
	equal(c, "content", all["a file"].content, "content")
}

func treeOutside(c *trial) {
	base := c.dir()
	const outside = "../outside"
	link := member{tar.Header{Name: "way", Typeflag: tar.TypeSymlink, Linkname: outside}, ""}
	absolute := member{tar.Header{Name: "way", Typeflag: tar.TypeSymlink, Linkname: base + "/outside"}, ""}
	each(c, []named[[]member]{
		{"dots", []member{file(outside+"/file", "changed")}},
		{"dots inside", []member{file("a/../"+outside+"/file", "changed")}},
		{"absolute", []member{file(base+"/outside/file", "changed")}},
		{"through a link", []member{link, file("way/file", "changed")}},
		{"through an absolute link", []member{absolute, file("way/file", "changed")}},
		{"a hard link", []member{{tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: outside + "/file"}, ""}, file("hard", "changed")}},
		{"a hard link through a link", []member{link, {tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "way/file"}, ""}}},
		{"a directory that is a link", []member{link, {tar.Header{Name: "way/", Typeflag: tar.TypeDir, Mode: 0o777}, ""}, file("way/new", "new")}},
		{"a directory below a link", []member{link, {tar.Header{Name: "way/sub/", Typeflag: tar.TypeDir, Mode: 0o777}, ""}}},
		{"a link below a link", []member{link, {tar.Header{Name: "way/file", Typeflag: tar.TypeSymlink, Linkname: "x"}, ""}}},
	}, func(c *trial, members []member) {
		base := c.dirIn(c.box, base)
		c.shell(`mkdir "$1/outside" "$1/tree"; echo untouched > "$1/outside/file"`, base)
		for i := range members {
			members[i].Linkname = strings.Replace(members[i].Linkname, path.Dir(base)+"/", base+"/", 1)
			members[i].Name = strings.Replace(members[i].Name, path.Dir(base)+"/", base+"/", 1)
		}
		err := c.guest().WriteTree(c.ctx(), "", base+"/tree", newStream(c, append([]member{file("first", "fine")}, members...)...))
		if err != nil || strings.Contains(members[len(members)-1].Name, outside) {
			c.wantCode(err, "write the tree", sandpit.Invalid)
		}
		equal(c, "the member before", c.get(base+"/tree/first"), "fine")
		const look = `cd "$1/outside"; ls; cat file; stat -c %a .; stat -c %h file`
		equal(c, "outside", c.shell(look, base), "file\nuntouched\n755\n1\n")
	})
}

func notTar(c *trial) {
	whole := newStream(c, file("a", strings.Repeat("x", 10_000))).String()
	for name, stream := range map[string]string{
		"text":           strings.Repeat("this is not a tar stream. ", 100),
		"noise":          string(noise(4096)),
		"a broken end":   whole[:5000],
		"a broken start": whole[100:],
		"nothing":        "",
	} {
		err := c.guest().WriteTree(c.ctx(), "", c.dir(), strings.NewReader(stream))
		c.wantCode(err, name, sandpit.Invalid)
	}
	c.must(c.guest().WriteTree(c.ctx(), "", c.dir(), strings.NewReader(emptyTar)), "write an empty tree")
}

func treeErrors(c *trial) {
	dir := c.dir()
	_, err := c.guest().ReadTree(c.ctx(), "", dir+"/none")
	c.wantCode(err, "read the tree of nothing", sandpit.NotFound)
	c.put(dir+"/file", "")
	err = c.guest().WriteTree(c.ctx(), "", dir+"/file", newStream(c, file("a", "x")))
	c.wantCode(err, "write a tree where a file is", sandpit.Invalid)
	_, err = c.guest().ReadTree(c.ctx(), "nobody-knows", dir)
	c.wantCode(err, "an unknown user", sandpit.Invalid)
	failing := io.MultiReader(strings.NewReader(newStream(c, file("a", "x")).String()[:700]), failingReader{})
	if err := c.guest().WriteTree(c.ctx(), "", dir, failing); !errors.Is(err, errFailing) {
		c.Errorf("write what cannot be read: %v, want the reader's error", err)
	}
}

func treeOfMany(c *trial) {
	const many = 1000
	dir := c.dir()
	members := make([]member, many)
	for i := range members {
		members[i] = file(fmt.Sprintf("d%d/file%d", i%10, i), fmt.Sprint("content ", i))
	}
	c.must(c.guest().WriteTree(c.ctx(), "", dir, newStream(c, members...)), "write the tree")
	equal(c, "number of files", strings.TrimSpace(c.shell(`find "$1" -type f | wc -l`, dir)), strconv.Itoa(many))
	r, err := c.guest().ReadTree(c.ctx(), "", dir)
	c.must(err, "read the tree")
	all := readMembers(c, r)
	c.must(r.Close(), "close")
	equal(c, "number of members", len(all), many+11)
}
