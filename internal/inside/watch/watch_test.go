package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	sandpit "github.com/sandpit-dev/sandpit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// last is the file whose creation ends what told returns.
const last = "~last"

// small are limits that tests can reach.
var small = limits{directories: 5, depth: 4, events: 10}

func watch(t *testing.T, dir string, recursive bool) *Watcher {
	t.Helper()
	w, err := New(dir, recursive)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

// told returns the events until now as lines: "create sub/file".
func told(t *testing.T, w *Watcher, dir string) []string {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, last), nil, 0o600))
	defer func() { must(t, os.Remove(filepath.Join(dir, last))) }()
	return until(t, w, "create "+last)
}

func until(t *testing.T, w *Watcher, end string) (lines []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		e, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("Next: %v, after %q", err, lines)
		}
		line := string(e.Type) + " " + e.Name
		if line == end {
			return lines
		}
		if line != "remove "+last {
			lines = append(lines, line)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check is must for other goroutines than the test's.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		do   func(dir string) error
		want []string
	}{
		"create": {func(dir string) error { return os.WriteFile(dir+"/new", nil, 0o600) }, []string{"create new"}},
		"write": {func(dir string) error {
			f, err := os.OpenFile(dir+"/old", os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("x")
			return errors.Join(err, f.Close())
		}, []string{"write old"}},
		"truncate":      {func(dir string) error { return os.Truncate(dir+"/old", 0) }, []string{"write old"}},
		"remove":        {func(dir string) error { return os.Remove(dir + "/old") }, []string{"remove old"}},
		"rename":        {func(dir string) error { return os.Rename(dir+"/old", dir+"/new") }, []string{"rename old", "create new"}},
		"replace":       {func(dir string) error { return os.Rename(dir+"/old", dir+"/old2") }, []string{"rename old", "create old2"}},
		"move out":      {func(dir string) error { return os.Rename(dir+"/old", dir+"/../out") }, []string{"rename old"}},
		"move in":       {func(dir string) error { return os.Rename(dir+"/../other", dir+"/in") }, []string{"create in"}},
		"chmod":         {func(dir string) error { return os.Chmod(dir+"/old", 0o640) }, []string{"chmod old"}},
		"touch":         {func(dir string) error { return os.Chtimes(dir+"/old", time.Unix(1, 0), time.Unix(2, 0)) }, []string{"chmod old"}},
		"itself":        {func(dir string) error { return os.Chmod(dir, 0o750) }, []string{"chmod ."}},
		"mkdir":         {func(dir string) error { return os.Mkdir(dir+"/new", 0o700) }, []string{"create new"}},
		"rmdir":         {func(dir string) error { return os.Remove(dir + "/sub") }, []string{"remove sub"}},
		"chmod of dir":  {func(dir string) error { return os.Chmod(dir+"/sub", 0o750) }, []string{"chmod sub"}},
		"rename of dir": {func(dir string) error { return os.Rename(dir+"/sub", dir+"/new") }, []string{"rename sub", "create new"}},
		"symlink":       {func(dir string) error { return os.Symlink("old", dir+"/new") }, []string{"create new"}},
		"hard link":     {func(dir string) error { return os.Link(dir+"/old", dir+"/new") }, []string{"create new"}},
		"newline":       {func(dir string) error { return os.WriteFile(dir+"/a\nb", nil, 0o600) }, []string{"create a\nb"}},
		"not UTF-8":     {func(dir string) error { return os.WriteFile(dir+"/a\xff\xfeb", nil, 0o600) }, []string{"create a\uFFFDb"}},
		"longest name": {
			func(dir string) error { return os.WriteFile(dir+"/"+strings.Repeat("n", 255), nil, 0o600) },
			[]string{"create " + strings.Repeat("n", 255)},
		},
	} {
		for _, recursive := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, recursive), func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(t.TempDir(), "dir")
				must(t, os.MkdirAll(dir+"/sub", 0o700))
				must(t, os.WriteFile(dir+"/old", []byte("old"), 0o600))
				must(t, os.WriteFile(dir+"/old2", nil, 0o600))
				must(t, os.WriteFile(dir+"/../other", nil, 0o600))
				w := watch(t, dir, recursive)
				must(t, tc.do(dir))
				wantLines(t, told(t, w, dir), tc.want...)
			})
		}
	}
}

func TestNotRecursive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/sub", 0o700))
	w := watch(t, dir, false)
	must(t, os.WriteFile(dir+"/sub/file", nil, 0o600))
	must(t, os.MkdirAll(dir+"/late/deep", 0o700))
	must(t, os.WriteFile(dir+"/late/file", nil, 0o600))
	wantLines(t, told(t, w, dir), "create late")
}

// TestLateDirectories makes directories and files in them as fast as it can:
// each must be told as created, once, however the watcher finds it.
func TestLateDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := watch(t, dir, true)
	for round := range 200 {
		top := fmt.Sprintf("r%d", round)
		want := map[string]int{}
		for path := top; strings.Count(path, "/") < 4; path += "/d" {
			want["create "+path] = 1
		}
		must(t, os.MkdirAll(filepath.Join(dir, top, "d/d/d"), 0o700))
		for i := range 20 {
			path := top + strings.Repeat("/d", i%4) + fmt.Sprintf("/f%d", i)
			must(t, os.WriteFile(filepath.Join(dir, path), nil, 0o600))
			want["create "+path] = 1
		}
		got := map[string]int{}
		for _, line := range told(t, w, dir) {
			got[line]++
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("round %d (-want +got):\n%s", round, diff)
		}
	}
}

func TestMoveInsideOutIn(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	dir := filepath.Join(outside, "dir")
	must(t, os.MkdirAll(dir+"/a/b", 0o700))
	must(t, os.Mkdir(dir+"/to", 0o700))
	w := watch(t, dir, true)

	must(t, os.Rename(dir+"/a", dir+"/to/z"))
	must(t, os.WriteFile(dir+"/to/z/b/file", nil, 0o600))
	wantLines(t, told(t, w, dir), "rename a", "create to/z", "create to/z/b/file")

	must(t, os.Rename(dir+"/to/z", outside+"/z"))
	must(t, os.WriteFile(outside+"/z/b/unseen", nil, 0o600))
	wantLines(t, told(t, w, dir), "rename to/z")
	must(t, os.WriteFile(outside+"/z/b/unseen2", nil, 0o600))
	must(t, os.Mkdir(outside+"/z/unseen", 0o700))

	must(t, os.Rename(outside+"/z", dir+"/back"))
	got := told(t, w, dir)
	want := map[string]bool{
		"create back": true, "create back/b": true, "create back/unseen": true,
		"create back/b/file": true, "create back/b/unseen": true, "create back/b/unseen2": true,
	}
	for _, line := range got {
		if !want[line] {
			t.Errorf("told %q", line)
		}
		delete(want, line)
	}
	if len(want) > 0 {
		t.Errorf("not told: %v", want)
	}
	must(t, os.WriteFile(dir+"/back/b/later", nil, 0o600))
	must(t, os.RemoveAll(dir+"/back/b"))
	got = told(t, w, dir)
	if len(got) != 6 || got[0] != "create back/b/later" || got[5] != "remove back/b" {
		t.Errorf("got %q", got)
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(dir string) error{
		"removed":       os.RemoveAll,
		"moved":         func(dir string) error { return os.Rename(dir, dir+"2") },
		"moved further": func(dir string) error { return os.Rename(dir, filepath.Dir(dir)+"/../far") },
	} {
		for _, recursive := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, recursive), func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(t.TempDir(), "up", "dir")
				must(t, os.MkdirAll(dir+"/sub", 0o700))
				w := watch(t, dir, recursive)
				must(t, os.WriteFile(dir+"/file", nil, 0o600))
				must(t, do(dir))
				if e, err := w.Next(t.Context()); err != nil || e != (Event{"file", sandpit.FileCreated}) {
					t.Errorf("Next: %v, %v; what happened before must be told", e, err)
				}
				wantGone(t, w)
				if _, err := w.Take(); !errors.Is(err, sandpit.Gone) {
					t.Errorf("Take: %v, want Gone", err)
				}
			})
		}
	}
}

// wantGone reads events until the watch is over.
func wantGone(t *testing.T, w *Watcher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		if _, err := w.Next(ctx); err != nil {
			if !errors.Is(err, sandpit.Gone) {
				t.Errorf("Next: %v, want Gone", err)
			}
			return
		}
	}
}

func TestDirectoryAboveRenamed(t *testing.T) {
	t.Parallel()
	up := filepath.Join(t.TempDir(), "up")
	must(t, os.MkdirAll(up+"/dir", 0o700))
	w := watch(t, up+"/dir", true)
	must(t, os.Rename(up, up+"2"))
	must(t, os.MkdirAll(up+"/dir/new", 0o700)) // another one of that name
	must(t, os.WriteFile(up+"2/dir/file", nil, 0o600))
	if e, err := w.Next(t.Context()); err != nil || e.Name != "file" {
		t.Errorf("Next: %v, %v; files are still told", e, err)
	}
	must(t, os.Mkdir(up+"2/dir/new", 0o700))
	if e, err := w.Next(t.Context()); err != nil || e.Name != "new" {
		t.Errorf("Next: %v, %v", e, err)
	}
	wantGone(t, w)
}

func TestNewFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/file", nil, 0o600))
	must(t, os.Symlink("loop", dir+"/loop"))
	must(t, os.Symlink("nowhere", dir+"/broken"))
	for name, tc := range map[string]struct {
		path string
		want sandpit.Code
	}{
		"missing":     {dir + "/missing", sandpit.NotFound},
		"broken link": {dir + "/broken", sandpit.NotFound},
		"no name":     {"", sandpit.NotFound},
		"file":        {dir + "/file", sandpit.Invalid},
		"in a file":   {dir + "/file/x", sandpit.Invalid},
		"link loop":   {dir + "/loop", sandpit.Invalid},
		"NUL":         {dir + "/a\x00b", sandpit.Invalid},
		"too long":    {"/" + strings.Repeat("x", 5000), sandpit.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, recursive := range []bool{false, true} {
				if _, err := New(tc.path, recursive); !errors.Is(err, tc.want) {
					t.Errorf("New: %v, want %s", err, tc.want)
				}
			}
		})
	}
}

func TestUnreadable(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root reads every directory")
	}
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/open/closed", 0o700))
	must(t, os.Chmod(dir+"/open/closed", 0))
	if _, err := New(dir+"/open/closed", false); !errors.Is(err, sandpit.PermissionDenied) {
		t.Errorf("New: %v, want PermissionDenied", err)
	}
	w := watch(t, dir, true)
	must(t, os.WriteFile(dir+"/open/file", nil, 0o600))
	wantLines(t, told(t, w, dir), "create open/file")
}

func TestSymbolicLinks(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	dir := outside + "/dir"
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.Mkdir(outside+"/other", 0o700))
	must(t, os.Symlink("..", dir+"/up"))
	must(t, os.Symlink(".", dir+"/self"))
	must(t, os.Symlink("dir", outside+"/link"))
	w := watch(t, outside+"/link", true) // the link itself is followed
	must(t, os.Symlink("../other", dir+"/late"))
	must(t, os.WriteFile(dir+"/late/unseen", nil, 0o600))
	must(t, os.WriteFile(dir+"/self/file", nil, 0o600))
	wantLines(t, told(t, w, dir), "create late", "create file")

	must(t, os.Remove(outside+"/link")) // once
	must(t, os.MkdirAll(dir+"/a/b", 0o700))
	if got := told(t, w, dir); len(got) != 2 {
		t.Errorf("after the link is gone: %q", got)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		make string
		want sandpit.Code
	}{
		"at the limits": {"1/2/3/4", ""},
		"too deep":      {"1/2/3/4/5", sandpit.Exhausted},
		"too many":      {"a b c d e", sandpit.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for path := range strings.FieldsSeq(tc.make) {
				must(t, os.MkdirAll(dir+"/"+path, 0o700))
			}
			w, err := startWatcher(dir, true, small)
			if sandpit.CodeOf(err) != tc.want {
				t.Errorf("New: %v, want %q", err, tc.want)
			}
			if w != nil {
				must(t, w.Close())
			}
		})
	}
}

func TestGrowthBeyondLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := small
	l.events = 1000
	w, err := startWatcher(dir, true, l)
	must(t, err)
	defer w.Close()
	for i := range 10 { // the root and four of these are watched
		must(t, os.Mkdir(fmt.Sprintf("%s/%d", dir, i), 0o700))
	}
	must(t, os.WriteFile(dir+"/0/seen", nil, 0o600))
	must(t, os.WriteFile(dir+"/9/unseen", nil, 0o600))
	must(t, os.WriteFile(dir+"/"+last, nil, 0o600))
	exhausted, seen := 0, 0
	for {
		e, err := w.Next(t.Context())
		if errors.Is(err, sandpit.Exhausted) {
			exhausted++
			continue
		}
		must(t, err)
		if e.Name == last {
			break
		}
		if e.Name == "9/unseen" {
			t.Error("a directory beyond the limit is watched")
		}
		if e.Name == "0/seen" {
			seen++
		}
	}
	if exhausted != 1 || seen != 1 {
		t.Errorf("Exhausted %d times, want once; 0/seen told %d times, want once", exhausted, seen)
	}
	must(t, os.Remove(dir+"/"+last))
	// When some go, others may come.
	for i := range 10 {
		must(t, os.RemoveAll(fmt.Sprintf("%s/%d", dir, i)))
	}
	told(t, w, dir)
	must(t, os.Mkdir(dir+"/new", 0o700))
	must(t, os.WriteFile(dir+"/new/file", nil, 0o600))
	wantLines(t, told(t, w, dir), "create new", "create new/file")
}

// TestWatchesEnd makes and removes more directories than may be watched at once.
func TestWatchesEnd(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	dir := outside + "/dir"
	must(t, os.Mkdir(dir, 0o700))
	l := small
	l.events = 1000
	w, err := startWatcher(dir, true, l)
	must(t, err)
	defer w.Close()
	for i := range 20 {
		must(t, os.MkdirAll(dir+"/a/b", 0o700))
		told(t, w, dir) // fails on Exhausted
		switch i % 3 {
		case 0:
			must(t, os.RemoveAll(dir+"/a"))
		case 1:
			must(t, os.Rename(dir+"/a", fmt.Sprintf("%s/out%d", outside, i)))
		case 2: // an open directory is not gone for the kernel
			d, err := os.Open(dir + "/a/b")
			must(t, err)
			must(t, os.RemoveAll(dir+"/a"))
			told(t, w, dir)
			must(t, d.Close())
		}
		told(t, w, dir)
	}
}

func TestManyEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := startWatcher(dir, false, small)
	must(t, err)
	defer w.Close()
	for i := range 100 {
		must(t, os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o600))
	}
	// Nothing is taken, so ten are kept and the rest is lost.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		w.queue.mu.Lock()
		n := len(w.queue.items)
		w.queue.mu.Unlock()
		if n > small.events+1 {
			t.Fatalf("%d items are kept", n)
		}
		if n == small.events+1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was lost")
		}
	}
	for i := range small.events {
		if e, err := w.Next(t.Context()); err != nil || e.Name != strconv.Itoa(i) {
			t.Errorf("Next: %v, %v, want %d", e, err, i)
		}
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("Next: %v, want Exhausted", err)
	}
	// It continues as soon as it has come to the end of what is lost.
	for i := range 1000 {
		name := fmt.Sprintf("%s%d", last, i)
		must(t, os.WriteFile(dir+"/"+name, nil, 0o600))
		time.Sleep(time.Millisecond)
		events, err := w.Take()
		if slices.Contains(events, Event{name, sandpit.FileCreated}) {
			return
		}
		if err != nil && !errors.Is(err, sandpit.Exhausted) {
			t.Fatal(err)
		}
	}
	t.Error("nothing is reported any more")
}

func TestTake(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := watch(t, dir, false)
	if events, err := w.Take(); err != nil || len(events) != 0 {
		t.Errorf("Take: %v, %v, want nothing", events, err)
	}
	must(t, os.WriteFile(dir+"/file", nil, 0o600))
	deadline := time.Now().Add(10 * time.Second)
	for {
		events, err := w.Take()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("Take: %v, %v", events, err)
		}
		if len(events) == 1 && events[0] == (Event{"file", sandpit.FileCreated}) {
			break
		}
		time.Sleep(time.Millisecond)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	w := watch(t, t.TempDir(), true)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := w.Next(t.Context()); !errors.Is(err, sandpit.Gone) {
				t.Errorf("Next: %v, want Gone", err)
			}
		})
	}
	wg.Go(func() {
		if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Next: %v, want Canceled", err)
		}
		for range 2 {
			wg.Go(func() { check(t, w.Close()) })
		}
	})
	time.Sleep(10 * time.Millisecond)
	cancel()
	wg.Wait()
	must(t, w.Close())
	if _, err := w.Take(); !errors.Is(err, sandpit.Gone) {
		t.Errorf("Take: %v, want Gone", err)
	}
}

// TestManyWatchers also counts descriptors, so it is not parallel.
func TestManyWatchers(t *testing.T) {
	dir := t.TempDir()
	w, err := New(dir, true) // the first one starts the runtime's poller
	must(t, err)
	must(t, w.Close())
	before := descriptors(t)
	watchers := map[string]*Watcher{}
	for i := range 30 {
		sub := fmt.Sprintf("%s/%d", dir, i)
		must(t, os.MkdirAll(sub+"/a/b", 0o700))
		w, err := New(sub, true)
		must(t, err)
		watchers[sub] = w
	}
	var wg sync.WaitGroup
	for sub, w := range watchers {
		wg.Go(func() {
			check(t, os.WriteFile(sub+"/a/b/file", nil, 0o600))
			if e, err := w.Next(t.Context()); err != nil || e != (Event{"a/b/file", sandpit.FileCreated}) {
				t.Errorf("Next: %v, %v", e, err)
			}
			if len(sub)%2 == 0 {
				check(t, os.RemoveAll(sub))
				wantGone(t, w)
			}
			check(t, w.Close())
		})
	}
	wg.Wait()
	for _, path := range []string{"missing", "missing/file"} {
		if _, err := New(dir+"/"+path, true); err == nil {
			t.Error("no error")
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// TestBusyClose closes while directories come and go.
func TestBusyClose(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			sub := fmt.Sprintf("%s/%d", dir, i%7)
			_ = os.MkdirAll(sub+"/x/y", 0o700)
			_ = unix.Rename(sub, fmt.Sprintf("%s/%d", dir, i%5))
			_ = os.RemoveAll(fmt.Sprintf("%s/%d", dir, i%3))
		}
	})
	for range 50 {
		w, err := New(dir, true)
		if err != nil {
			t.Errorf("New: %v", err)
			break
		}
		_, _ = w.Next(t.Context())
		must(t, w.Close())
	}
	close(stop)
	wg.Wait()
}

// TestTakeHasAllBefore takes at once what has just been done.
func TestTakeHasAllBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := watch(t, dir, true)
	for i := range 500 {
		name := strconv.Itoa(i)
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		if events, err := w.Take(); err != nil || !slices.Equal(events, []Event{{name, sandpit.FileCreated}}) {
			t.Fatalf("round %d: got %v, %v", i, events, err)
		}
	}
	must(t, os.RemoveAll(dir))
	for _, err := w.Take(); !errors.Is(err, sandpit.Gone); _, err = w.Take() {
		if err != nil {
			t.Fatal(err)
		}
	}
}
