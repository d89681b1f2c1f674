package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// fakeGroups is a made-up tree of control groups: a new group has files, and one that a
// process has entered and not left again cannot be removed.
type fakeGroups struct {
	t        *testing.T
	root     string
	occupied map[string]bool // by other processes
}

// newFakeGroups makes groups with what their files say; "" is the root.
func newFakeGroups(t *testing.T, groups map[string]map[string]string) *fakeGroups {
	t.Helper()
	f := &fakeGroups{t: t, root: t.TempDir(), occupied: make(map[string]bool)}
	for group, files := range groups {
		dir := filepath.Join(f.root, group)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		f.write(dir, ProcsFile, "")
		for file, text := range files {
			f.write(dir, file, text)
		}
	}
	return f
}

func (f *fakeGroups) write(dir, file, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeGroups) read(parts ...string) string {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(data)
}

func (f *fakeGroups) tree() groupOps { return groupOps{f.mkdir, f.rmdir} }

func (f *fakeGroups) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, file := range []string{ProcsFile, "cpu.shares", "cpu.weight", "memory.min", "memory.low"} {
		f.write(dir, file, "")
	}
	return nil
}

func (f *fakeGroups) rmdir(dir string) error {
	if f.occupied[dir] {
		return unix.EBUSY
	}
	return os.RemoveAll(dir)
}

// servers returns the groups of servers below a group.
func (f *fakeGroups) servers(group string) []string {
	f.t.Helper()
	list, err := filepath.Glob(filepath.Join(f.root, group, serverGroupPrefix+"*"))
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}

func TestServerGroupV1(t *testing.T) {
	t.Parallel()
	f := newFakeGroups(t, map[string]map[string]string{"a": {}, "a/sandpit-server-old": {}, "a/sandpit-server-busy": {}, "a/sandpit-e1": {}})
	f.occupied[filepath.Join(f.root, "a/sandpit-server-busy")] = true
	g, err := hierarchies{CPU: f.root, Memory: f.root}.enterServerGroup(
		ownPaths{CPU: "/a", Memory: "/a"}, 1<<30, f.tree())
	if err != nil {
		t.Fatal(err)
	}
	dir := g.String()
	if filepath.Dir(dir) != filepath.Join(f.root, "a") || len(f.servers("a")) != 2 {
		t.Errorf("group %q, all: %v", dir, f.servers("a"))
	}
	if shares, procs := f.read(dir, "cpu.shares"), f.read(dir, ProcsFile); shares != "10240" || procs != "0" {
		t.Errorf("shares %q, processes %q", shares, procs)
	}
	if _, err := os.Stat(filepath.Join(f.root, "a/sandpit-e1")); err != nil {
		t.Errorf("an engine's group: %v", err)
	}
	// What starts in the server's group has the engine's groups beside it.
	inside := ownPaths{CPU: "/a/" + filepath.Base(dir)}
	if got, want := (hierarchies{CPU: f.root}).plan(inside, "sandpit-e2").V1[CPU], filepath.Join(f.root, "a/sandpit-e2"); got != want {
		t.Errorf("an engine's group is %q, want %q", got, want)
	}
	home := filepath.Join(f.root, "a")
	if diff := cmp.Diff([]string{"home:" + home}, g.ReaperArguments()); diff != "" {
		t.Errorf("arguments of a reaper (-want +got):\n%s", diff)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{filepath.Join(home, "sandpit-server-busy")}, f.servers("a")); diff != "" || f.read(home, ProcsFile) != "0" {
		t.Errorf("after the end (-want +got):\n%s", diff)
	}
}

func TestServerGroupV2(t *testing.T) {
	t.Parallel()
	f := newFakeGroups(t, map[string]map[string]string{
		"":     {controlFile: "cpu memory pids"},
		"main": {controlFile: "", "memory.max": "max\n", "memory.high": "max\n", "cpu.max": "max 100000\n"},
	})
	g, err := hierarchies{"": f.root}.enterServerGroup(ownPaths{"": "/main"}, 100, f.tree())
	if err != nil {
		t.Fatal(err)
	}
	dir := g.String()
	if filepath.Dir(dir) != f.root || !strings.HasPrefix(filepath.Base(dir), serverGroupPrefix) {
		t.Errorf("group %q", dir)
	}
	for file, want := range map[string]string{"cpu.weight": "1000", "memory.min": "67108864", "memory.low": "67108964", ProcsFile: "0"} {
		if got := f.read(dir, file); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if left := f.servers(""); len(left) > 0 || f.read(f.root, "main", ProcsFile) != "0" {
		t.Errorf("left behind: %v", left)
	}
}

// TestServerStays has groups that a server does not leave.
func TestServerStays(t *testing.T) {
	t.Parallel()
	handsOn := map[string]string{controlFile: "cpu memory"}
	for name, tc := range map[string]struct {
		groups map[string]map[string]string
		own    string
		reason string
	}{
		"a service":           {map[string]map[string]string{"": handsOn, "sandpit.service": {}}, "/sandpit.service", "systemd unit sandpit.service"},
		"a scope":             {map[string]map[string]string{"": handsOn, "session-1.scope": {}}, "/session-1.scope", "systemd unit session-1.scope"},
		"below a service":     {map[string]map[string]string{"": handsOn, "x.service": {}, "x.service/y": {}}, "/x.service/y", "systemd unit x.service"},
		"limited memory":      {map[string]map[string]string{"": handsOn, "a": {"memory.max": "1000\n"}}, "/a", "by memory.max"},
		"limited CPU above":   {map[string]map[string]string{"": handsOn, "a": {"cpu.max": "1 2\n"}, "a/b": {}}, "/a/b", "by cpu.max"},
		"nothing handed on":   {map[string]map[string]string{"": {controlFile: ""}, "a": {}}, "/a", "no control group"},
		"only pids handed on": {map[string]map[string]string{"": {controlFile: "pids"}, "a": {}}, "/a", "no control group"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeGroups(t, tc.groups)
			_, err := hierarchies{"": f.root}.enterServerGroup(ownPaths{"": tc.own}, 100, f.tree())
			if sandpit.CodeOf(err) != sandpit.Unsupported || !strings.Contains(err.Error(), tc.reason) {
				t.Errorf("error %v, want one with %q", err, tc.reason)
			}
			if left := f.servers(""); len(left) > 0 {
				t.Errorf("made: %v", left)
			}
		})
	}
	if _, err := (hierarchies{}).planServerGroup(ownPaths{}, "sandpit-server-x", 0); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("without control groups: %v", err)
	}
}

// TestServerLeavesWithinItsUnit has a unit that hands controllers on to groups below it.
func TestServerLeavesWithinItsUnit(t *testing.T) {
	t.Parallel()
	f := newFakeGroups(t, map[string]map[string]string{
		"": {controlFile: "cpu memory"}, "sandpit.service": {controlFile: "cpu memory"}, "sandpit.service/main": {},
	})
	moves, err := hierarchies{"": f.root}.planServerGroup(ownPaths{"": "/sandpit.service/main"}, "sandpit-server-x", 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(f.root, "sandpit.service/sandpit-server-x"); moves[0].dir != want {
		t.Errorf("group %q, want %q", moves[0].dir, want)
	}
}

func TestServerMayNotChangeItsGroup(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	f := newFakeGroups(t, map[string]map[string]string{"a": {}})
	if err := os.Chmod(filepath.Join(f.root, "a"), 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(f.root, "a"), 0o700) }) // else it cannot be removed
	_, err := hierarchies{CPU: f.root}.planServerGroup(ownPaths{CPU: "/a"}, "sandpit-server-x", 0)
	if sandpit.CodeOf(err) != sandpit.Unsupported || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("error: %v", err)
	}
}

// TestServersStartTogether has another server remove the group while it is still empty.
func TestServersStartTogether(t *testing.T) {
	t.Parallel()
	f := newFakeGroups(t, map[string]map[string]string{"a": {}})
	removals := serverGroupTries - 1
	tree := f.tree()
	tree.mkdir = func(dir string) error {
		if removals--; removals >= 0 {
			return nil // it was made, and is gone
		}
		return f.mkdir(dir)
	}
	enter := func() (*ServerGroup, error) {
		return hierarchies{CPU: f.root}.enterServerGroup(ownPaths{CPU: "/a"}, 0, tree)
	}
	g, err := enter()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.servers("a"), []string{g.String()}) {
		t.Errorf("groups: %v", f.servers("a"))
	}
	removals = serverGroupTries
	if _, err := enter(); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("one that is always removed: %v", err)
	}
}

// TestServerGroupFailsWhole has the second of two hierarchies fail: the process returns
// from the first one.
func TestServerGroupFailsWhole(t *testing.T) {
	t.Parallel()
	v1 := newFakeGroups(t, map[string]map[string]string{"a": {}})
	v2 := newFakeGroups(t, map[string]map[string]string{"": {controlFile: "memory"}, "b": {}})
	tree := v1.tree()
	tree.mkdir = func(dir string) error {
		if strings.HasPrefix(dir, v2.root) {
			return unix.EAGAIN // the kernel's answer to too many groups
		}
		return v1.mkdir(dir)
	}
	_, err := hierarchies{CPU: v1.root, "": v2.root}.enterServerGroup(ownPaths{CPU: "/a", "": "/b"}, 0, tree)
	if sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("error: %v", err)
	}
	if left := v1.servers("a"); len(left) > 0 || v1.read(v1.root, "a", ProcsFile) != "0" {
		t.Errorf("left behind: %v", left)
	}
}

func TestServerGroupThatIsBusyStays(t *testing.T) {
	t.Parallel()
	f := newFakeGroups(t, map[string]map[string]string{"a": {}})
	g, err := hierarchies{CPU: f.root}.enterServerGroup(ownPaths{CPU: "/a"}, 0, f.tree())
	if err != nil {
		t.Fatal(err)
	}
	f.occupied[g.String()] = true
	if err := g.Close(); err == nil {
		t.Error("no error, want one")
	}
	if err := (*ServerGroup)(nil).Close(); err != nil {
		t.Errorf("without a group: %v", err)
	}
}

func TestReaperLeavesServerGroup(t *testing.T) {
	t.Parallel()
	f := newFakeGroups(t, map[string]map[string]string{"a": {}, "b": {}})
	LeaveServerGroup([]string{"lasting", homeArgument + filepath.Join(f.root, "a"), homeArgument + filepath.Join(f.root, "gone")})
	if a, b := f.read(f.root, "a", ProcsFile), f.read(f.root, "b", ProcsFile); a != "0" || b != "" {
		t.Errorf("processes of a %q, of b %q", a, b)
	}
}
