package gvisor

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

// ServerGroup is the control group of a server's own. It lies beside the groups of
// engines and outweighs them, so that sandboxes that use the whole machine do not keep
// the server from answering.
//
// It holds the server's process alone: the reaper returns to the group that the server
// came from, and what the reaper starts inherits that or has groups of its own. Sandboxes
// make gateways work, and must not do so with the server's weight.
type ServerGroup struct {
	moves []serverMove
	tree  groupTree
}

// serverMove is the part of a server's group in one hierarchy of control groups.
type serverMove struct {
	dir      string // the server's group
	home     string // the group that the server came from
	settings []groupSetting
}

type groupSetting struct{ file, value string }

// groupTree makes and removes groups. Tests replace it, since the files of a group come
// and go with it, which those of an ordinary directory do not.
type groupTree struct{ mkdir, rmdir func(string) error }

const (
	serverGroupPrefix = groupPrefix + "server-"

	// Ten times the default, which engines have.
	serverWeight = 1000      // cpu.weight of version 2
	serverShares = 10 * 1024 // cpu.shares of version 1

	serverMemoryMin = 64 << 20 // for the program itself

	// homeArgument precedes a group that the reaper returns to.
	homeArgument = "home:"

	// serverGroupTries bounds how often a server makes its group again because another
	// one that starts at the same moment removed it while it was empty.
	serverGroupTries = 5
	// leavePatience is how long processes may take to leave a server's group.
	leavePatience = 200 * time.Millisecond
)

// EnterServerGroup moves this process into a control group of its own and removes empty
// ones that killed servers have left at the same place. memory is how many bytes the
// server uses for requests; version 2 protects that much and some more from reclaim.
//
// Unsupported: the process may not make such a group, and stays where it is.
func EnterServerGroup(memory int64) (*ServerGroup, error) {
	mounts, own, err := findGroups()
	if err != nil {
		return nil, err
	}
	return mounts.enterServerGroup(own, memory, osGroupTree())
}

func osGroupTree() groupTree {
	return groupTree{
		mkdir: func(dir string) error { return os.Mkdir(dir, 0o755) }, //nolint:gosec // as the system's own groups
		rmdir: os.Remove,
	}
}

func (m groupMounts) enterServerGroup(own ownPaths, memory int64, tree groupTree) (*ServerGroup, error) {
	for try := 1; ; try++ {
		moves, err := m.planServer(own, serverGroupPrefix+strings.ToLower(rand.Text()[:12]), memory)
		if err != nil {
			return nil, err
		}
		g := &ServerGroup{moves: moves, tree: tree}
		g.sweep()
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

// planServer finds out where a server's group can be. It makes nothing.
//
// Version 1 has no protection of memory that is worth a group: a soft limit makes a group
// give up memory earlier, and a group without one is the last to do so.
func (m groupMounts) planServer(own ownPaths, name string, memory int64) ([]serverMove, error) {
	var moves []serverMove
	var reasons []string
	if m[cpuController] != "" {
		home := outsideServerGroup(below(m[cpuController], own[cpuController]))
		move := serverMove{
			dir: filepath.Join(home, name), home: home,
			settings: []groupSetting{{"cpu.shares", strconv.Itoa(serverShares)}},
		}
		if err := canMove(home, home); err != nil {
			reasons = append(reasons, err.Error())
		} else {
			moves = append(moves, move)
		}
	}
	parent, has := m.unified(own)
	if settings := unifiedSettings(has, memory); len(settings) > 0 {
		home := below(m[""], own[""])
		if err := canMove(home, parent); err != nil {
			reasons = append(reasons, err.Error())
		} else {
			moves = append(moves, serverMove{filepath.Join(parent, name), home, settings})
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

// unifiedSettings returns what a server's group of version 2 has, where these controllers
// are handed on.
func unifiedSettings(has []controller, memory int64) []groupSetting {
	var settings []groupSetting
	if slices.Contains(has, cpuController) {
		settings = append(settings, groupSetting{"cpu.weight", strconv.Itoa(serverWeight)})
	}
	if slices.Contains(has, memoryController) {
		settings = append(settings,
			groupSetting{"memory.min", strconv.FormatInt(serverMemoryMin, 10)},
			groupSetting{"memory.low", strconv.FormatInt(serverMemoryMin+memory, 10)})
	}
	return settings
}

// canMove says why a process may not leave home for a new group below parent, or cannot
// return. What an administrator has decided for home keeps it there: a limit would be
// lifted, and systemd would no longer find the main process of a unit in that unit, which
// its logs and accounts are kept by.
func canMove(home, parent string) error {
	for _, path := range []string{parent, filepath.Join(parent, procsFile), filepath.Join(home, procsFile)} {
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

// outsideServerGroup returns the group beside which an engine's group goes: that of a
// server stands for the one above it.
func outsideServerGroup(dir string) string {
	if strings.HasPrefix(filepath.Base(dir), serverGroupPrefix) {
		return filepath.Dir(dir)
	}
	return dir
}

// sweep removes the empty groups of servers at the same place. The kernel refuses to
// remove one with a process in it.
func (g *ServerGroup) sweep() {
	for _, move := range g.moves {
		parent := filepath.Dir(move.dir)
		entries, _ := os.ReadDir(parent) // without them nothing is removed
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), serverGroupPrefix) {
				_ = g.tree.rmdir(filepath.Join(parent, e.Name())) // fails for one in use, and for another user's
			}
		}
	}
}

// enter makes the group and moves this process there, in all hierarchies or in none.
func (g *ServerGroup) enter() error {
	for i, move := range g.moves {
		err := g.enterOne(move)
		if err == nil {
			continue
		}
		g.moves = g.moves[:i]
		return errors.Join(err, g.Close())
	}
	return nil
}

func (g *ServerGroup) enterOne(move serverMove) error {
	if err := g.tree.mkdir(move.dir); err != nil {
		return err
	}
	for _, s := range append(slices.Clone(move.settings), groupSetting{procsFile, "0"}) { // 0 is the writer
		if err := writeGroup(filepath.Join(move.dir, s.file), s.value); err != nil {
			_ = g.tree.rmdir(move.dir) // it may not be there any more
			return err
		}
	}
	return nil
}

// Close moves this process to where it came from and removes the group. What it cannot
// remove, the next server does. Closing nil does nothing.
func (g *ServerGroup) Close() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, move := range g.moves {
		err := writeGroup(filepath.Join(move.home, procsFile), "0")
		if err == nil {
			err = g.removeGroup(move.dir)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("leave the server's control group: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (g *ServerGroup) removeGroup(dir string) error {
	for end := time.Now().Add(leavePatience); ; time.Sleep(5 * time.Millisecond) {
		err := g.tree.rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) { // another server may be quicker
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// String names the group's directories.
func (g *ServerGroup) String() string {
	var dirs []string
	for _, move := range g.moves {
		dirs = append(dirs, move.dir)
	}
	return strings.Join(dirs, ", ")
}

// reaperArguments tell a reaper where it belongs.
func (g *ServerGroup) reaperArguments() []string {
	if g == nil {
		return nil
	}
	var args []string
	for _, move := range g.moves {
		args = append(args, homeArgument+move.home)
	}
	return args
}

// leaveServerGroup moves this process to the groups that its arguments name. One that
// cannot be entered leaves it in the server's group: then it has more weight than it
// should, and that group is removed once it has ended.
func leaveServerGroup(args []string) {
	for _, arg := range args {
		if home, ok := strings.CutPrefix(arg, homeArgument); ok {
			_ = writeGroup(filepath.Join(home, procsFile), "0")
		}
	}
}

// serverGroup says whether a server that is started here gets a group of its own.
func (machine) serverGroup() Finding {
	f := Finding{Name: "server", Text: "gets a control group of its own, which outweighs sandboxes"}
	mounts, own, err := findGroups()
	if err == nil {
		_, err = mounts.planServer(own, serverGroupPrefix+"doctor", 0)
	}
	if err != nil {
		f.Text = "a server started here gets no control group of its own: " + err.Error()
		f.Hint = "run it as a systemd service with CPUWeight= and MemoryLow=, as deploy/sandpit.service does"
	}
	return f
}
