// Package cgroup creates and removes Linux control groups of both versions: those of an engine
// and of the sandboxes in it, and the group of a server.
package cgroup

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

// Controller limits or counts one resource. Its value is the name in Linux.
type Controller string

// The controllers that sandboxes use.
const (
	Memory  Controller = "memory"
	CPU     Controller = "cpu"
	CPUTime Controller = "cpuacct" // only version 1: in version 2 cpu counts as well
	PIDs    Controller = "pids"
)

// controllers are all controllers that sandboxes use.
var controllers = []Controller{Memory, CPU, CPUTime, PIDs} //nolint:gochecknoglobals // a constant

// Groups are the groups of one engine, below which each sandbox gets groups of its own. The
// reaper creates them with the user's rights and gives them to the engine.
type Groups struct {
	// V1 has the directories of version 1 by controller.
	V1 map[Controller]string `json:"v1,omitempty"`
	// V2 is the directory of version 2, which has the controllers in V2Has.
	V2    string       `json:"v2,omitempty"`
	V2Has []Controller `json:"v2_has,omitempty"`
	// Missing has the reasons why controllers have no directory.
	Missing map[Controller]string `json:"missing,omitempty"`
}

const (
	// EngineLeaf is the group of version 2 that has the engine's process, because groups with
	// children have no processes.
	EngineLeaf = "engine"
	// ProcsFile is the file to which processes are written to enter a group.
	ProcsFile = "cgroup.procs"

	groupPrefix = "sandpit-"
	controlFile = "cgroup.subtree_control"
)

// Dir returns the engine's directory for a controller, or "".
func (g Groups) Dir(c Controller) string {
	if d := g.V1[c]; d != "" {
		return d
	}
	if slices.Contains(g.V2Has, c) {
		return g.V2
	}
	return ""
}

// dirs returns each directory once.
func (g Groups) dirs() []string {
	var list []string
	for _, c := range controllers {
		if d := g.Dir(c); d != "" && !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// Plan returns where an engine's groups can be, with a name. It creates nothing.
//
// Version 1 has a tree for each controller, and the engine's group is below the group of this
// process. Version 2 has one tree, in which only groups without processes can have children
// with limits: there it is below the nearest group above this process that this user may change
// and that enables controllers for its children.
func Plan(name string) (Groups, error) {
	mounted, own, err := findHierarchies()
	if err != nil {
		return Groups{}, err
	}
	return mounted.plan(own, groupPrefix+name), nil
}

// findHierarchies returns where hierarchies are mounted and the groups of this process.
func findHierarchies() (hierarchies, ownPaths, error) {
	mounted, err := readHierarchies("/proc/self/mountinfo")
	if err != nil {
		return nil, nil, err
	}
	own, err := readOwnPaths("/proc/self/cgroup")
	return mounted, own, err
}

// hierarchies are the mount points by controller. The key "" is version 2.
type hierarchies map[Controller]string

// ownPaths are the groups of this process by the same keys.
type ownPaths map[Controller]string

func (m hierarchies) plan(own ownPaths, name string) Groups {
	g := Groups{V1: make(map[Controller]string), Missing: make(map[Controller]string)}
	unified, has := m.findParentV2(own)
	for _, c := range controllers {
		switch {
		case m[c] != "":
			dir := leaveServerPath(joinGroup(m[c], own[c]))
			if err := unix.Access(dir, unix.W_OK); err != nil {
				g.Missing[c] = fmt.Sprintf("%s: %v", dir, err)
				continue
			}
			g.V1[c] = filepath.Join(dir, name)
		case slices.Contains(has, c):
			g.V2, g.V2Has = filepath.Join(unified, name), append(g.V2Has, c)
		case c == CPUTime && slices.Contains(has, CPU):
			continue
		case m[""] == "":
			g.Missing[c] = "its control groups are not mounted"
		default:
			g.Missing[c] = "it is not enabled in a group of " + m[""] + " that this user may change"
		}
	}
	return g
}

// findParentV2 returns the group of version 2 in which a new group can be created, and the
// controllers that it enables for its children.
func (m hierarchies) findParentV2(own ownPaths) (dir string, has []Controller) {
	root := m[""]
	if root == "" {
		return "", nil
	}
	for dir = joinGroup(root, own[""]); ; dir = filepath.Dir(dir) {
		if has = readEnabled(dir); len(has) > 0 && unix.Access(dir, unix.W_OK) == nil && unix.Access(filepath.Join(dir, ProcsFile), unix.W_OK) == nil {
			return dir, has
		}
		if dir == root || len(dir) <= len(root) {
			return "", nil
		}
	}
}

// readEnabled returns the controllers that a group enables for its children.
func readEnabled(dir string) []Controller {
	data, err := os.ReadFile(filepath.Join(dir, controlFile))
	if err != nil {
		return nil // this user may not read the group
	}
	var has []Controller
	for c := range strings.FieldsSeq(string(data)) {
		if slices.Contains(controllers, Controller(c)) {
			has = append(has, Controller(c))
		}
	}
	return has
}

// joinGroup joins a group's path to its mount point. In a container the path may be that of the
// machine, which does not exist there: then the mount point itself is the group.
func joinGroup(mount, group string) string {
	dir := filepath.Join(mount, group)
	if _, err := os.Stat(dir); err != nil {
		return mount
	}
	return dir
}

func readHierarchies(path string) (hierarchies, error) {
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
func parseMounts(r io.Reader) (hierarchies, error) {
	mounted := make(hierarchies)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		mount, fs := strings.Fields(before), strings.Fields(after)
		if !ok || len(mount) < 5 || len(fs) < 3 {
			continue
		}
		switch fs[0] {
		case "cgroup2":
			mounted[""] = mount[4]
		case "cgroup":
			for option := range strings.SplitSeq(fs[2], ",") {
				if slices.Contains(controllers, Controller(option)) {
					mounted[Controller(option)] = mount[4]
				}
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("find the control groups: %w", err)
	}
	return mounted, nil
}

// readOwnPaths reads lines such as "4:memory:/a/b" and, for version 2, "0::/a".
func readOwnPaths(path string) (ownPaths, error) {
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
			own[Controller(c)] = parts[2]
		}
	}
	return own, nil
}

// Create creates the groups for a user of the machine. A group that cannot be created is
// missing afterwards. Before that it writes the groups to a file, from which RemoveRecorded
// removes them after a crash.
func (g *Groups) Create(record string, uid int) error {
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	if err := os.WriteFile(record, data, 0o600); err != nil {
		return fmt.Errorf("record the control groups: %w", err)
	}
	for _, dir := range g.dirs() {
		if err := g.createGroup(dir, uid); err != nil {
			g.markMissing(dir, err)
			_ = os.Remove(dir) // it may not exist
		}
	}
	return nil
}

func (g *Groups) createGroup(dir string, uid int) error {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as the system's own groups
		return err
	}
	// Kernels, which are other users, search it, whatever the umask: a service may have 0077.
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // as the system's own groups
		return err
	}
	given := []string{dir, filepath.Join(dir, ProcsFile)}
	if dir == g.V2 {
		if err := Write(filepath.Join(dir, controlFile), formatEnable(g.V2Has)); err != nil {
			return err
		}
		leaf := filepath.Join(dir, EngineLeaf)
		if err := os.Mkdir(leaf, 0o755); err != nil { //nolint:gosec // as the system's own groups
			return err
		}
		given = append(given, filepath.Join(dir, controlFile), leaf, filepath.Join(leaf, ProcsFile))
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
	// In version 2 a process that enters a group must also have the right to enter the nearest
	// common group above both. Kernels are not the engine's user, and enter their groups
	// themselves. Other users gain nothing: their nearest common group is another one, and no
	// process can be in this group itself, which enables controllers for its children.
	return os.Chmod(filepath.Join(dir, ProcsFile), 0o666) //nolint:gosec // see above
}

// formatEnable returns the text that enables controllers for the children of a group.
func formatEnable(has []Controller) string {
	var enable []string
	for _, c := range has {
		enable = append(enable, "+"+string(c))
	}
	return strings.Join(enable, " ")
}

// WarmUp makes entering a group fast for a while. The first process that enters a group waits
// for 10 ms and more, until no process is being created; those that follow soon do not. So the
// engine enters a group that it may be in while a kernel process starts that will enter its own.
func (g Groups) WarmUp() {
	dirs := g.dirs()
	if len(dirs) == 0 {
		return
	}
	dir := dirs[0]
	if dir == g.V2 {
		dir = filepath.Join(dir, EngineLeaf)
	}
	_ = Write(filepath.Join(dir, ProcsFile), "0") // without it the start is only slower
}

// markMissing removes a directory from the groups, for a reason.
func (g *Groups) markMissing(dir string, reason error) {
	for _, c := range controllers {
		if g.Dir(c) != dir {
			continue
		}
		g.Missing[c] = reason.Error()
		delete(g.V1, c)
		g.V2Has = slices.DeleteFunc(g.V2Has, func(has Controller) bool { return has == c && dir == g.V2 })
	}
	if dir == g.V2 {
		g.V2 = ""
	}
}

// Remove removes the groups and all groups below, whose processes must have ended.
func (g Groups) Remove() error {
	var errs []error
	for _, dir := range g.dirs() {
		errs = append(errs, removeGroup(dir))
	}
	return errors.Join(errs...)
}

// RemoveRecorded removes the groups that Create wrote to a file. A file that does not exist is
// no error.
func RemoveRecorded(record string) error {
	data, err := os.ReadFile(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var g Groups
	if err == nil && len(data) > 0 { // empty: killed before any was created
		err = json.Unmarshal(data, &g)
	}
	if err != nil {
		return fmt.Errorf("read the engine's control groups: %w", err)
	}
	for _, dir := range g.dirs() {
		if !strings.HasPrefix(filepath.Base(dir), groupPrefix) {
			return fmt.Errorf("remove the engine's control groups: %s is not an engine's", dir)
		}
	}
	return g.Remove()
}

// removeLimit is how long the processes of a group may take to end after they were killed.
const removeLimit = 5 * time.Second

// removeGroup removes a group and those below.
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
	for end := time.Now().Add(removeLimit); ; wait = min(2*wait, 50*time.Millisecond) {
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

// Write writes a value to a file of a group in one call.
func Write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// ReadNumber reads a file with one number; "max" is -1.
func ReadNumber(path string) (int64, error) {
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

// ReadKey reads the number of a key from a file with lines "key number".
func ReadKey(path, key string) (int64, error) {
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
