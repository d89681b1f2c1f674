package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ownerPrefix begins the names of owners' groups. No ID begins with it.
const ownerPrefix = "owner-"

// ownerGroupName returns the name of an owner's group. Owners may contain any character.
func ownerGroupName(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return ownerPrefix + hex.EncodeToString(sum[:8])
}

// SandboxGroups are the directories of one sandbox's groups by controller.
type SandboxGroups map[Controller]string

// SandboxGroups returns the directories of an owner's sandbox below root, where the engine sees
// the machine's root directory. It creates nothing.
func (g Groups) SandboxGroups(root, owner, id string) SandboxGroups {
	groups := make(SandboxGroups)
	for _, c := range controllers {
		if parent := g.sandboxParent(root, c, owner); parent != "" {
			groups[c] = filepath.Join(parent, id)
		}
	}
	return groups
}

// sandboxParent returns the group below which a sandbox gets its own for a controller. All
// sandboxes of an owner together have the CPU weight of one group, so that an owner's share of
// the CPU does not grow with the number of its sandboxes. A sandbox without an owner, like a
// spare of a pool, has a weight of its own. Memory and tasks of version 1 need no share.
func (g Groups) sandboxParent(root string, c Controller, owner string) string {
	dir := g.Dir(c)
	if dir == "" {
		return ""
	}
	dir = filepath.Join(root, dir)
	if owner == "" || g.V1[c] != "" && c != CPU && c != CPUTime {
		return dir
	}
	return filepath.Join(dir, ownerGroupName(owner))
}

// CreateSandboxGroup creates a directory of SandboxGroups, and its owner's group if that does
// not exist. The owner's group may be removed at the same time, with the last sandbox in it.
func (g Groups) CreateSandboxGroup(root, dir string) error {
	const tries = 10
	var err error
	for range tries {
		if err = os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrNotExist) { //nolint:gosec // as the system's own groups
			return err
		}
		if err = g.createOwnerGroup(root, filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func (g Groups) createOwnerGroup(root, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as the system's own groups
		return err
	}
	if g.V2 == "" || filepath.Dir(dir) != filepath.Join(root, g.V2) {
		return nil
	}
	return Write(filepath.Join(dir, controlFile), formatEnable(g.V2Has))
}

// removeOwnerGroup removes the owner's group above a sandbox's, unless other groups are in it.
func removeOwnerGroup(sandboxGroup string) {
	if parent := filepath.Dir(sandboxGroup); strings.HasPrefix(filepath.Base(parent), ownerPrefix) {
		_ = os.Remove(parent) // the kernel refuses that while there are groups in it
	}
}

// Dirs returns each directory once.
func (g SandboxGroups) Dirs() []string {
	var list []string
	for _, c := range controllers {
		if d := g[c]; d != "" && !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// IsV2 reports whether a controller's group is one of version 2.
func (g SandboxGroups) IsV2(c Controller) bool {
	_, err := os.Stat(g.Path(c, "cgroup.controllers"))
	return err == nil
}

// Path returns the path of a file of a controller's group.
func (g SandboxGroups) Path(c Controller, file string) string { return filepath.Join(g[c], file) }

// Set writes a value to a file of a controller's group, whose name depends on the version. An
// empty name: nothing is written.
func (g SandboxGroups) Set(c Controller, v1, v2, value string) error {
	name := v1
	if g.IsV2(c) {
		name = v2
	}
	if name == "" {
		return nil
	}
	return Write(g.Path(c, name), value)
}

// Processes returns the IDs of the processes in a controller's group.
func (g SandboxGroups) Processes(c Controller) ([]int, error) {
	data, err := os.ReadFile(g.Path(c, ProcsFile))
	if err != nil {
		return nil, err
	}
	var pids []int
	for f := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Remove removes the groups, whose processes must have been killed, and their owner's group if
// it is empty.
func (g SandboxGroups) Remove() error {
	var errs []error
	for _, dir := range g.Dirs() {
		errs = append(errs, removeGroup(dir))
		removeOwnerGroup(dir)
	}
	return errors.Join(errs...)
}
