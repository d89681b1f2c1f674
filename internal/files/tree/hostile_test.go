package tree_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/tree"
)

// cage is a target directory in the middle of things that must not change.
type cage struct {
	top, target, outside string
	before               map[string]string
}

func newCage(tb testing.TB) *cage {
	tb.Helper()
	top := tb.TempDir()
	c := &cage{top: top, target: filepath.Join(top, "in", "target"), outside: filepath.Join(top, "outside")}
	must(tb, os.MkdirAll(c.target, 0o755))
	write(tb, filepath.Join(c.outside, "secret"), "untouched", 0o600)
	write(tb, filepath.Join(c.outside, "dir", "f"), "untouched", 0o600)
	write(tb, filepath.Join(top, "in", "neighbour"), "untouched", 0o600)
	age(tb, top)
	c.before = c.rest(tb)
	return c
}

// rest is a snapshot of all but the target.
func (c *cage) rest(tb testing.TB) map[string]string {
	tb.Helper()
	_ = filepath.WalkDir(c.target, func(path string, e fs.DirEntry, _ error) error {
		if e.IsDir() {
			return os.Chmod(path, 0o755)
		}
		return nil
	})
	all := snapshot(tb, c.top)
	for name := range all {
		if name == "in/target" || strings.HasPrefix(name, "in/target/") {
			delete(all, name)
		}
	}
	return all
}

func (c *cage) check(tb testing.TB) {
	tb.Helper()
	if diff := cmp.Diff(c.before, c.rest(tb)); diff != "" {
		tb.Fatalf("the world outside has changed (-before +after):\n%s", diff)
	}
}

// device is a member that is neither file, directory nor link.
func device(kind byte, name string) member {
	return member{Header: tar.Header{Typeflag: kind, Name: name, Mode: 0o666, Devmajor: 1, Devminor: 3}}
}

func TestHostileMembers(t *testing.T) {
	t.Parallel()
	for name, members := range map[string][]member{
		"absolute":               {file("/etc/evil", "x")},
		"up":                     {file("../evil", "x")},
		"up inside":              {file("a/../../evil", "x")},
		"up at the end":          {dir("a/..", 0o777)},
		"up alone":               {dir("..", 0o777)},
		"harmless up":            {file("a/../b", "x")},
		"long":                   {file(strings.Repeat("long/", 820)+"f", "x")},
		"long part":              {file(strings.Repeat("n", 256), "x")},
		"deep":                   {file(strings.Repeat("d/", 513)+"f", "x")},
		"no name":                {file("", "x")},
		"the tree is a file":     {file("./.", "x")},
		"the tree is a link":     {symlink("./", "/etc")},
		"hard link absolute":     {hardLink("h", "/etc/passwd")},
		"hard link up":           {hardLink("h", "../neighbour")},
		"hard link up inside":    {dir("a", 0o755), hardLink("a/h", "a/../../neighbour")},
		"hard link missing":      {hardLink("h", "missing")},
		"hard link missing dir":  {hardLink("h", "missing/x")},
		"hard link to itself":    {file("h", "x"), hardLink("h", "h")},
		"hard link to nothing":   {hardLink("h", "")},
		"hard link to the tree":  {hardLink("h", "./")},
		"hard link to directory": {dir("d", 0o755), hardLink("h", "d")},
		"hard link to link":      {symlink("l", "x"), hardLink("h", "l")},
		"hard link to outside":   {symlink("l", "../../outside/secret"), hardLink("h", "l")},
		"hard link through link": {symlink("l", "../../outside"), hardLink("h", "l/secret")},
		"file through link":      {symlink("l", "../../outside"), file("l/evil", "x")},
		"file through absolute":  {symlink("l", "/tmp"), file("l/evil", "x")},
		"dir through link":       {symlink("l", "../../outside"), dir("l/evil", 0o777)},
		"mode through link":      {symlink("l", "../../outside"), dir("l/dir", 0o777)},
		"link through link":      {symlink("l", "../../outside"), symlink("l/evil", "x")},
		"link chain":             {symlink("a", ".."), symlink("b", "a/.."), file("b/outside/evil", "x")},
		"link loop":              {symlink("a", "b"), symlink("b", "a"), file("a/x", "x")},
		"long chain":             {symlink("a", "."), file(strings.Repeat("a/", 100)+"x", "x")},
		"dangling":               {symlink("a", "nowhere"), file("a/x", "x")},
		"file as directory":      {file("f", "x"), file("f/g", "x")},
		"over a full directory":  {file("d/f", "x"), file("d", "x")},
		"link over directory":    {file("d/f", "x"), symlink("d", "x")},
		"to no name":             {symlink("l", "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCage(t)
			data := stream(t, append(members, file("after", "x"))...)
			_, err := unpack(t, c.target, data, tree.Options{OutsideLinks: true})
			if sandpit.CodeOf(err) != sandpit.Invalid {
				t.Errorf("Unpack: %v (%s), want Invalid", err, sandpit.CodeOf(err))
			}
			if err != nil && len(err.Error()) > 2000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			if _, err := os.Lstat(filepath.Join(c.target, "after")); err == nil {
				t.Error("it went on after the bad member")
			}
			c.check(t)
		})
	}
}

// TestLinksInside checks that links of the tree are good for their members.
func TestLinksInside(t *testing.T) {
	t.Parallel()
	c := newCage(t)
	must(t, os.MkdirAll(filepath.Join(c.target, "usr", "bin"), 0o755))
	must(t, os.Symlink("usr/bin", filepath.Join(c.target, "bin")))
	_, err := unpack(t, c.target, stream(t,
		file("bin/tool", "x"), file("bin/sub/tool", "y"), hardLink("bin/again", "bin/tool"), hardLink("same", "bin/tool"),
		symlink("bin/l", "tool"), symlink("bin/up", "../etc")), tree.Options{})
	must(t, err)
	if got := read(t, filepath.Join(c.target, "usr/bin/tool")) + read(t, filepath.Join(c.target, "usr/bin/sub/tool")); got != "xy" {
		t.Errorf("through the link: %q", got)
	}
	if _, err := os.Readlink(filepath.Join(c.target, "usr/bin/l")); err != nil {
		t.Error(err)
	}
	// How deep the link has led is not known.
	if _, err := os.Readlink(filepath.Join(c.target, "usr/bin/up")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link that goes up behind a link: %v, want it skipped", err)
	}
	c.check(t)
}

func TestOutsideLinks(t *testing.T) {
	t.Parallel()
	outside := []member{
		symlink("abs", "/etc/passwd"),
		symlink("up", ".."),
		symlink("dot", "./../x"),
		symlink("d/up2", "../../x"),
		symlink("later", "a/../../x"),
		symlink("turn", "d/.."),
		symlink("d/turn", "../d/../x"),
		symlink("d/e/f/turn", "x/.."),
	}
	inside := []member{
		symlink("in", "d/f"),
		symlink("here", "."),
		symlink("d/up1", "../x"),
		symlink("d/e/up2", "./../..//x"),
		symlink("odd", "...//d"),
	}
	for _, keep := range []bool{false, true} {
		c := newCage(t)
		report, err := unpack(t, c.target, stream(t, append(slices.Clone(outside), inside...)...), tree.Options{OutsideLinks: keep})
		must(t, err)
		for i, m := range append(slices.Clone(outside), inside...) {
			to, err := os.Readlink(filepath.Join(c.target, m.Name))
			if want := keep || i >= len(outside); want != (err == nil) || err == nil && to != m.Linkname {
				t.Errorf("keep %v: %s -> %s: %q, %v", keep, m.Name, m.Linkname, to, err)
			}
			if skipped := slices.Contains(report.Skipped, m.Name); skipped == (err == nil) {
				t.Errorf("keep %v: %s skipped %v", keep, m.Name, skipped)
			}
		}
		c.check(t)
	}
}

// TestChainsStayInside puts together what the rule for links allows, and looks
// where it leads.
func TestChainsStayInside(t *testing.T) {
	t.Parallel()
	c := newCage(t)
	report, err := unpack(t, c.target, stream(t,
		dir("a/b/c", 0o755), symlink("a/b/c/top", "../../.."), symlink("x", "a/b/c/top/a/b"),
		symlink("a/b/y", "../../x/c/top"), symlink("s", "."), symlink("s/s2", ".."), symlink("s/a/z", ".."),
		symlink("s/a/b/c/w", "../../../.."),
		symlink("a/b/c/v", "top/..")), tree.Options{})
	must(t, err)
	if diff := cmp.Diff([]string{"s/s2", "s/a/z", "s/a/b/c/w", "a/b/c/v"}, report.Skipped); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{"a/b/c/top", "x", "a/b/y"} {
		got, err := filepath.EvalSymlinks(filepath.Join(c.target, name))
		must(t, err)
		if got != c.target && !strings.HasPrefix(got, c.target+"/") {
			t.Errorf("%s leads to %s", name, got)
		}
	}
}

func TestSkipsDevices(t *testing.T) {
	t.Parallel()
	c := newCage(t)
	members := []member{
		device(tar.TypeChar, "null"), device(tar.TypeBlock, "sda"), device(tar.TypeFifo, "pipe"),
		device('S', "strange"), file("after", "x"),
	}
	report, err := unpack(t, c.target, stream(t, members[0], members[1], members[2], members[4]), tree.Options{})
	must(t, err)
	want := tree.Report{Files: 1, Bytes: 1, Skipped: []string{"null", "sda", "pipe"}}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Error(diff)
	}
	var many []member
	for i := range 150 {
		many = append(many, device(tar.TypeFifo, fmt.Sprint("p", i)))
	}
	report, err = unpack(t, c.target, stream(t, many...), tree.Options{})
	must(t, err)
	if len(report.Skipped) != 100 || report.SkippedMore != 50 {
		t.Errorf("%d skipped and %d more, want 100 and 50", len(report.Skipped), report.SkippedMore)
	}
	entries, err := os.ReadDir(c.target)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("%d files made, want 1", len(entries))
	}
}

// TestReplaces checks that what is there is replaced and not written through.
func TestReplaces(t *testing.T) {
	t.Parallel()
	c := newCage(t)
	secret := filepath.Join(c.outside, "secret")
	at := func(name string) string { return filepath.Join(c.target, name) }
	must(t, os.Symlink(secret, at("link")))
	must(t, os.Symlink(filepath.Join(c.outside, "dir"), at("dir")))
	must(t, os.Symlink(secret, at("hard")))
	must(t, os.Symlink(secret, at("soft")))
	must(t, os.Symlink(filepath.Join(c.outside, "new"), at("dangling")))
	must(t, os.MkdirAll(at("emptydir"), 0o700))
	must(t, os.MkdirAll(at("merged/kept"), 0o700))
	write(t, at("was-file"), "old", 0o644)
	// One file with a name outside as well: it must not be written to either.
	write(t, filepath.Join(c.outside, "shared"), "untouched", 0o644)
	must(t, os.Link(filepath.Join(c.outside, "shared"), at("shared")))
	before := lstat(t, filepath.Join(c.outside, "shared"))
	data := stream(t, file("f", "first"), file("link", "new"), dir("dir/", 0o755), file("dir/f", "in"), hardLink("hard", "f"),
		symlink("soft", "f"), file("dangling", "x"), file("emptydir", "x"), dir("was-file", 0o750), file("was-file/g", "x"),
		dir("merged", 0o711), file("merged/new", "x"), file("shared", "mine"), file("f", "second"), symlink("twice", "f"), file("twice", "last"))
	_, err := unpack(t, c.target, data, tree.Options{})
	must(t, err)
	for name, want := range map[string]string{
		"f": "second", "link": "new", "dir/f": "in", "hard": "first", "dangling": "x", "emptydir": "x", "was-file/g": "x",
		"merged/new": "x", "shared": "mine", "twice": "last",
	} {
		if got := read(t, at(name)); got != want || !lstat(t, at(name)).Mode().IsRegular() {
			t.Errorf("%s: %q (%v), want %q", name, got, lstat(t, at(name)).Mode(), want)
		}
	}
	if _, err := os.Stat(at("merged/kept")); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(at("soft")); to != "f" {
		t.Errorf("soft: %q, %v", to, err)
	}
	shared := filepath.Join(c.outside, "shared")
	if got := read(t, shared); got != "untouched" || !lstat(t, shared).ModTime().Equal(before.ModTime()) {
		t.Errorf("a file with two names was written through: %q", got)
	}
	must(t, os.Remove(shared))
	must(t, os.Chtimes(c.outside, when, when))
	c.before["outside"] = c.rest(t)["outside"]
	c.check(t)
}

// TestDirectoryMeta comes back to directories in any order.
func TestDirectoryMeta(t *testing.T) {
	t.Parallel()
	target := t.TempDir()
	data := stream(t, dir("./", 0o711), dir("none", 0), file("none/f", "x"), dir("a", 0o555), dir("b", 0o700), file("a/f", "x"),
		file("c/f", "x"), dir("c", 0o750), dir("none/d", 0o500), dir("b/b", 0o755), file("a/g", "x"), file("none/g", "x"),
		dir("b", 0o755), file("none/d/f", "x"), file("last", "x"))
	for range 2 { // the second time, everything is there
		_, err := unpack(t, target, data, tree.Options{})
		must(t, err)
		for name, want := range map[string]fs.FileMode{".": 0o711, "none": 0, "a": 0o555, "b": 0o755, "c": 0o750, "b/b": 0o755} {
			info := lstat(t, filepath.Join(target, name))
			if info.Mode().Perm() != want || !info.ModTime().Equal(when) {
				t.Errorf("%s: mode %v time %v, want %v and %v", name, info.Mode(), info.ModTime(), want, when)
			}
		}
	}
	must(t, os.Chmod(filepath.Join(target, "none"), 0o700))
	if info := lstat(t, filepath.Join(target, "none/d")); info.Mode().Perm() != 0o500 || !info.ModTime().Equal(when) {
		t.Errorf("none/d: %v %v", info.Mode(), info.ModTime())
	}
	for _, name := range []string{"none/f", "none/g", "none/d/f", "a/g"} {
		_ = read(t, filepath.Join(target, name))
	}
	must(t, os.Chmod(filepath.Join(target, "none/d"), 0o700))
	must(t, os.Chmod(filepath.Join(target, "a"), 0o700))
}

// TestForeignDirectoriesShowChange checks that a directory which the stream does
// not describe gets a new time when a file comes into it: programs rely on it.
func TestForeignDirectoriesShowChange(t *testing.T) {
	t.Parallel()
	target := t.TempDir()
	must(t, os.Mkdir(filepath.Join(target, "d"), 0o755))
	age(t, target)
	before := lstat(t, filepath.Join(target, "d")).ModTime()
	_, err := unpack(t, target, stream(t, dir("x", 0o755), file("d/new", "x")), tree.Options{})
	must(t, err)
	if !lstat(t, filepath.Join(target, "d")).ModTime().After(before) {
		t.Error("the directory looks unchanged")
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	set := file("suid", "x")
	set.Mode = 0o6755
	odd := file("odd", "x")
	odd.Mode = 0o123
	for _, special := range []bool{false, true} {
		target := t.TempDir()
		must(t, os.Mkdir(filepath.Join(target, "tmp"), 0o755))
		must(t, os.Chmod(filepath.Join(target, "tmp"), 0o777|fs.ModeSticky))
		_, err := unpack(t, target, stream(t, dir("./", 0o1755), set, odd, dir("sticky", 0o3777), dir("tmp", 0o777)), tree.Options{SpecialBits: special})
		must(t, err)
		want := map[string]fs.FileMode{".": 0o755, "suid": 0o755, "odd": 0o123, "sticky": 0o777, "tmp": 0o777 | fs.ModeSticky}
		if special {
			want["."] |= fs.ModeSticky
			want["suid"] |= fs.ModeSetuid | fs.ModeSetgid
			want["sticky"] |= fs.ModeSticky | fs.ModeSetgid
		}
		for name, want := range want {
			if got := lstat(t, filepath.Join(target, name)).Mode() &^ fs.ModeDir; got != want {
				t.Errorf("special %v: %s has mode %v, want %v", special, name, got, want)
			}
		}
	}
}

func TestKeepTop(t *testing.T) {
	t.Parallel()
	target := t.TempDir()
	must(t, os.Chmod(target, 0o701))
	_, err := unpack(t, target, stream(t, dir("./", 0o755), file("f", "x")), tree.Options{KeepTop: true})
	must(t, err)
	if info := lstat(t, target); info.Mode().Perm() != 0o701 || info.ModTime().Equal(when) {
		t.Errorf("the target has mode %v and time %v", info.Mode(), info.ModTime())
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	target := t.TempDir()
	must(t, os.Mkdir(filepath.Join(target, "old"), 0o755))
	f := file("new/f", "x")
	f.Uid, f.Gid, f.Mode = 4242, 4242, 0o4755
	data := stream(t, dir("./", 0o755), dir("old", 0o755), file("old/f", "x"), dir("new", 0o755), f, file("implied/f", "x"),
		symlink("l", "new/f"), hardLink("h", "new/f"))
	_, err := unpack(t, target, data, tree.Options{Owner: &tree.Owner{UID: 1234, GID: 5678}, SpecialBits: true})
	must(t, err)
	for name, want := range map[string][2]uint32{
		".": {}, "old": {}, "old/f": {1234, 5678}, "new": {1234, 5678}, "new/f": {1234, 5678}, "implied": {1234, 5678},
		"implied/f": {1234, 5678}, "l": {1234, 5678}, "h": {1234, 5678},
	} {
		st := stat(lstat(t, filepath.Join(target, name)))
		if got := [2]uint32{st.Uid, st.Gid}; got != want {
			t.Errorf("%s belongs to %v, want %v", name, got, want)
		}
	}
	if lstat(t, filepath.Join(target, "new/f")).Mode()&fs.ModeSetuid == 0 {
		t.Error("the setuid bit is lost on the way to the new owner")
	}
}
