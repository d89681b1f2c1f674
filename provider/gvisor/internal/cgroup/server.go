package cgroup

import (
	"crypto/rand"
	"errors"
	"fmt"
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

// ServerGroup is the control group of a server. It is beside the groups of engines and has more
// weight, so that the server responds while sandboxes use the whole machine.
//
// It has the server's process alone: the reaper returns to the group that the server came from,
// and processes that the reaper starts inherit that or have groups of their own. Sandboxes cause
// the work of gateways, which must not have the server's weight.
type ServerGroup struct {
	hierarchies []serverHierarchy
	ops         groupOps
}

// serverHierarchy is a server's group in one hierarchy of control groups.
type serverHierarchy struct {
	dir      string // the server's group
	home     string // the group that the server came from
	settings []groupSetting
}

type groupSetting struct{ file, value string }

// groupOps creates and removes groups. Tests replace it: the files of a group are created and
// removed with it, unlike those of an ordinary directory.
type groupOps struct{ mkdir, rmdir func(string) error }

const (
	serverGroupPrefix = groupPrefix + "server-"

	// Ten times the default, which engines have.
	serverWeight = 1000      // cpu.weight of version 2
	serverShares = 10 * 1024 // cpu.shares of version 1

	serverMemoryMin = 64 << 20 // bytes for the program itself

	// homeArgument precedes a group that the reaper returns to.
	homeArgument = "home:"

	// serverGroupTries bounds how often a server creates its group, which another server that
	// starts at the same moment may remove while it is empty.
	serverGroupTries = 5
	// leaveLimit is how long processes may take to leave a server's group.
	leaveLimit = 200 * time.Millisecond
)

// EnterServerGroup moves this process into a control group of its own, and removes empty groups
// that killed servers have left in the same parent. memory is how many bytes the server uses for
// requests; version 2 protects that and serverMemoryMin from reclaim.
//
// Unsupported: the process may not create such a group, and stays in its group.
func EnterServerGroup(memory int64) (*ServerGroup, error) {
	mounted, own, err := findHierarchies()
	if err != nil {
		return nil, err
	}
	return mounted.enterServerGroup(own, memory, osGroupOps())
}

func osGroupOps() groupOps {
	return groupOps{
		mkdir: func(dir string) error { return os.Mkdir(dir, 0o755) }, //nolint:gosec // as the system's own groups
		rmdir: os.Remove,
	}
}

func (m hierarchies) enterServerGroup(own ownPaths, memory int64, ops groupOps) (*ServerGroup, error) {
	for try := 1; ; try++ {
		moves, err := m.planServerGroup(own, serverGroupPrefix+strings.ToLower(rand.Text()[:12]), memory)
		if err != nil {
			return nil, err
		}
		g := &ServerGroup{hierarchies: moves, ops: ops}
		g.sweepEmpty()
		err = g.enter()
		if err == nil {
			return g, nil
		}
		removed := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
		if !removed || try == serverGroupTries {
			return nil, sandpit.Errorf(sandpit.Unsupported, "create the server's control group: %w", err)
		}
	}
}

// planServerGroup returns where a server's group can be. It creates nothing.
//
// The protection of memory in version 1 is not worth a group: a group with a soft limit loses
// memory earlier, and a group without one last.
func (m hierarchies) planServerGroup(own ownPaths, name string, memory int64) ([]serverHierarchy, error) {
	var moves []serverHierarchy
	var reasons []string
	if m[CPU] != "" {
		home := leaveServerPath(joinGroup(m[CPU], own[CPU]))
		move := serverHierarchy{
			dir: filepath.Join(home, name), home: home,
			settings: []groupSetting{{"cpu.shares", strconv.Itoa(serverShares)}},
		}
		if err := checkMove(home, home); err != nil {
			reasons = append(reasons, err.Error())
		} else {
			moves = append(moves, move)
		}
	}
	parent, has := m.findParentV2(own)
	if settings := settingsV2(has, memory); len(settings) > 0 {
		home := joinGroup(m[""], own[""])
		if err := checkMove(home, parent); err != nil {
			reasons = append(reasons, err.Error())
		} else {
			moves = append(moves, serverHierarchy{filepath.Join(parent, name), home, settings})
		}
	}
	switch {
	case len(moves) > 0:
		return moves, nil
	case len(reasons) == 0:
		reasons = []string{"this user may change no control group with a CPU weight"}
	}
	return nil, sandpit.Errorf(sandpit.Unsupported, "%s", strings.Join(reasons, "; "))
}

// settingsV2 returns the settings of a server's group of version 2 for the enabled controllers.
func settingsV2(has []Controller, memory int64) []groupSetting {
	var settings []groupSetting
	if slices.Contains(has, CPU) {
		settings = append(settings, groupSetting{"cpu.weight", strconv.Itoa(serverWeight)})
	}
	if slices.Contains(has, Memory) {
		settings = append(settings,
			groupSetting{"memory.min", strconv.FormatInt(serverMemoryMin, 10)},
			groupSetting{"memory.low", strconv.FormatInt(serverMemoryMin+memory, 10)})
	}
	return settings
}

// checkMove returns why a process may not leave the group home for a new group below parent, or
// could not return. It also stays where an administrator has configured home: leaving would lift
// a limit, and systemd would not find the main process in its unit, which its logs and
// accounting need.
func checkMove(home, parent string) error {
	for _, path := range []string{parent, filepath.Join(parent, ProcsFile), filepath.Join(home, ProcsFile)} {
		if err := unix.Access(path, unix.W_OK); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for dir := home; dir != parent && len(dir) > len(parent); dir = filepath.Dir(dir) {
		base := filepath.Base(dir)
		if strings.HasSuffix(base, ".service") || strings.HasSuffix(base, ".scope") {
			return fmt.Errorf("the control group belongs to the systemd unit %s", base)
		}
		for _, file := range []string{"cpu.max", "memory.max", "memory.high"} {
			if data, err := os.ReadFile(filepath.Join(dir, file)); err == nil && !strings.HasPrefix(string(data), "max") {
				return fmt.Errorf("%s limits the server by %s", dir, file)
			}
		}
	}
	return nil
}

// leaveServerPath returns the parent of a server's group, and other groups unchanged: the groups
// of engines are beside a server's group.
func leaveServerPath(dir string) string {
	if strings.HasPrefix(filepath.Base(dir), serverGroupPrefix) {
		return filepath.Dir(dir)
	}
	return dir
}

// sweepEmpty removes the empty groups of servers in the same parents. The kernel refuses to
// remove a group with a process in it.
func (g *ServerGroup) sweepEmpty() {
	for _, h := range g.hierarchies {
		parent := filepath.Dir(h.dir)
		entries, _ := os.ReadDir(parent) // on failure nothing is removed
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), serverGroupPrefix) {
				_ = g.ops.rmdir(filepath.Join(parent, e.Name())) // fails for one in use, and for another user's
			}
		}
	}
}

// enter creates the group and moves this process into it, in all hierarchies or in none.
func (g *ServerGroup) enter() error {
	for i, h := range g.hierarchies {
		err := g.createAndEnter(h)
		if err == nil {
			continue
		}
		g.hierarchies = g.hierarchies[:i]
		return errors.Join(err, g.Close())
	}
	return nil
}

func (g *ServerGroup) createAndEnter(h serverHierarchy) error {
	if err := g.ops.mkdir(h.dir); err != nil {
		return err
	}
	for _, s := range append(slices.Clone(h.settings), groupSetting{ProcsFile, "0"}) { // 0 is the writer
		if err := Write(filepath.Join(h.dir, s.file), s.value); err != nil {
			_ = g.ops.rmdir(h.dir) // it may not exist any more
			return err
		}
	}
	return nil
}

// Close moves this process to the group that it came from and removes the server's group. The
// next server removes what remains. Closing nil does nothing.
func (g *ServerGroup) Close() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, h := range g.hierarchies {
		err := Write(filepath.Join(h.home, ProcsFile), "0")
		if err == nil {
			err = g.removeGroup(h.dir)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("leave the server's control group: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (g *ServerGroup) removeGroup(dir string) error {
	for end := time.Now().Add(leaveLimit); ; time.Sleep(5 * time.Millisecond) {
		err := g.ops.rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) { // another server may have removed it
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// String returns the group's directories.
func (g *ServerGroup) String() string {
	var dirs []string
	for _, h := range g.hierarchies {
		dirs = append(dirs, h.dir)
	}
	return strings.Join(dirs, ", ")
}

// ReaperArguments returns arguments for a reaper, from which LeaveServerGroup reads its groups.
func (g *ServerGroup) ReaperArguments() []string {
	if g == nil {
		return nil
	}
	var args []string
	for _, h := range g.hierarchies {
		args = append(args, homeArgument+h.home)
	}
	return args
}

// LeaveServerGroup moves this process to the groups that its arguments name. If a group cannot
// be entered, the process stays in the server's group: it has too much weight then, and a later
// server removes that group.
func LeaveServerGroup(args []string) {
	for _, arg := range args {
		if home, ok := strings.CutPrefix(arg, homeArgument); ok {
			_ = Write(filepath.Join(home, ProcsFile), "0")
		}
	}
}

// CheckServerGroup returns why a server that is started here gets no group of its own, nil if it
// gets one. It creates nothing.
func CheckServerGroup() error {
	mounted, own, err := findHierarchies()
	if err == nil {
		_, err = mounted.planServerGroup(own, serverGroupPrefix+"doctor", 0)
	}
	return err
}
