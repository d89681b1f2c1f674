package providertest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func watchChecks() []check {
	return []check{
		{"what happens in a directory", watchDir},
		{"one directory only", watchOne},
		{"recursive", watchRecursive},
		{"files as they are", watchDescribe},
		{"many read one", watchMany},
		{"closing", watchClosing},
		{"the end of the directory", watchEnds},
		{"errors", watchErrors},
	}
}

// watching is a watcher and its events.
type watching struct {
	c       *trial
	watcher sandpit.Watcher
	seen    []string
	files   map[string]*sandpit.File
}

func (c *trial) watch(dir string, o sandpit.WatchOptions) *watching {
	c.Helper()
	w, err := c.guest().Watch(c.ctx(), "", dir, o)
	c.must(err, "watch")
	c.Cleanup(func() {
		if err := w.Close(); err != nil {
			c.Errorf("close: %v", err)
		}
	})
	return &watching{c: c, watcher: w, files: make(map[string]*sandpit.File)}
}

// expect waits for events, in this order with others between them.
func (w *watching) expect(events ...string) {
	w.c.Helper()
	for _, want := range events {
		for {
			e, err := w.watcher.Next(w.c.ctx())
			if err != nil {
				w.c.Fatalf("wait for %q: %v; seen: %q", want, err, w.seen)
			}
			got := fmt.Sprint(e.Type, " ", e.Name)
			w.seen = append(w.seen, got)
			if e.File != nil {
				w.files[e.Name] = e.File
			}
			if got == want {
				break
			}
		}
	}
}

func watchDir(c *trial) {
	dir := c.dir()
	w := c.watch(dir, sandpit.WatchOptions{})
	c.shell(`echo one > "$1/file"`, dir)
	w.expect("create file", "write file")
	c.shell(`echo two >> "$1/file"`, dir)
	w.expect("write file")
	c.shell(`chmod 600 "$1/file"`, dir)
	w.expect("chmod file")
	c.shell(`mv "$1/file" "$1/other name"`, dir)
	w.expect("rename file", "create other name")
	c.shell(`rm "$1/other name"`, dir)
	w.expect("remove other name")
	c.shell(`mkdir "$1/sub"; rmdir "$1/sub"`, dir)
	w.expect("create sub", "remove sub")
	c.put(dir+"/by the guest", "x")
	w.expect("create by the guest")
}

func watchOne(c *trial) {
	dir := c.dir()
	c.shell(`mkdir "$1/sub"`, dir)
	w := c.watch(dir, sandpit.WatchOptions{})
	c.shell(`echo deep > "$1/sub/file"; echo end > "$1/end"`, dir)
	w.expect("create end")
	if slices.Contains(w.seen, "create sub/file") {
		c.Errorf("it reports directories below: %q", w.seen)
	}
}

func watchRecursive(c *trial) {
	dir := c.dir()
	c.shell(`mkdir -p "$1/there/before"`, dir)
	w := c.watch(dir, sandpit.WatchOptions{Recursive: true})
	c.shell(`echo x > "$1/there/before/file"`, dir)
	w.expect("create there/before/file")
	c.shell(`mkdir -p "$1/new/deep"; echo x > "$1/new/deep/file"`, dir)
	w.expect("create new/deep/file")
	c.shell(`mv "$1/new" "$1/moved"; echo x > "$1/moved/deep/again"`, dir)
	w.expect("create moved/deep/again")
	c.shell(`rm -r "$1/moved"; echo end > "$1/end"`, dir)
	w.expect("create end")
	if !slices.Contains(w.seen, "remove moved") {
		c.Errorf("no event for a tree that was removed: %q", w.seen)
	}
}

func watchDescribe(c *trial) {
	dir := c.dir()
	w := c.watch(dir, sandpit.WatchOptions{Describe: true})
	c.shell(`umask 022; printf 12345 > "$1/file"; sleep 0.2; chmod 640 "$1/file"`, dir)
	w.expect("chmod file")
	f := w.files["file"]
	if f == nil {
		c.Fatal("no event came with its file")
	}
	equal(c, "path", f.Path, dir+"/file")
	equal(c, "size", f.Size, 5)
	equal(c, "mode", f.Mode, 0o640)
	plain := c.watch(dir, sandpit.WatchOptions{})
	c.shell(`: > "$1/more"`, dir)
	plain.expect("create more")
	equal(c, "files that were not requested", len(plain.files), 0)
}

func watchMany(c *trial) {
	dir := c.dir()
	const watchers, files = 4, 50
	var all []*watching
	for range watchers {
		all = append(all, c.watch(dir, sandpit.WatchOptions{}))
	}
	c.shell(`i=0; while [ $i -lt 50 ]; do : > "$1/f$i"; i=$((i+1)); done`, dir)
	for _, w := range all {
		for i := range files {
			w.expect(fmt.Sprint("create f", i))
		}
	}
}

func watchClosing(c *trial) {
	dir := c.dir()
	w, err := c.guest().Watch(c.ctx(), "", dir, sandpit.WatchOptions{})
	c.must(err, "watch")
	ctx := c.ctx()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if _, err := w.Next(ctx); err == nil {
			c.Error("there was an event where nothing happened")
		}
	})
	time.Sleep(20 * time.Millisecond)
	for range 2 {
		c.must(w.Close(), "close")
	}
	c.promptly("next when it is closed", waiting.Wait)
	_, err = w.Next(c.ctx())
	c.wantCode(err, "next after close", sandpit.Gone)
}

func watchEnds(c *trial) {
	dir := c.dir()
	w := c.watch(dir, sandpit.WatchOptions{})
	c.shell(`rmdir "$1"`, dir)
	c.eventually("the end of the watch", func() bool {
		_, err := w.watcher.Next(c.ctx())
		if err != nil {
			c.wantCode(err, "watch a directory that is removed", sandpit.Gone)
		}
		return err != nil
	})
}

func watchErrors(c *trial) {
	dir := c.dir()
	c.put(dir+"/file", "")
	_, err := c.guest().Watch(c.ctx(), "", dir+"/none", sandpit.WatchOptions{})
	c.wantCode(err, "watch nothing", sandpit.NotFound)
	_, err = c.guest().Watch(c.ctx(), "", dir+"/file", sandpit.WatchOptions{})
	c.wantCode(err, "watch a file", sandpit.Invalid)
	_, err = c.guest().Watch(c.ctx(), "nobody-knows", dir, sandpit.WatchOptions{})
	c.wantCode(err, "an unknown user", sandpit.Invalid)
}
