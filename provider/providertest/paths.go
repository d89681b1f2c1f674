package providertest

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

func pathChecks() []check {
	return []check{
		{"odd names", oddNames},
		{"names that are not utf-8", foreignNames},
		{"names that cannot be", badNames},
		{"home and relative paths", homePaths},
		{"dots", dots},
		{"links", links},
		{"links that lead nowhere", brokenLinks},
	}
}

func oddNames(c *trial) {
	dir := c.dir()
	names := []string{
		"a b", " lead", "trail ", "line\nbreak", "tab\t", "ünicode→🙂", "~", "~root", "-n", "--", "%41", "a%2fb", "?a=b", "#a", "a+b", "a&b=c",
		"'", `"`, `\`, "*", "$HOME", "...", "..a", ":", "CON", strings.Repeat("n", 255), "é", "e\u0301",
	}
	for _, name := range names {
		full := dir + "/" + name
		c.put(full, "in "+name)
		f, err := c.guest().Stat(c.ctx(), "", full)
		c.must(err, "stat")
		equal(c, "name", f.Name, name)
		equal(c, "path", f.Path, full)
		equal(c, "content of "+name, c.get(full), "in "+name)
	}
	list, err := c.guest().ListDir(c.ctx(), "", dir, 1)
	c.must(err, "list")
	var got []string
	for _, f := range list {
		got = append(got, f.Name)
	}
	slices.Sort(names)
	var want strings.Builder
	paths := make([]string, len(names))
	for i, name := range names {
		want.WriteString("in " + name + "\n")
		paths[i] = dir + "/" + name
	}
	equal(c, "what a program reads", c.shell(`for f; do cat "$f"; echo; done`, paths...), want.String())
	equal(c, "list", strings.Join(got, "|"), strings.Join(names, "|"))
	for _, name := range names {
		c.must(c.guest().Remove(c.ctx(), "", dir+"/"+name), "remove")
	}
	equal(c, "what is left", c.shell(`ls -A "$1"`, dir), "")
}

func foreignNames(c *trial) {
	dir := c.dir()
	c.shell(`cd "$1"; : > "$(printf 'a\377b')"; : > good`, dir)
	list, err := c.guest().ListDir(c.ctx(), "", dir, 1)
	c.must(err, "list a directory with a name that is not utf-8")
	equal(c, "number of files", len(list), 2)
	_, err = c.guest().Stat(c.ctx(), "", dir+"/a\xffb")
	if err != nil {
		c.wantCode(err, "stat a name that is not utf-8", sandpit.Invalid)
	}
}

func badNames(c *trial) {
	dir := c.dir()
	for name, p := range map[string]string{
		"a NUL byte": dir + "/a\x00b",
		"too long":   dir + "/" + strings.Repeat("n", 256),
		"far longer": dir + strings.Repeat("/abcdefgh", 500),
	} {
		_, err := c.guest().Stat(c.ctx(), "", p)
		c.wantCode(err, "stat, "+name, sandpit.Invalid)
		_, err = c.guest().ReadFile(c.ctx(), "", p)
		c.wantCode(err, "read, "+name, sandpit.Invalid)
		err = c.guest().WriteFile(c.ctx(), "", p, strings.NewReader(""), sandpit.WriteOptions{})
		c.wantCode(err, "write, "+name, sandpit.Invalid)
		c.wantCode(c.guest().MakeDir(c.ctx(), "", p), "make a directory, "+name, sandpit.Invalid)
	}
}

func homePaths(c *trial) {
	home := c.home()
	equal(c, "home", home, strings.TrimSuffix(c.shell(`cd ~ && pwd`), "\n"))
	name := "check-" + string(sandpit.NewID())
	c.put("~/"+name+"/file", "at home")
	defer func() { c.must(c.guest().Remove(c.ctx(), "", name), "remove it, relative to home") }()
	for _, p := range []string{"~/" + name + "/file", name + "/file", "./" + name + "/file", path.Join(home, name, "file")} {
		equal(c, p, c.get(p), "at home")
		f, err := c.guest().Stat(c.ctx(), "", p)
		c.must(err, "stat")
		equal(c, "path", f.Path, path.Join(home, name, "file"))
	}
	c.put(name+"/~/file", "not at home") // only the first is the home
	equal(c, "in a directory of that name", c.get(path.Join(home, name, "~", "file")), "not at home")
}

func dots(c *trial) {
	dir := c.dir()
	c.put(dir+"/a/file", "x")
	for _, p := range []string{"/a/../a/file", "/./a/./file", "//a//file", "/a/file"} {
		f, err := c.guest().Stat(c.ctx(), "", dir+p)
		c.must(err, "stat")
		equal(c, "path", f.Path, dir+"/a/file")
	}
	f, err := c.guest().Stat(c.ctx(), "", "/../../..")
	c.must(err, "stat")
	equal(c, "above the root", f.Path, "/")
	f, err = c.guest().Stat(c.ctx(), "", dir+"/a/")
	c.must(err, "stat")
	equal(c, "with a slash at the end", f.Path, dir+"/a")
}

func links(c *trial) {
	dir := c.dir()
	c.shell(`cd "$1"; mkdir real; echo text > real/file; ln -s real dirlink; ln -s real/file rel; ln -s "$1/real/file" abs; ln -s rel chain`, dir)
	for _, name := range []string{"rel", "abs", "chain"} {
		f, err := c.guest().Stat(c.ctx(), "", dir+"/"+name)
		c.must(err, "stat")
		if f.Mode&fs.ModeSymlink == 0 || !path.IsAbs(f.LinkTarget) || path.Base(f.LinkTarget) != "file" {
			c.Errorf("link %s: mode %s, target %q; want a link to the file", name, f.Mode, f.LinkTarget)
		}
		equal(c, "content through "+name, c.get(dir+"/"+name), "text\n")
	}
	f, err := c.guest().Stat(c.ctx(), "", dir+"/dirlink/file")
	c.must(err, "stat through a link")
	if f.Mode&fs.ModeSymlink != 0 {
		c.Errorf("a file behind a link is reported as a link: %+v", f)
	}
	list, err := c.guest().ListDir(c.ctx(), "", dir+"/dirlink", 1)
	if err != nil || len(list) != 1 || list[0].Name != "file" {
		c.Errorf("list through a link: %+v, %v", list, err)
	}
	c.put(dir+"/dirlink/new", "through a link")
	equal(c, "written through a link", c.get(dir+"/real/new"), "through a link")
	c.put(dir+"/rel", "new text")
	equal(c, "written to the target of a link", c.shell(`cd "$1"; readlink rel; cat real/file`, dir), "real/file\nnew text")
}

func brokenLinks(c *trial) {
	dir := c.dir()
	c.shell(`cd "$1"; ln -s nowhere dangling; ln -s loop loop`, dir)
	for _, name := range []string{"dangling", "loop"} {
		f, err := c.guest().Stat(c.ctx(), "", dir+"/"+name)
		c.must(err, "stat "+name)
		if f.Mode&fs.ModeSymlink == 0 {
			c.Errorf("link %s: mode %s", name, f.Mode)
		}
	}
	list, err := c.guest().ListDir(c.ctx(), "", dir, 5)
	if err != nil || len(list) != 2 {
		c.Errorf("list: %+v, %v", list, err)
	}
	_, err = c.guest().ReadFile(c.ctx(), "", dir+"/dangling")
	c.wantCode(err, "read a link to nothing", sandpit.NotFound)
	_, err = c.guest().ReadFile(c.ctx(), "", dir+"/loop")
	c.wantCode(err, "read a link to itself", sandpit.Invalid)
	err = c.guest().WriteFile(c.ctx(), "", dir+"/loop/file", strings.NewReader(""), sandpit.WriteOptions{})
	c.wantCode(err, "write through a link to itself", sandpit.Invalid)
}
