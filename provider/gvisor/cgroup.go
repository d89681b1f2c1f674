package gvisor

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// controller is what limits or counts one thing, in the words of Linux.
type controller string

const (
	memoryController controller = "memory"
	cpuController    controller = "cpu"
	cpuTimeCounter   controller = "cpuacct" // version 1 only: in version 2 cpu counts too
	pidsController   controller = "pids"
)

// controllers are all that sandboxes use.
var controllers = []controller{memoryController, cpuController, cpuTimeCounter, pidsController} //nolint:gochecknoglobals // a constant

// cgroups are the groups of one engine, below which each sandbox gets groups of
// its own. The reaper makes them, with the user's rights, and gives them to the
// engine.
type cgroups struct {
	// V1 are the directories of version 1 by controller.
	V1 map[controller]string `json:"v1,omitempty"`
	// V2 is the directory of version 2, which serves the controllers in V2Has.
	V2    string       `json:"v2,omitempty"`
	V2Has []controller `json:"v2_has,omitempty"`
	// Missing says why there is none, by controller.
	Missing map[controller]string `json:"missing,omitempty"`
}

const (
	cgroupsName = "cgroups" // file with the engine's cgroups in its directory
	groupPrefix = "sandpit-"
	engineGroup = "engine" // in version 2 processes live in leaves, the engine in this one
	procsFile   = "cgroup.procs"
	controlFile = "cgroup.subtree_control"
)

// dir returns the engine's directory for a controller, or "".
func (g cgroups) dir(c controller) string {
	if d := g.V1[c]; d != "" {
		return d
	}
	if slices.Contains(g.V2Has, c) {
		return g.V2
	}
	return ""
}

// dirs returns all directories, each once.
func (g cgroups) dirs() []string {
	var list []string
	for _, c := range controllers {
		if d := g.dir(c); d != "" && !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// cgroupPlan finds out where an engine's groups can be. It makes nothing.
//
// Version 1 has a tree for each controller, and the engine's group goes below
// the group of this process. Version 2 has one tree, in which only groups
// without processes of their own have children with limits: there it goes below
// the nearest group above this process that this user may change and that hands
// the controllers on.
func cgroupPlan(name string) (cgroups, error) {
	mounts, own, err := findGroups()
	if err != nil {
		return cgroups{}, err
	}
	return mounts.plan(own, groupPrefix+name), nil
}

// findGroups returns where hierarchies are mounted and which groups this process is in.
func findGroups() (groupMounts, ownPaths, error) {
	mounts, err := cgroupMounts("/proc/self/mountinfo")
	if err != nil {
		return nil, nil, err
	}
	own, err := ownGroups("/proc/self/cgroup")
	return mounts, own, err
}

// groupMounts say where hierarchies are mounted. The key "" is version 2.
type groupMounts map[controller]string

// ownPaths are this process's groups, by the same keys.
type ownPaths map[controller]string

func (m groupMounts) plan(own ownPaths, name string) cgroups {
	g := cgroups{V1: make(map[controller]string), Missing: make(map[controller]string)}
	unified, has := m.unified(own)
	for _, c := range controllers {
		switch {
		case m[c] != "":
			dir := outsideServerGroup(below(m[c], own[c]))
			if err := unix.Access(dir, unix.W_OK); err != nil {
				g.Missing[c] = fmt.Sprintf("%s: %v", dir, err)
				continue
			}
			g.V1[c] = filepath.Join(dir, name)
		case slices.Contains(has, c):
			g.V2, g.V2Has = filepath.Join(unified, name), append(g.V2Has, c)
		case c == cpuTimeCounter && slices.Contains(has, cpuController):
			continue
		case m[""] == "":
			g.Missing[c] = "no control group is mounted for it"
		default:
			g.Missing[c] = "no group of " + m[""] + " that this user may change hands it on"
		}
	}
	return g
}

// unified returns the group of version 2 that a new one can be made in, and
// the controllers that it hands on.
func (m groupMounts) unified(own ownPaths) (dir string, has []controller) {
	root := m[""]
	if root == "" {
		return "", nil
	}
	for dir = below(root, own[""]); ; dir = filepath.Dir(dir) {
		if has = handedOn(dir); len(has) > 0 && unix.Access(dir, unix.W_OK) == nil && unix.Access(filepath.Join(dir, procsFile), unix.W_OK) == nil {
			return dir, has
		}
		if dir == root || len(dir) <= len(root) {
			return "", nil
		}
	}
}

func handedOn(dir string) []controller {
	data, err := os.ReadFile(filepath.Join(dir, controlFile))
	if err != nil {
		return nil // not a group that we may look into
	}
	var has []controller
	for c := range strings.FieldsSeq(string(data)) {
		if slices.Contains(controllers, controller(c)) {
			has = append(has, controller(c))
		}
	}
	return has
}

// below joins a group's path to its mount. In a container the path may be that
// of the machine, which is not there: then the mount itself is our group.
func below(mount, group string) string {
	dir := filepath.Join(mount, group)
	if _, err := os.Stat(dir); err != nil {
		return mount
	}
	return dir
}

func cgroupMounts(path string) (groupMounts, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("find the control groups: %w", err)
	}
	defer f.Close()
	return parseMounts(f)
}

// parseMounts reads lines such as
//
//	36 25 0:31 / /sys/fs/cgroup/pids rw,relatime shared:15 - cgroup cgroup rw,pids
func parseMounts(r io.Reader) (groupMounts, error) {
	mounts := make(groupMounts)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		place, what := strings.Fields(before), strings.Fields(after)
		if !ok || len(place) < 5 || len(what) < 3 {
			continue
		}
		switch what[0] {
		case "cgroup2":
			mounts[""] = place[4]
		case "cgroup":
			for option := range strings.SplitSeq(what[2], ",") {
				if slices.Contains(controllers, controller(option)) {
					mounts[controller(option)] = place[4]
				}
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("find the control groups: %w", err)
	}
	return mounts, nil
}

// ownGroups reads lines such as "4:memory:/a/b" and, for version 2, "0::/a".
func ownGroups(path string) (ownPaths, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("find the control groups: %w", err)
	}
	own := make(ownPaths)
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for c := range strings.SplitSeq(parts[1], ",") {
			own[controller(c)] = parts[2]
		}
	}
	return own, nil
}

// make makes the engine's groups, for the user with that id outside. One that
// cannot be made is missing from then on. What is made is written to record
// first, so that whoever comes after a crash can remove it.
func (g *cgroups) make(record string, uid int) error {
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	if err := os.WriteFile(record, data, 0o600); err != nil {
		return fmt.Errorf("remember the control groups: %w", err)
	}
	for _, dir := range g.dirs() {
		if err := g.makeOne(dir, uid); err != nil {
			g.drop(dir, err)
			_ = os.Remove(dir) // it may not even be there
		}
	}
	return nil
}

func (g *cgroups) makeOne(dir string, uid int) error {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as the system's own groups
		return err
	}
	// Kernels, which are other users, search it. The umask may be that of a service, 0077.
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // as the system's own groups
		return err
	}
	given := []string{dir, filepath.Join(dir, procsFile)}
	if dir == g.V2 {
		if err := writeGroup(filepath.Join(dir, controlFile), enableControllers(g.V2Has)); err != nil {
			return err
		}
		leaf := filepath.Join(dir, engineGroup)
		if err := os.Mkdir(leaf, 0o755); err != nil { //nolint:gosec // as the system's own groups
			return err
		}
		given = append(given, filepath.Join(dir, controlFile), leaf, filepath.Join(leaf, procsFile))
	}
	if uid == os.Geteuid() {
		return nil
	}
	for _, path := range given {
		if err := os.Chown(path, uid, uid); err != nil {
			return err
		}
	}
	if dir != g.V2 {
		return nil
	}
	// In version 2 who enters a group must be allowed to enter the nearest group above it
	// and its own, too. Kernels are not the engine's user, and enter by themselves. Others
	// gain nothing: for them that nearest group is another one, and no process can be in
	// this group itself, which hands controllers on.
	return os.Chmod(filepath.Join(dir, procsFile), 0o666) //nolint:gosec // see above
}

// enableControllers is what a group's control file takes to hand controllers on.
func enableControllers(has []controller) string {
	var enable []string
	for _, c := range has {
		enable = append(enable, "+"+string(c))
	}
	return strings.Join(enable, " ")
}

// expectEntry makes entering a group quick for a while. The first process that
// enters one waits for 10 ms and more, until no other is just being made; those
// that follow soon do not. So the engine enters a group that it may be in, while a
// kernel process starts that will enter its own.
func (g cgroups) expectEntry() {
	dirs := g.dirs()
	if len(dirs) == 0 {
		return
	}
	dir := dirs[0]
	if dir == g.V2 {
		dir = filepath.Join(dir, engineGroup)
	}
	_ = writeGroup(filepath.Join(dir, procsFile), "0") // without it all is only slower
}

// drop takes a directory out of use.
func (g *cgroups) drop(dir string, why error) {
	for _, c := range controllers {
		if g.dir(c) != dir {
			continue
		}
		g.Missing[c] = why.Error()
		delete(g.V1, c)
		g.V2Has = slices.DeleteFunc(g.V2Has, func(has controller) bool { return has == c && dir == g.V2 })
	}
	if dir == g.V2 {
		g.V2 = ""
	}
}

// remove removes the engine's groups and all below, which must hold no
// processes any more.
func (g cgroups) remove() error {
	var errs []error
	for _, dir := range g.dirs() {
		errs = append(errs, removeGroup(dir))
	}
	return errors.Join(errs...)
}

// removeRecorded removes the groups that an engine's directory knows of.
func removeRecorded(engine string) error {
	data, err := os.ReadFile(filepath.Join(engine, cgroupsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var g cgroups
	if err == nil && len(data) > 0 { // empty: killed before anything was made
		err = json.Unmarshal(data, &g)
	}
	if err != nil {
		return fmt.Errorf("read the engine's control groups: %w", err)
	}
	for _, dir := range g.dirs() {
		if !strings.HasPrefix(filepath.Base(dir), groupPrefix) {
			return fmt.Errorf("the engine's control groups: %s is none", dir)
		}
	}
	return g.remove()
}

// groupPatience is how long the processes of a group may take to vanish after
// they were killed.
const groupPatience = 5 * time.Second

// removeGroup removes a group and those in it.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	wait := time.Millisecond
	for end := time.Now().Add(groupPatience); ; wait = min(2*wait, 50*time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("remove the control group: %w", err)
		}
		time.Sleep(wait)
	}
}

// writeGroup writes a value in one piece to a file that is there.
func writeGroup(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// readGroup reads one number; "max" is -1.
func readGroup(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(data))
	if text == "max" {
		return -1, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// readKey reads the number behind key in a file of lines "key number".
func readKey(path, key string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, sandpit.Errorf(sandpit.Internal, "%s has no %s", path, key)
}
