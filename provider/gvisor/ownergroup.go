package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ownerPrefix begins the names of the groups of owners. It cannot begin an ID.
const ownerPrefix = "owner-"

// ownerGroupName returns the name of an owner's group. Owners may contain any character.
func ownerGroupName(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return ownerPrefix + hex.EncodeToString(sum[:8])
}

// sandboxParent returns the group below which a sandbox gets its own for a controller. All
// sandboxes of an owner together have the CPU weight of one group, so that an owner's share of
// the CPU does not grow with the number of its sandboxes. A sandbox without an owner, as one
// that waits in a pool, is weighed by itself. The memory and tasks of version 1 need no share.
func (g cgroups) sandboxParent(c controller, owner string) string {
	dir := g.dir(c)
	if dir == "" {
		return ""
	}
	dir = filepath.Join(hostRoot, dir)
	if owner == "" || g.V1[c] != "" && c != cpuController && c != cpuTimeCounter {
		return dir
	}
	return filepath.Join(dir, ownerGroupName(owner))
}

// makeSandboxGroup creates a sandbox's group, and its owner's if that is missing. The owner's
// may be removed at the same time, with the last sandbox in it.
func (g cgroups) makeSandboxGroup(dir string) error {
	const tries = 10
	var err error
	for range tries {
		if err = os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrNotExist) { //nolint:gosec // as the system's own groups
			return err
		}
		if err = g.makeOwnerGroup(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func (g cgroups) makeOwnerGroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as the system's own groups
		return err
	}
	if g.V2 == "" || filepath.Dir(dir) != filepath.Join(hostRoot, g.V2) {
		return nil
	}
	return writeGroup(filepath.Join(dir, controlFile), enableControllers(g.V2Has))
}

// removeOwnerGroup removes the owner's group above a sandbox's, unless there are others in it.
func removeOwnerGroup(sandboxGroup string) {
	if parent := filepath.Dir(sandboxGroup); strings.HasPrefix(filepath.Base(parent), ownerPrefix) {
		_ = os.Remove(parent) // the kernel refuses that while there are groups in it
	}
}
