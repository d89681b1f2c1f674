package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParseMounts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want hierarchies
	}{
		"version 2": {
			"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
			hierarchies{"": "/sys/fs/cgroup"},
		},
		"both": {
			`25 20 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
26 20 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
27 20 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
28 20 0:25 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
`,
			hierarchies{
				"": "/sys/fs/cgroup/unified", Memory: "/sys/fs/cgroup/memory",
				CPU: "/sys/fs/cgroup/cpu,cpuacct", CPUTime: "/sys/fs/cgroup/cpu,cpuacct",
			},
		},
		"none":    {"1 1 0:1 / / rw - ext4 /dev/sda rw\n", hierarchies{}},
		"strange": {"a - b\n - \nx y z\n1 2 3 4 5 6 - cgroup2\n", hierarchies{}},
	} {
		got, err := parseMounts(strings.NewReader(tc.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPlanV2 looks for the nearest group that hands controllers on, in a tree of
// plain files.
func TestPlanV2(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Log("root may write everywhere: closed groups are not tried")
	}
	root := t.TempDir()
	for group, handed := range map[string]string{
		".":                          "cpuset cpu io memory pids",
		"user.slice":                 "memory pids",
		"user.slice/app":             "cpu memory pids",
		"user.slice/app/run.scope":   "",
		"user.slice/app/run.scope/x": "",
	} {
		dir := filepath.Join(root, group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{controlFile: handed, ProcsFile: ""} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := []Controller{Memory, CPU, PIDs}
	for own, tc := range map[string]struct {
		dir string
		has []Controller
	}{
		"/user.slice/app/run.scope":   {"user.slice/app", all},
		"/user.slice/app/run.scope/x": {"user.slice/app", all},
		"/user.slice":                 {"user.slice", []Controller{Memory, PIDs}},
		"/elsewhere":                  {".", all}, // as in a container that sees the machine's path
		"/":                           {".", all},
	} {
		got := hierarchies{"": root}.plan(ownPaths{"": own}, "sandpit-e1")
		if want := filepath.Join(root, tc.dir, "sandpit-e1"); got.V2 != want {
			t.Errorf("%s: %q, want %q", own, got.V2, want)
		}
		if diff := cmp.Diff(tc.has, got.V2Has); diff != "" {
			t.Errorf("%s (-want +got):\n%s", own, diff)
		}
		if missing := got.Missing[CPU] != ""; missing == (got.Dir(CPU) != "") {
			t.Errorf("%s: cpu is missing and not: %+v", own, got)
		}
	}
}

// TestGroupsV2 makes and removes groups of version 2 in a tree of plain files, as
// far as plain files go: limits of version 2 need a machine that has it.
func TestGroupsV2(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	record := filepath.Join(t.TempDir(), "groups")
	g := Groups{
		V2: filepath.Join(root, "sandpit-e1"), V2Has: []Controller{Memory},
		V1:      map[Controller]string{PIDs: filepath.Join(root, "missing", "sandpit-e1")},
		Missing: map[Controller]string{},
	}
	if err := g.Create(record, os.Geteuid()); err != nil {
		t.Fatal(err)
	}
	// The file that hands controllers on is not there, and neither is the parent
	// of the other one: what cannot be made is out of use, with the reason.
	if len(g.dirs()) != 0 || g.Missing[Memory] == "" || g.Missing[PIDs] == "" {
		t.Errorf("groups that could not be made: %+v", g)
	}
	if _, err := os.Stat(filepath.Join(root, "sandpit-e1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
	if err := RemoveRecorded(record); err != nil {
		t.Error(err)
	}
}

// TestGroupsIgnoreUmask is not parallel: the umask is the whole process's.
func TestGroupsIgnoreUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	dir := filepath.Join(t.TempDir(), "sandpit-e1")
	if err := (&Groups{}).createGroup(dir, os.Geteuid()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o755 {
		t.Errorf("mode %o, want 755", got)
	}
}

func TestRemoveRecordedTouchesItsOwnOnly(t *testing.T) {
	t.Parallel()
	engine, victim := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(engine, "groups"), []byte(`{"v1":{"memory":"`+victim+`"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveRecorded(filepath.Join(engine, "groups")); err == nil {
		t.Error("no error, want one")
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
}

// FuzzGroups reads the kernel's lists of mounts and control groups, in which the
// user's paths stand.
func FuzzGroups(f *testing.F) {
	f.Add("36 25 0:31 / /sys/fs/cgroup/pids rw,relatime shared:15 - cgroup cgroup rw,pids\n", "4:memory:/a/b\n0::/a\n")
	f.Add("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/user.slice/a:b\n")
	f.Add("1 2 3 4 - - - cgroup cgroup a - b\n", "::::\n\n:\n")
	f.Fuzz(func(t *testing.T, mountInfo, own string) {
		mounts, err := parseMounts(strings.NewReader(mountInfo))
		if err == nil {
			for c := range mounts {
				if c != "" && !slices.Contains(controllers, c) {
					t.Errorf("a controller %q", c)
				}
			}
		}
		name := filepath.Join(t.TempDir(), "cgroup")
		if err := os.WriteFile(name, []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
		groups, err := readOwnPaths(name)
		if err != nil {
			t.Fatal(err)
		}
		for c, path := range groups {
			if !strings.Contains(own, ":"+path) || strings.ContainsAny(string(c), ",:") {
				t.Errorf("%q is in %q", c, path)
			}
		}
	})
}
