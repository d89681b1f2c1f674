package providertest

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func confinedChecks() []check {
	return []check{
		{"inside", confinedInside},
		{"outside", confinedOutside},
		{"several directories", confinedSeveral},
		{"no directories", confinedNowhere},
		{"exchanged while used", confinedExchanged},
		{"by the observer", confinedByObserver},
	}
}

// confineFiles returns files that cannot leave some directories.
func confineFiles(c *trial, dirs ...string) sandpit.Files {
	c.Helper()
	confiner, ok := sandpit.As[sandpit.Confiner](c.guest())
	if !ok {
		c.Skip("this provider's guest has no Confiner")
	}
	files, err := confiner.Within(dirs...)
	c.must(err, "confine")
	return files
}

// fileCalls are calls that use a path.
func fileCalls() []named[func(context.Context, sandpit.Files, string) error] {
	type call = func(context.Context, sandpit.Files, string) error
	return []named[call]{
		{"read", func(ctx context.Context, f sandpit.Files, p string) error {
			r, err := f.ReadFile(ctx, "", p)
			if err == nil {
				_ = r.Close()
			}
			return err
		}},
		{"read a range", func(ctx context.Context, f sandpit.Files, p string) error {
			r, err := f.ReadRange(ctx, "", p, 0, 1)
			if err == nil {
				_ = r.Close()
			}
			return err
		}},
		{"write", func(ctx context.Context, f sandpit.Files, p string) error {
			return f.WriteFile(ctx, "", p, strings.NewReader("x"), sandpit.WriteOptions{})
		}},
		{"list", func(ctx context.Context, f sandpit.Files, p string) error {
			_, err := f.ListDir(ctx, "", p, 1)
			return err
		}},
		{"make", func(ctx context.Context, f sandpit.Files, p string) error { return f.MakeDir(ctx, "", p+"/new") }},
		{"remove", func(ctx context.Context, f sandpit.Files, p string) error { return f.Remove(ctx, "", p+"/file") }},
		{"move out", func(ctx context.Context, f sandpit.Files, p string) error {
			return f.Move(ctx, "", "~/none", p+"/file")
		}},
		{"read a tree", func(ctx context.Context, f sandpit.Files, p string) error {
			r, err := f.ReadTree(ctx, "", p)
			if err == nil {
				_ = r.Close()
			}
			return err
		}},
		{"write a tree", func(ctx context.Context, f sandpit.Files, p string) error {
			return f.WriteTree(ctx, "", p, strings.NewReader(emptyTar))
		}},
		{"watch", func(ctx context.Context, f sandpit.Files, p string) error {
			w, err := f.Watch(ctx, "", p, sandpit.WatchOptions{})
			if err == nil {
				_ = w.Close()
			}
			return err
		}},
	}
}

func confinedInside(c *trial) {
	dir := c.dir()
	files, ctx := confineFiles(c, dir), c.ctx()
	c.must(files.WriteFile(ctx, "", dir+"/a/file", strings.NewReader("inside"), sandpit.WriteOptions{}), "write")
	equal(c, "the file", c.readAll(files.ReadFile(ctx, "", dir+"/a/file")), "inside")
	c.must(files.MakeDir(ctx, "", dir+"/b"), "make")
	c.must(files.Move(ctx, "", dir+"/a/file", dir+"/b/file"), "move")
	c.shell(`cd "$1"; ln -s b link; ln -s "$1/b" abs`, dir)
	for _, link := range []string{"link", "abs"} {
		equal(c, "through a link that stays inside", c.readAll(files.ReadFile(ctx, "", dir+"/"+link+"/file")), "inside")
	}
	list, err := files.ListDir(ctx, "", dir, 1)
	c.must(err, "list")
	equal(c, "number of files", len(list), 4)
	c.must(files.Remove(ctx, "", dir+"/b"), "remove")

	c.shell(`ln -s "$1" "$1.link"`, dir) // the directory itself may be a link
	viaLink := confineFiles(c, dir+".link")
	c.must(viaLink.WriteFile(ctx, "", dir+".link/file", strings.NewReader("x"), sandpit.WriteOptions{}), "write")
	equal(c, "the file", c.get(dir+"/file"), "x")
}

func confinedOutside(c *trial) {
	dir, outside := c.dir(), c.dir()
	files := confineFiles(c, dir)
	c.put(outside+"/file", "outside")
	c.shell(`cd "$1"; ln -s "$2" abs; ln -s "../$(basename "$2")" rel; ln -s .. up; mkdir real; ln -s ../abs real/chain`, dir, outside)
	base := outside[strings.LastIndex(outside, "/")+1:]
	ways := []string{
		outside, dir + "/abs", dir + "/rel", dir + "/real/chain", dir + "/up/" + base, dir + "/../" + base,
		dir + "/real/../../" + base, dir + "/none/../../" + base, "/", "/proc/self/root" + outside, dir + "x",
	}
	for _, way := range ways {
		for _, call := range fileCalls() {
			c.wantCode(call.value(c.ctx(), files, way), call.name+" "+way, sandpit.PermissionDenied)
		}
		for _, name := range []string{"/file", ""} {
			err := files.WriteFile(c.ctx(), "", way+name, strings.NewReader("changed"), sandpit.WriteOptions{})
			c.wantCode(err, "write "+way+name, sandpit.PermissionDenied)
			_, err = files.ReadFile(c.ctx(), "", way+name)
			c.wantCode(err, "read "+way+name, sandpit.PermissionDenied)
		}
	}
	c.shell(`ln -s "$2/file" "$1/filelink"`, dir, outside)
	_, err := files.ReadFile(c.ctx(), "", dir+"/filelink")
	c.wantCode(err, "read a link to a file outside", sandpit.PermissionDenied)
	err = files.WriteFile(c.ctx(), "", dir+"/filelink", strings.NewReader("changed"), sandpit.WriteOptions{})
	c.wantCode(err, "write a link to a file outside", sandpit.PermissionDenied)
	equal(c, "what is outside", c.shell(`ls "$1"; cat "$1/file"`, outside), "file\noutside")
}

func confinedSeveral(c *trial) {
	a, b, neither := c.dir(), c.dir(), c.dir()
	files, ctx := confineFiles(c, a, b), c.ctx()
	write := func(name string) error {
		return files.WriteFile(ctx, "", name, strings.NewReader("x"), sandpit.WriteOptions{})
	}
	c.must(write(a+"/file"), "write in the first")
	c.must(write(b+"/file"), "write in the second")
	c.must(files.Move(ctx, "", a+"/file", b+"/from-a"), "move from one to the other")
	c.wantCode(write(neither+"/file"), "write in neither", sandpit.PermissionDenied)
	c.wantCode(files.Move(ctx, "", a+"/none", neither+"/x"), "move to neither", sandpit.PermissionDenied)
}

func confinedNowhere(c *trial) {
	confineFiles(c, c.workDir)
	confiner, _ := sandpit.As[sandpit.Confiner](c.guest())
	for _, dirs := range [][]string{nil, {""}, {"relative"}, {c.workDir, "relative"}, {"/a\nb"}, {"/a\x00b"}} {
		_, err := confiner.Within(dirs...)
		c.wantCode(err, "confine to "+strings.Join(dirs, "|"), sandpit.Invalid)
	}
}

// These alternately put a directory and a link to another under the same name.
const (
	exchange     = `echo ready; while :; do mv -T real name; mv -T name real; mv -T link name; mv -T name link; done`
	fastExchange = `
import os
print("ready", flush=True)
while True:
    for a in "real", "link":
        os.rename(a, "name")
        os.rename("name", a)
`
)

func confinedExchanged(c *trial) {
	dir := c.dir()
	c.shell(`cd "$1"; mkdir -p in/real out; echo inside > in/real/file; echo outside > out/file; ln -s "$1/out" in/link`, dir)
	cmd := shellCommand(exchange)
	if c.hasProgram("python3") {
		cmd = sandpit.Command{Args: []string{"python3", "-c", fastExchange}}
	}
	cmd.Dir = dir + "/in"
	files := confineFiles(c, dir+"/in")
	exchanging, _ := c.startReady(cmd)
	read, ctx, codes := 0, c.ctx(), make(map[sandpit.Code]error)
	for begin := time.Now(); time.Since(begin) < time.Second; {
		r, err := files.ReadFile(ctx, "", dir+"/in/name/file")
		if err != nil {
			codes[sandpit.CodeOf(err)] = err
			continue
		}
		read++
		if got := c.readAll(r, nil); got != "inside\n" {
			c.Fatalf("a confined call reads %q", got)
		}
	}
	c.must(exchanging.Signal(c.ctx(), sandpit.SIGKILL), "kill")
	c.wait(exchanging)
	c.Logf("it was read %d times", read)
	for _, err := range codes {
		c.wantCode(err, "read what is being exchanged", sandpit.NotFound, sandpit.PermissionDenied, sandpit.Invalid)
	}
}

// confinedByObserver checks the confinement that an observer sets: every call is held to the working
// directory, whatever directories its sender names.
func confinedByObserver(c *trial) {
	box := c.newBox()
	guest, ok := sandpit.As[sandpit.ObservedGuest](box.Guest())
	if !ok {
		c.Skip("this provider's guest cannot be observed")
	}
	work := c.workDirOf(box)
	outside := path.Join(path.Dir(work), "outside-"+string(sandpit.NewID()))
	c.shellIn(box, `echo kept > inside; mkdir -p "$1/d"; echo secret > "$1/file"; ln -s "$1" link`, outside)
	guest.Observe(sandpit.GuestObserver{Confine: func(context.Context) []string { return []string{"."} }})
	files := []sandpit.Files{box.Guest()}
	if confiner, ok := sandpit.As[sandpit.Confiner](box.Guest()); ok {
		wider, err := confiner.Within("/")
		c.must(err, "confine to everything")
		files = append(files, wider)
	}
	for _, f := range files {
		r, err := f.ReadFile(c.ctx(), "", work+"/inside")
		c.must(err, "read inside")
		_ = r.Close()
		for _, dir := range []string{outside, work + "/link"} {
			for _, call := range fileCalls() {
				c.wantCode(call.value(c.ctx(), f, dir), call.name+" outside, by "+dir, sandpit.PermissionDenied)
			}
			_, err := f.Stat(c.ctx(), "", dir+"/file")
			c.wantCode(err, "stat outside, by "+dir, sandpit.PermissionDenied)
		}
		link, err := f.Stat(c.ctx(), "", work+"/link")
		c.must(err, "stat a link")
		equal(c, "what a link to the outside is", link.Mode.IsDir(), false)
	}
	guest.Observe(sandpit.GuestObserver{})
	equal(c, "what is outside", c.shellIn(box, `cat "$1/file"; ls "$1"`, outside), "secret\nd\nfile\n")
}
