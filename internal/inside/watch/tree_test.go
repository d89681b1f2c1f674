package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	sandpit "github.com/sandpit-dev/sandpit"
)

// stage is a tree whose events wait until they are asked for.
type stage struct {
	*tree
	t   *testing.T
	dir string
}

func newStage(t *testing.T, l limits, dirs ...string) *stage {
	t.Helper()
	s := &stage{t: t, dir: filepath.Join(t.TempDir(), "dir")}
	must(t, os.Mkdir(s.dir, 0o700))
	s.mkdir(dirs...)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	s.tree = newTree(fd, newQueue(l.events), l)
	s.stopped = func() bool { return false }
	must(t, s.watchRoot(s.dir, true))
	return s
}

func (s *stage) at(name string) string { return filepath.Join(s.dir, name) }

func (s *stage) mkdir(names ...string) {
	s.t.Helper()
	for _, name := range names {
		must(s.t, os.MkdirAll(s.at(name), 0o700))
	}
}

func (s *stage) write(names ...string) {
	s.t.Helper()
	for _, name := range names {
		must(s.t, os.WriteFile(s.at(name), nil, 0o600))
	}
}

func (s *stage) rename(from, to string) {
	s.t.Helper()
	must(s.t, unix.Rename(s.at(from), s.at(to))) // os.Rename refuses to replace a directory
}

func (s *stage) exchange(a, b string) {
	s.t.Helper()
	err := unix.Renameat2(unix.AT_FDCWD, s.at(a), unix.AT_FDCWD, s.at(b), unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) {
		s.t.Skip("this file system cannot exchange names")
	}
	must(s.t, err)
}

// play handles what waits, size bytes at once.
func (s *stage) play(size int) {
	s.t.Helper()
	buf := make([]byte, size)
	for {
		n, err := unix.Read(s.inotify, buf)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		must(s.t, err)
		must(s.t, s.handleData(buf[:n]))
	}
}

// lines plays all and returns what it told.
func (s *stage) lines() (lines []string) {
	s.t.Helper()
	s.play(readSize)
	events, err := s.queue.takeEvents()
	must(s.t, err)
	for _, e := range events {
		lines = append(lines, string(e.Type)+" "+e.Name)
	}
	return lines
}

// check compares the tree with what is on disk.
func (s *stage) check() {
	s.t.Helper()
	s.tree.at = s.total
	s.sweep = time.Time{}
	s.passBarriers(time.Now().Add(lateness))
	var want, got []string
	must(s.t, filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != s.dir {
			want = append(want, strings.TrimPrefix(path, s.dir+"/"))
		}
		return err
	}))
	for wd, n := range s.nodes {
		if n.wd != wd {
			s.t.Errorf("watch %d is listed as %d", n.wd, wd)
		}
		switch {
		case n == s.root:
		case n.top() != s.root:
			s.t.Errorf("%s is detached", n.name)
		case n.parent.children[n.name] != n:
			s.t.Errorf("%s is not in its parent", n.name)
		default:
			got = append(got, n.parent.pathOf(n.name))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("watched directories (-want +got):\n%s", diff)
	}
	s.replayDeferred()
	if len(s.deferred) != 0 || s.listed != 0 || len(s.moving)+len(s.detached) != 0 {
		s.t.Errorf("left over: %d events, %d names, %d renames, %d detached", len(s.deferred), s.listed, len(s.moving), len(s.detached))
	}
	for _, m := range s.missed {
		if s.nodes[m.in.wd] == m.in {
			s.t.Errorf("left over: %s in %s", m.name, m.in.name)
		}
	}
	if s.found != 0 || len(s.withBarrier) != 0 {
		s.t.Errorf("left over: %d names found in %d directories", s.found, len(s.withBarrier))
	}
}

var normal = limits{directories: maxDirectories, depth: maxDepth, events: maxEvents}

// TestPast does several things before the watcher looks at the first.
func TestPast(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dirs []string
		do   func(s *stage)
		want []string
		then string // a file that is made later
	}{
		"renamed twice": {
			dirs: []string{"a/sub"},
			do: func(s *stage) {
				s.rename("a", "b")
				s.write("b/sub/1")
				s.rename("b", "c")
				s.write("c/sub/2")
			},
			want: []string{"rename a", "create b", "create b/sub/1", "rename b", "create c", "create c/sub/2"},
			then: "c/sub/then",
		},
		"there and back": {
			dirs: []string{"a"},
			do:   func(s *stage) { s.rename("a", "b"); s.rename("b", "a") },
			want: []string{"rename a", "create b", "rename b", "create a"},
			then: "a/then",
		},
		"new under an old name": {
			dirs: []string{"a/old"},
			do: func(s *stage) {
				s.rename("a", "b")
				s.mkdir("a")
				s.write("a/1", "b/old/2")
			},
			want: []string{"rename a", "create b", "create a", "create a/1", "create b/old/2"},
			then: "b/old/then",
		},
		"made, renamed, made again": {
			do: func(s *stage) {
				s.mkdir("a")
				s.write("a/1")
				s.rename("a", "b")
				s.mkdir("a")
				s.write("a/2")
			},
			want: []string{"create a", "create a/2", "rename a", "create b", "create b/1", "create a"},
			then: "b/then",
		},
		"made, removed, made again": {
			do: func(s *stage) {
				s.mkdir("a")
				must(s.t, os.Remove(s.at("a")))
				s.mkdir("a/sub")
			},
			want: []string{"create a", "create a/sub", "remove a", "create a"},
			then: "a/sub/then",
		},
		"removed": {
			dirs: []string{"a/b"},
			do:   func(s *stage) { must(s.t, os.RemoveAll(s.at("a"))) },
			want: []string{"remove a/b", "remove a"},
		},
		"made and gone": {
			do:   func(s *stage) { s.mkdir("a"); must(s.t, os.Remove(s.at("a"))) },
			want: []string{"create a", "remove a"},
		},
		"renamed twice, and another comes": {
			dirs: []string{"a/sub"},
			do: func(s *stage) {
				s.rename("a", "b")
				s.rename("b", "c")
				s.mkdir("b/other")
			},
			want: []string{"rename a", "create b", "create b/other", "rename b", "create c", "create b"},
			then: "c/sub/then",
		},
		"exchanged in one that moves": {
			dirs: []string{"a/x", "to"},
			do: func(s *stage) {
				s.mkdir("../out/y")
				s.exchange("a/x", "../out")
				s.rename("a", "to/a")
			},
			want: []string{"rename a/x", "create a/x", "rename a", "create to/a", "create to/a/x/y"},
			then: "to/a/x/y/then",
		},
		"made in one that moves": {
			dirs: []string{"a/b"},
			do: func(s *stage) {
				s.mkdir("a/b/c")
				s.write("a/b/c/1")
				s.rename("a", "z")
			},
			want: []string{"create a/b/c", "rename a", "create z", "create z/b/c/1"},
			then: "z/b/c/then",
		},
		"parent into child": {
			dirs: []string{"a/b"},
			do:   func(s *stage) { s.rename("a/b", "b"); s.rename("a", "b/a") },
			want: []string{"rename a/b", "create b", "rename a", "create b/a"},
			then: "b/a/then",
		},
		"exchange": {
			dirs: []string{"a/in-a", "b/in-b"},
			do:   func(s *stage) { s.exchange("a", "b"); s.write("a/in-b/1") },
			want: []string{"rename a", "create b", "rename b", "create a", "create a/in-b/1"},
			then: "b/in-a/then",
		},
		"directory for file": {
			dirs: []string{"a"},
			do: func(s *stage) {
				s.write("f")
				s.exchange("a", "f")
			},
			want: []string{"create f", "write?", "rename a", "create f", "rename f", "create a"},
			then: "f/then",
		},
		"onto an empty one": {
			dirs: []string{"a", "b"},
			do:   func(s *stage) { s.write("a/1"); s.rename("a", "b") },
			want: []string{"create a/1", "rename a", "create b"},
			then: "b/then",
		},
		"link for directory": {
			do: func(s *stage) {
				s.mkdir("a/b")
				must(s.t, os.RemoveAll(s.at("a")))
				must(s.t, os.Symlink("..", s.at("a")))
			},
			want: []string{"create a", "remove a", "create a"},
		},
		"out and in": {
			dirs: []string{"a/b"},
			do: func(s *stage) {
				s.rename("a", "../a")
				s.rename("../a", "c")
			},
			want: []string{"rename a", "create c", "create c/b"},
			then: "c/b/then",
		},
		"file replaced in a found directory": {
			do: func(s *stage) {
				s.mkdir("a")
				s.write("a/1")
				must(s.t, os.Remove(s.at("a/1")))
				s.write("a/1")
			},
			want: []string{"create a", "create a/1"},
			then: "a/then",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, normal, tc.dirs...)
			tc.do(s)
			want := slices.DeleteFunc(slices.Clone(tc.want), func(l string) bool { return l == "write?" })
			if diff := cmp.Diff(want, s.lines()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			s.check()
			if tc.then == "" {
				return
			}
			s.write(tc.then)
			if got := s.lines(); len(got) != 1 || got[0] != "create "+tc.then {
				t.Errorf("then: %q", got)
			}
		})
	}
}

// TestFoundOnce lets events tell what a scan has told before.
func TestFoundOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t, normal)
	s.mkdir("a")
	s.play(readSize)
	n := s.root.children["a"]
	// These wait while the directory is read, as if between watch and scan.
	s.write("a/1", "a/2", "a/3")
	must(t, os.Remove(s.at("a/2")))
	s.write("a/2")
	d, err := s.openNode(s.root, "a")
	must(t, err)
	s.scanDir(d, n, true)
	d.closeFile()
	s.write("a/4")
	must(t, os.Remove(s.at("a/1")))
	s.write("a/1")
	want := []string{
		"create a", "create a/1", "create a/2", "create a/3",
		"remove a/2", "create a/2", "create a/4", "remove a/1", "create a/1",
	}
	got := s.lines()
	slices.Sort(got[1:4])
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	s.check()
}

// TestToldLate has events come after the scan that found what they tell.
func TestToldLate(t *testing.T) {
	t.Parallel()
	s := newStage(t, normal)
	s.mkdir("a")
	s.write("a/1", "a/2", "a/3")
	wantLen(t, s.lines(), 4)
	n := s.root.children["a"]
	tell := func(mask uint32, name string) []string {
		must(t, s.handleData(encode(change{wd: n.wd, mask: mask, name: name}, 16)))
		return s.lines()
	}
	wantLen(t, tell(unix.IN_CREATE, "1"), 0)
	wantLen(t, tell(unix.IN_CREATE, "1"), 1)
	wantLen(t, tell(unix.IN_MOVED_TO, "2"), 1) // it replaced what was found
	n.barrier.until = time.Now()
	wantLen(t, tell(unix.IN_CREATE, "3"), 1)
	s.check()
}

func wantLen(t *testing.T, lines []string, want int) {
	t.Helper()
	if len(lines) != want {
		t.Errorf("told %q, want %d lines", lines, want)
	}
}

// TestFoundTooMany finds more than may be remembered.
func TestFoundTooMany(t *testing.T) {
	t.Parallel()
	s := newStage(t, limits{directories: 100, depth: 100, events: 10})
	for round, name := range []string{"a", "b"} {
		s.mkdir(name)
		for i := range 8 {
			s.write(fmt.Sprintf("%s/%d", name, i))
		}
		wantLen(t, s.lines(), 9) // the second makes the first forgotten
		if s.found != 8 || len(s.withBarrier) != 1 {
			t.Errorf("round %d: %d names in %d directories are remembered", round, s.found, len(s.withBarrier))
		}
	}
	s.mkdir("c")
	for i := range 20 {
		s.write(fmt.Sprintf("c/%d", i))
	}
	s.play(readSize)
	if s.found != 10 {
		t.Errorf("%d names are remembered, want 10", s.found)
	}
	wantLen(t, s.lines(), 10)
	if _, err := s.queue.takeEvents(); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("take: %v, want Exhausted", err)
	}
	s.check()
}

// TestLost loses events and has the kernel say so.
func TestLost(t *testing.T) {
	t.Parallel()
	s := newStage(t, normal, "a/b", "gone/x", "moved/y")
	s.mkdir("new/deep")
	s.write("new/deep/unseen")
	must(t, os.RemoveAll(s.at("gone")))
	s.rename("moved", "a/here")
	s.rename("a/b", "../out")
	buf := make([]byte, readSize)
	if _, err := unix.Read(s.inotify, buf); err != nil { // lost
		t.Fatal(err)
	}
	overflow := make([]byte, unix.SizeofInotifyEvent)
	binary.NativeEndian.PutUint32(overflow, 0xFFFF_FFFF)
	binary.NativeEndian.PutUint32(overflow[4:], unix.IN_Q_OVERFLOW)
	must(t, s.handleData(overflow))
	if _, err := s.queue.takeEvents(); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("take: %v, want Exhausted", err)
	}
	s.play(readSize)
	s.check()
	s.write("new/deep/1", "a/here/y/2", "../out/3")
	if diff := cmp.Diff([]string{"create new/deep/1", "create a/here/y/2"}, s.lines()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestOverflow fills the kernel's own queue.
func TestOverflow(t *testing.T) {
	t.Parallel()
	const size = "/proc/sys/fs/inotify/max_queued_events"
	text, err := os.ReadFile(size)
	if err != nil {
		t.Skip("the kernel's queue has no limit here")
	}
	var limit int
	if _, err := fmt.Sscan(string(text), &limit); err != nil || limit > 100_000 {
		t.Skipf("the kernel keeps %d events, %v; that takes too long to fill", limit, err)
	}
	s := newStage(t, normal, "a")
	s.write("a/1", "a/2")
	for range limit/2 + 1 { // two names by turns, so that events are not merged
		must(t, os.Chmod(s.at("a/1"), 0o600))
		must(t, os.Chmod(s.at("a/2"), 0o600))
	}
	s.mkdir("late")
	s.play(readSize)
	exhausted := false
	for {
		events, err := s.queue.takeEvents()
		if len(events) == 0 && err == nil {
			break
		}
		exhausted = exhausted || errors.Is(err, sandpit.Exhausted)
	}
	if !exhausted {
		t.Error("never Exhausted")
	}
	s.check()
	s.write("late/file")
	if diff := cmp.Diff([]string{"create late/file"}, s.lines()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestDetachedEvents has something happen in a directory between the two halves
// of its rename.
func TestDetachedEvents(t *testing.T) {
	t.Parallel()
	s := newStage(t, normal, "a/sub")
	n := s.root.children["a"]
	s.rename("a", "b")
	s.mkdir("b/sub/new")
	s.write("b/sub/new/file")
	buf := make([]byte, readSize)
	size, err := unix.Read(s.inotify, buf)
	must(t, err)
	var changes []change
	for data := buf[:size]; len(data) > 0; {
		c, rest, err := parseChange(data)
		must(t, err)
		changes, data = append(changes, c), rest
	}
	if len(changes) != 4 { // from, to, self, create
		t.Fatalf("got %+v", changes)
	}
	for _, i := range []int{0, 3, 1, 2} {
		s.handleChange(changes[i])
		if i == 0 && n.parent != nil {
			t.Error("it has left, but is not detached")
		}
	}
	want := []string{"rename a", "create b", "create b/sub/new", "create b/sub/new/file"}
	if diff := cmp.Diff(want, s.lines()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	s.check()
}

// TestDetachedTooLong has more happen in a detached directory than is kept.
func TestDetachedTooLong(t *testing.T) {
	t.Parallel()
	s := newStage(t, limits{directories: 100, depth: 100, events: 5}, "a/sub")
	n := s.root.children["a"]
	s.rename("a", "b")
	buf := make([]byte, readSize)
	_, err := unix.Read(s.inotify, buf) // lost, but for this:
	must(t, err)
	s.handleChange(change{wd: s.root.wd, mask: unix.IN_MOVED_FROM | unix.IN_ISDIR, name: "a", cookie: 1})
	if n.parent != nil {
		t.Fatal("it has left, but is not detached")
	}
	for i := range 6 {
		s.write(fmt.Sprintf("b/sub/%d", i))
	}
	s.play(readSize)
	wantLen(t, s.lines(), 1)
	if _, err := s.queue.takeEvents(); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("take: %v, want Exhausted", err)
	}
	s.check()
	s.queue = newQueue(5) // what was kept follows
	s.write("b/sub/new")
	if diff := cmp.Diff([]string{"create b/sub/new"}, s.lines()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestRandom does random things, looks at random moments, and compares what is
// watched with what is there.
func TestRandom(t *testing.T) {
	t.Parallel()
	for seed := range 100 {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 0))
			s := newStage(t, normal, "a/b/c", "d/e", "../out/x")
			for range 60 {
				if r.IntN(8) > 0 {
					disturb(s.dir, r)
					continue
				}
				s.play([]int{300, readSize}[r.IntN(2)])
				if r.IntN(2) == 0 {
					s.lines()
					s.check()
				}
			}
			s.lines()
			s.check()
		})
	}
}

// TestRandomMeanwhile does random things while the watcher looks.
func TestRandomMeanwhile(t *testing.T) {
	t.Parallel()
	for seed := range 30 {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			s := newStage(t, normal, "a/b/c", "d/e", "../out/x")
			done := make(chan struct{})
			go func() {
				defer close(done)
				r := rand.New(rand.NewPCG(uint64(seed), 1))
				for range 500 {
					disturb(s.dir, r)
				}
			}()
			for busy := true; busy; {
				select {
				case <-done:
					busy = false
				default:
				}
				s.lines()
			}
			s.check()
		})
	}
}

// disturb does something random in and a little outside of dir, if it can.
func disturb(dir string, r *rand.Rand) {
	name := func() string {
		parts := []string{dir}
		if r.IntN(10) == 0 {
			parts = append(parts, "..", "out")
		}
		for range 1 + r.IntN(3) {
			parts = append(parts, string('a'+rune(r.IntN(5))))
		}
		return filepath.Join(parts...)
	}
	switch r.IntN(7) {
	case 0, 1:
		_ = os.MkdirAll(name(), 0o700)
	case 2, 3, 4:
		_ = unix.Rename(name(), name())
	case 5:
		_ = unix.Renameat2(unix.AT_FDCWD, name(), unix.AT_FDCWD, name(), unix.RENAME_EXCHANGE)
	case 6:
		_ = os.RemoveAll(name())
	}
}
