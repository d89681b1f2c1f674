package providertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func fileChecks() []check {
	return []check{
		{"write and read", writeAndRead},
		{"replace", replaceFile},
		{"parents are made", parentsMade},
		{"modes", modes},
		{"metadata", metadata},
		{"ranges", ranges},
		{"stat", statFile},
		{"owner", owner},
		{"list", listDir},
		{"make a directory", makeDir},
		{"move", move},
		{"remove", remove},
		{"not files", notFiles},
		{"files that do not know their size", sizeless},
		{"many write one file", manyWriters},
	}
}

func writeAndRead(c *trial) {
	dir := c.dir()
	for _, n := range []int{0, 1, 4096, 100_001, much} {
		name, data := fmt.Sprintf("%s/%d", dir, n), noise(n)
		err := c.guest().WriteFile(c.ctx(), "", name, bytes.NewReader(data), sandpit.WriteOptions{})
		c.must(err, "write")
		r, err := c.guest().ReadFile(c.ctx(), "", name)
		c.must(err, "open")
		hash := sha256.New()
		_, err = io.Copy(hash, r)
		c.must(err, "read")
		c.must(r.Close(), "close")
		equal(c, fmt.Sprintf("hash of %d bytes", n), [32]byte(hash.Sum(nil)), sha256.Sum256(data))
	}
	c.put(dir+"/text", "for a program\n")
	equal(c, "what a program reads", c.shell(`cat "$1/text"`, dir), "for a program\n")
	c.shell(`echo "from a program" > "$1/text"`, dir)
	equal(c, "what a program wrote", c.get(dir+"/text"), "from a program\n")
}

func replaceFile(c *trial) {
	dir := c.dir()
	name := dir + "/file"
	c.put(name, strings.Repeat("long", 1000))
	reading := c.start(shellCommand(`exec 3< "$1"; : > "$1.open"; while ! test -e "$1.go"; do sleep 0.02; done; wc -c <&3; cat <&3`, name))
	c.eventually("the file is open", func() bool {
		_, err := c.guest().Stat(c.ctx(), "", name+".open")
		return err == nil
	})
	c.put(name, "short")
	equal(c, "after", c.get(name), "short")
	c.put(name+".go", "")
	c.wait(reading)
	c.must(c.guest().Remove(c.ctx(), "", name+".go"), "remove")
	c.must(c.guest().Remove(c.ctx(), "", name+".open"), "remove")
	list, err := c.guest().ListDir(c.ctx(), "", dir, 1)
	c.must(err, "list")
	equal(c, "number of files after replacing", len(list), 1)
}

func parentsMade(c *trial) {
	dir := c.dir()
	c.put(dir+"/a/b/c", "deep")
	equal(c, "the file", c.get(dir+"/a/b/c"), "deep")
	equal(c, "directories", c.shell(`cd "$1"; stat -c %a a a/b`, dir), "755\n755\n")
}

func modes(c *trial) {
	name := c.dir() + "/file"
	mode := func(want fs.FileMode) {
		c.Helper()
		f, err := c.guest().Stat(c.ctx(), "", name)
		c.must(err, "stat")
		equal(c, "mode", f.Mode, want)
		equal(c, "mode inside", c.shell(`stat -c %a "$1"`, name), fmt.Sprintf("%o\n", want))
	}
	write := func(m fs.FileMode) {
		c.Helper()
		err := c.guest().WriteFile(c.ctx(), "", name, strings.NewReader("x"), sandpit.WriteOptions{Mode: m})
		c.must(err, "write")
	}
	write(0)
	mode(0o644)
	write(0o755)
	mode(0o755)
	write(0)
	mode(0o755) // unchanged
	write(0o600)
	mode(0o600)
	c.shell(`chmod 751 "$1"`, name)
	write(0)
	mode(0o751)
}

func metadata(c *trial) {
	name := c.dir() + "/file"
	write := func(marks map[string]string) error {
		return c.guest().WriteFile(c.ctx(), "", name, strings.NewReader("x"), sandpit.WriteOptions{Metadata: marks})
	}
	stat := func() map[string]string {
		f, err := c.guest().Stat(c.ctx(), "", name)
		c.must(err, "stat")
		return f.Metadata
	}
	err := write(map[string]string{"author": "me", "purpose": "a test, of marks"})
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		c.Skip("this sandbox's file system keeps no metadata")
	}
	c.must(err, "write")
	equal(c, "metadata", fmt.Sprint(stat()), "map[author:me purpose:a test, of marks]")
	list, err := c.guest().ListDir(c.ctx(), "", strings.TrimSuffix(name, "/file"), 1)
	if err != nil || len(list) != 1 || list[0].Metadata["author"] != "me" {
		c.Errorf("list: %+v, %v; want the metadata too", list, err)
	}
	c.must(write(map[string]string{"author": "you"}), "write")
	equal(c, "metadata", fmt.Sprint(stat()), "map[author:you]")
	c.must(write(nil), "write")
	equal(c, "number of marks", len(stat()), 0)
	for _, marks := range []map[string]string{{"with space": "x"}, {"": "x"}, {"a": "line\nbreak"}, {"Upper": "x"}} {
		c.wantCode(write(marks), fmt.Sprintf("metadata %q", marks), sandpit.Invalid)
	}
}

func ranges(c *trial) {
	name := c.dir() + "/file"
	const text = "0123456789"
	c.put(name, text)
	for _, r := range []struct{ offset, length int64 }{
		{0, 10}, {0, 1}, {3, 4}, {9, 1}, {9, 100}, {10, 1}, {1000, 5}, {0, 1 << 40}, {5, 0}, {0, 0}, {math.MaxInt64 - 1, 1},
	} {
		from := min(r.offset, int64(len(text)))
		want := text[from : from+min(r.length, int64(len(text))-from)]
		got := c.readAll(c.guest().ReadRange(c.ctx(), "", name, r.offset, r.length))
		equal(c, fmt.Sprintf("%d bytes from %d on", r.length, r.offset), got, want)
	}
	for _, r := range [][2]int64{{-1, 5}, {0, -1}, {math.MaxInt64, math.MaxInt64}} {
		_, err := c.guest().ReadRange(c.ctx(), "", name, r[0], r[1])
		c.wantCode(err, fmt.Sprintf("%d bytes from %d on", r[1], r[0]), sandpit.Invalid)
	}
	c.put(name, "")
	equal(c, "of an empty file", c.readAll(c.guest().ReadRange(c.ctx(), "", name, 0, 5)), "")
	_, err := c.guest().ReadRange(c.ctx(), "", name+"-none", 0, 5)
	c.wantCode(err, "of no file", sandpit.NotFound)
	_, err = c.guest().ReadRange(c.ctx(), "", c.workDir, 0, 5)
	c.wantCode(err, "of a directory", sandpit.Invalid)
}

func statFile(c *trial) {
	dir := c.dir()
	name := dir + "/a file"
	c.put(name, "12345")
	c.shell(`TZ=UTC touch -d '2001-02-03 04:05:06' "$1"`, name)
	f, err := c.guest().Stat(c.ctx(), "", name)
	c.must(err, "stat")
	equal(c, "name", f.Name, "a file")
	equal(c, "path", f.Path, name)
	equal(c, "size", f.Size, 5)
	equal(c, "mode", f.Mode, fs.FileMode(0o644))
	equal(c, "target", f.LinkTarget, "")
	if want := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC); !f.ModifiedAt.Equal(want) {
		c.Errorf("modified at %s, want %s", f.ModifiedAt, want)
	}
	f, err = c.guest().Stat(c.ctx(), "", dir)
	c.must(err, "stat")
	equal(c, "mode of a directory", f.Mode, fs.ModeDir|0o755)
	f, err = c.guest().Stat(c.ctx(), "", "/")
	c.must(err, "stat /")
	equal(c, "path of the root", f.Path, "/")
	_, err = c.guest().Stat(c.ctx(), "", name+"/below")
	c.wantCode(err, "stat what is below a file", sandpit.NotFound, sandpit.Invalid)
	_, err = c.guest().Stat(c.ctx(), "", dir+"/none")
	c.wantCode(err, "stat nothing", sandpit.NotFound)
	wantNotFoundText(c, err)
}

func owner(c *trial) {
	name := c.dir() + "/file"
	c.put(name, "")
	f, err := c.guest().Stat(c.ctx(), "", name)
	c.must(err, "stat")
	byName, byNumber := c.shell(`stat -c '%U %G' "$1"`, name), c.shell(`stat -c '%u %g' "$1"`, name)
	if got := f.Owner + " " + f.Group + "\n"; got != byName && got != byNumber { // the number if it has no name
		c.Errorf("owner and group: got %q, want %q", got, byName)
	}
	equal(c, "owner", c.shell(`stat -c %u "$1"`, name), c.shell("id -u"))
	_, err = c.guest().Stat(c.ctx(), "nobody-knows", name)
	c.wantCode(err, "an unknown user", sandpit.Invalid)
	err = c.guest().WriteFile(c.ctx(), "nobody-knows", name, strings.NewReader(""), sandpit.WriteOptions{})
	c.wantCode(err, "an unknown user", sandpit.Invalid)
	if !c.Isolated {
		return
	}
	name = c.dir() + "/new/file"
	c.must(c.guest().WriteFile(c.ctx(), "1234:2345", name, strings.NewReader(""), sandpit.WriteOptions{}), "write as another")
	equal(c, "owner and group", c.shell(`stat -c %u:%g "$1" "$(dirname "$1")"`, name), "1234:2345\n1234:2345\n")
	f, err = c.guest().Stat(c.ctx(), "", name)
	c.must(err, "stat")
	equal(c, "owner and group that have no name", f.Owner+":"+f.Group, "1234:2345")
}

func listDir(c *trial) {
	dir := c.dir()
	c.shell(`cd "$1"; mkdir -p b/deep/er z; echo 1 > a; echo 2 > b/file; echo 3 > b/deep/file; echo 4 > .hidden; ln -s b c`, dir)
	for depth, want := range map[int]string{
		-1: ".hidden a b c z",
		0:  ".hidden a b c z",
		1:  ".hidden a b c z",
		2:  ".hidden a b b/deep b/file c z",
		3:  ".hidden a b b/deep b/deep/er b/deep/file b/file c z",
		99: ".hidden a b b/deep b/deep/er b/deep/file b/file c z",
	} {
		list, err := c.guest().ListDir(c.ctx(), "", dir, depth)
		c.must(err, "list")
		var names []string
		for _, f := range list {
			name := strings.TrimPrefix(f.Path, dir+"/")
			names = append(names, name)
			equal(c, "name of "+name, f.Name, name[strings.LastIndex(name, "/")+1:])
		}
		equal(c, fmt.Sprintf("list to depth %d", depth), strings.Join(names, " "), want)
	}
	list, err := c.guest().ListDir(c.ctx(), "", dir+"/z", 1)
	c.must(err, "list")
	equal(c, "files in an empty directory", len(list), 0)
	_, err = c.guest().ListDir(c.ctx(), "", dir+"/none", 1)
	c.wantCode(err, "list nothing", sandpit.NotFound)
	wantNotFoundText(c, err)
	_, err = c.guest().ListDir(c.ctx(), "", dir+"/a", 1)
	c.wantCode(err, "list a file", sandpit.Invalid)
}

func makeDir(c *trial) {
	dir := c.dir()
	c.must(c.guest().MakeDir(c.ctx(), "", dir+"/a/b/c"), "make")
	equal(c, "modes", c.shell(`cd "$1"; stat -c %a a a/b a/b/c`, dir), "755\n755\n755\n")
	c.wantCode(c.guest().MakeDir(c.ctx(), "", dir+"/a/b"), "create an existing directory", sandpit.AlreadyExists)
	c.wantCode(c.guest().MakeDir(c.ctx(), "", "/"), "make the root", sandpit.AlreadyExists)
	c.put(dir+"/file", "")
	c.wantCode(c.guest().MakeDir(c.ctx(), "", dir+"/file"), "make where a file is", sandpit.AlreadyExists, sandpit.Invalid)
	c.wantCode(c.guest().MakeDir(c.ctx(), "", dir+"/file/below"), "make below a file", sandpit.Invalid)
}

func move(c *trial) {
	dir, ctx := c.dir(), c.ctx()
	c.put(dir+"/one", "1")
	c.put(dir+"/two", "2")
	c.must(c.guest().Move(ctx, "", dir+"/one", dir+"/new/parents/one"), "move")
	equal(c, "the file", c.get(dir+"/new/parents/one"), "1")
	_, err := c.guest().Stat(ctx, "", dir+"/one")
	c.wantCode(err, "where it was", sandpit.NotFound)
	c.must(c.guest().Move(ctx, "", dir+"/two", dir+"/new/parents/one"), "move onto another")
	equal(c, "the file", c.get(dir+"/new/parents/one"), "2")
	c.must(c.guest().Move(ctx, "", dir+"/new", dir+"/moved"), "move a directory")
	equal(c, "the file", c.get(dir+"/moved/parents/one"), "2")
	c.wantCode(c.guest().Move(ctx, "", dir+"/none", dir+"/x"), "move nothing", sandpit.NotFound)
	if err := c.guest().Move(ctx, "", dir+"/moved", dir+"/moved/parents/itself"); sandpit.CodeOf(err) != sandpit.Invalid {
		c.wantCode(err, "move a directory into itself", sandpit.Invalid)
	}
	c.shell(`ln -s nowhere "$1/link"`, dir)
	c.must(c.guest().Move(ctx, "", dir+"/link", dir+"/link2"), "move a link")
	equal(c, "the link", c.shell(`readlink "$1/link2"`, dir), "nowhere\n")
}

func remove(c *trial) {
	dir, ctx := c.dir(), c.ctx()
	c.shell(`cd "$1"; mkdir -p tree/deep; echo 1 > tree/deep/file; echo 2 > file; ln -s tree link; chmod 555 tree/deep`, dir)
	for _, name := range []string{"/file", "/link", "/none", "/none/below"} {
		c.must(c.guest().Remove(ctx, "", dir+name), "remove "+name)
	}
	equal(c, "what is left", c.shell(`ls "$1"; ls "$1/tree/deep"`, dir), "tree\nfile\n")
	c.shell(`chmod 755 "$1/tree/deep"`, dir)
	c.must(c.guest().Remove(ctx, "", dir+"/tree"), "remove a tree")
	equal(c, "what is left", c.shell(`ls "$1"`, dir), "")
}

func notFiles(c *trial) {
	dir, ctx := c.dir(), c.ctx()
	c.shell(`mkfifo "$1/pipe"`, dir)
	for name, path := range map[string]string{"a directory": dir, "a pipe": dir + "/pipe", "a device": "/dev/zero"} {
		c.promptly("read "+name, func() {
			r, err := c.guest().ReadFile(ctx, "", path)
			if err == nil {
				_ = r.Close()
			}
			c.wantCode(err, "read "+name, sandpit.Invalid)
		})
		_, err := c.guest().Stat(ctx, "", path)
		c.must(err, "stat "+name)
	}
	list, err := c.guest().ListDir(ctx, "", dir, 1)
	if err != nil || len(list) != 1 || list[0].Mode.IsRegular() {
		c.Errorf("a directory with a pipe: %+v, %v", list, err)
	}
	write := func(name string) error {
		return c.guest().WriteFile(ctx, "", name, strings.NewReader("x"), sandpit.WriteOptions{})
	}
	c.wantCode(write(dir), "write where a directory is", sandpit.Invalid)
	c.wantCode(write(""), "write without a name", sandpit.Invalid)
	c.put(dir+"/file", "")
	c.wantCode(write(dir+"/file/below"), "write below a file", sandpit.Invalid)
	_, err = c.guest().ReadFile(ctx, "", dir+"/none")
	c.wantCode(err, "read nothing", sandpit.NotFound)
	wantNotFoundText(c, err)
}

// sizeless reads a file that the kernel generates while it is read.
func sizeless(c *trial) {
	want := c.shell("cat /proc/version")
	equal(c, "size", len(want) > 0, true)
	equal(c, "/proc/version", c.get("/proc/version"), want)
}

func manyWriters(c *trial) {
	name := c.dir() + "/file"
	const writers = 8
	ctx := c.ctx()
	text := func(i int) string { return strings.Repeat(strconv.Itoa(i), 50_000) }
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			if err := writeRead(ctx, c.guest(), name, text(i)); err != nil {
				c.Errorf("writer %d: %v", i, err)
			}
		})
	}
	c.promptly("many writers", wg.Wait)
	got := c.get(name)
	if got == "" || got != strings.Repeat(got[:1], 50_000) {
		c.Errorf("the file is a mixture of %d bytes", len(got))
	}
}

// writeRead writes a file, and reads another one.
func writeRead(ctx context.Context, g sandpit.Guest, name, text string) error {
	if err := g.WriteFile(ctx, "", name, strings.NewReader(text), sandpit.WriteOptions{}); err != nil {
		return err
	}
	r, err := g.ReadFile(ctx, "", name)
	if err != nil {
		return err
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err == nil && (len(got) != len(text) || string(got) != strings.Repeat(string(got[:1]), len(got))) {
		err = fmt.Errorf("it reads a mixture of %d bytes", len(got))
	}
	return err
}

// wantNotFoundText fails unless an error about a missing file contains the usual phrase.
func wantNotFoundText(c *trial, err error) {
	c.Helper()
	if err == nil || !strings.Contains(err.Error(), "not found") || strings.Contains(err.Error(), "lst ") {
		c.Errorf("a missing file: %v, want a text with \"not found\"", err)
	}
}
