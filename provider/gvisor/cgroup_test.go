package gvisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

func TestParseMounts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want groupMounts
	}{
		"version 2": {
			"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
			groupMounts{"": "/sys/fs/cgroup"},
		},
		"both": {
			`25 20 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
26 20 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
27 20 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
28 20 0:25 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
`,
			groupMounts{
				"": "/sys/fs/cgroup/unified", memoryController: "/sys/fs/cgroup/memory",
				cpuController: "/sys/fs/cgroup/cpu,cpuacct", cpuTimeCounter: "/sys/fs/cgroup/cpu,cpuacct",
			},
		},
		"none":    {"1 1 0:1 / / rw - ext4 /dev/sda rw\n", groupMounts{}},
		"strange": {"a - b\n - \nx y z\n1 2 3 4 5 6 - cgroup2\n", groupMounts{}},
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
		for file, content := range map[string]string{controlFile: handed, procsFile: ""} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := []controller{memoryController, cpuController, pidsController}
	for own, tc := range map[string]struct {
		dir string
		has []controller
	}{
		"/user.slice/app/run.scope":   {"user.slice/app", all},
		"/user.slice/app/run.scope/x": {"user.slice/app", all},
		"/user.slice":                 {"user.slice", []controller{memoryController, pidsController}},
		"/elsewhere":                  {".", all}, // as in a container that sees the machine's path
		"/":                           {".", all},
	} {
		got := groupMounts{"": root}.plan(ownPaths{"": own}, "sandpit-e1")
		if want := filepath.Join(root, tc.dir, "sandpit-e1"); got.V2 != want {
			t.Errorf("%s: %q, want %q", own, got.V2, want)
		}
		if diff := cmp.Diff(tc.has, got.V2Has); diff != "" {
			t.Errorf("%s (-want +got):\n%s", own, diff)
		}
		if missing := got.Missing[cpuController] != ""; missing == (got.dir(cpuController) != "") {
			t.Errorf("%s: cpu is missing and not: %+v", own, got)
		}
	}
}

// TestGroupsV2 makes and removes groups of version 2 in a tree of plain files, as
// far as plain files go: limits of version 2 need a machine that has it.
func TestGroupsV2(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	record := filepath.Join(t.TempDir(), cgroupsName)
	g := cgroups{
		V2: filepath.Join(root, "sandpit-e1"), V2Has: []controller{memoryController},
		V1:      map[controller]string{pidsController: filepath.Join(root, "missing", "sandpit-e1")},
		Missing: map[controller]string{},
	}
	if err := g.make(record, os.Geteuid()); err != nil {
		t.Fatal(err)
	}
	// The file that hands controllers on is not there, and neither is the parent
	// of the other one: what cannot be made is out of use, with the reason.
	if len(g.dirs()) != 0 || g.Missing[memoryController] == "" || g.Missing[pidsController] == "" {
		t.Errorf("groups that could not be made: %+v", g)
	}
	if _, err := os.Stat(filepath.Join(root, "sandpit-e1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
	if err := removeRecorded(filepath.Dir(record)); err != nil {
		t.Error(err)
	}
}

// TestGroupsIgnoreUmask is not parallel: the umask is the whole process's.
func TestGroupsIgnoreUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	dir := filepath.Join(t.TempDir(), "sandpit-e1")
	if err := (&cgroups{}).makeOne(dir, os.Geteuid()); err != nil {
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
	if err := os.WriteFile(filepath.Join(engine, cgroupsName), []byte(`{"v1":{"memory":"`+victim+`"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeRecorded(engine); err == nil {
		t.Error("no error, want one")
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
}

func TestLimitsWithoutGroups(t *testing.T) {
	t.Parallel()
	none := cgroups{Missing: map[controller]string{memoryController: "not here", cpuController: "not there"}}
	req := limitsRequest{Resources: sandpit.Resources{Memory: 1 << 30, CPUs: 2, Disk: 1 << 30, PIDs: 10}}
	l, err := newLimits(none, sandpit.NewID(), "", req, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"memory is not limited here: not here", "CPU time is not limited here: not there"}, l.notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	if want := (sandpit.Resources{Disk: 1 << 30, PIDs: 10}); l.enforced != want {
		t.Errorf("enforced: %+v, want %+v", l.enforced, want)
	}
	for _, c := range []controller{memoryController, cpuController} {
		req.Explicit = []controller{c}
		if _, err := newLimits(none, sandpit.NewID(), "", req, nil); sandpit.CodeOf(err) != sandpit.Unsupported || sandpit.HintOf(err) == "" {
			t.Errorf("an explicit limit of %s: %v", c, err)
		}
	}
}

func TestKernelIsTold(t *testing.T) {
	t.Parallel()
	args := []string{"runsc-sandbox", "--root=/gvisor", "boot", "--bundle=/b", "--total-host-memory", "9", "--total-memory", "9", "id"}
	want := []string{"runsc-sandbox", "--root=/gvisor", "boot", "--cpu-num=3", "--bundle=/b", "--total-host-memory", "9", "--total-memory", "5", "id"}
	if diff := cmp.Diff(want, kernelLimits{Memory: 5, CPUs: 3}.tell(args)); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(args, kernelLimits{}.tell(args)); diff != "" {
		t.Errorf("arguments without limits (-want +got):\n%s", diff)
	}
	if got := argument([]string{"gofer", "--bundle", "/b"}, "--bundle"); got != "/b" {
		t.Errorf("bundle %q", got)
	}
}
