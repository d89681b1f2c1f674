package daemon

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
	"github.com/sandpit-dev/sandpit/internal/files/tree"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
)

// The bounds of what one build copies. What all of an owner's builds have together is
// bounded by a budget.
const (
	maxContext        = 1 << 30 // bytes
	maxContextEntries = 100_000
)

// contexts keep the files that builds copy, a directory for each build, until that has
// ended, or is forgotten. They do not outlive the server: neither do builds.
type contexts struct {
	dir   string
	space *diskspace.Budget

	mu   sync.Mutex
	kept map[sandpit.BuildID]*buildContext
}

// buildContext is what there is of one build.
type buildContext struct {
	space *diskspace.Reservation
	busy  bool // the directory is being filled or copied from
	gone  bool // the current user of the directory must remove it
}

var _ native.Contexts = (*contexts)(nil)

// newBuildFiles returns what the files of builds may take of a disk: those that wait for
// their build, archives that are kept for the next one, and what is unpacked of them.
func newBuildFiles(c config.Manager, disk *diskspace.Disk) *diskspace.Budget {
	return diskspace.NewBudget(diskspace.Options{
		Name: "files of builds", Disk: disk, Total: c.MaxUploadTotal, PerOwner: c.MaxUploadBytes,
		Hint: "wait until builds have ended, or start the builds that have their files; a build that is not started is forgotten after an hour",
	})
}

// openContexts removes what the last server has left.
func openContexts(stateDir string, space *diskspace.Budget) (*contexts, error) {
	dir := filepath.Join(stateDir, "contexts")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	return &contexts{dir: dir, space: space, kept: make(map[sandpit.BuildID]*buildContext)}, config.MakePrivate(dir, os.Geteuid())
}

func (c *contexts) dirOf(id sandpit.BuildID) string { return filepath.Join(c.dir, string(id)) }

// beginUpload counts the files of a build that has none yet.
func (c *contexts) beginUpload(owner string, id sandpit.BuildID) (*diskspace.Reservation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.kept[id]
	if old != nil && old.busy {
		return nil, sandpit.Errorf(sandpit.Conflict, "the files of build %s are already being uploaded", id)
	}
	if old != nil { // others take their place
		if err := c.removeFiles(id); err != nil {
			return nil, err
		}
	}
	space, err := c.space.Reserve(owner, 0)
	if err != nil {
		return nil, err
	}
	c.kept[id] = &buildContext{space: space, busy: true}
	return space, nil
}

// endUse removes or keeps the files of a build at the end of a use.
func (c *contexts) endUse(id sandpit.BuildID, keep bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.kept[id]
	if keep && !b.gone {
		b.busy = false
		return nil
	}
	return c.removeFiles(id)
}

// removeFiles removes the files of a build. They count as long as they are there. The lock is
// held.
func (c *contexts) removeFiles(id sandpit.BuildID) error {
	b := c.kept[id]
	b.busy = false
	if err := os.RemoveAll(c.dirOf(id)); err != nil {
		return err
	}
	b.space.Release()
	delete(c.kept, id)
	return nil
}

// Put implements native.Contexts.
func (c *contexts) Put(ctx context.Context, owner string, id sandpit.BuildID, from io.Reader) error {
	if err := id.Validate(); err != nil {
		return err
	}
	space, err := c.beginUpload(owner, id)
	if err != nil {
		return err
	}
	err = fillContext(ctx, c.dirOf(id), from, space)
	return errors.Join(err, c.endUse(id, err == nil))
}

// fillContext unpacks a stream into a new directory.
func fillContext(ctx context.Context, dir string, from io.Reader, space *diskspace.Reservation) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := beneath.Open(dir)
	if err != nil {
		return err
	}
	// Links may lead anywhere: a copy follows none out of the directory.
	_, err = tree.Unpack(ctx, from, root, tree.Options{
		OutsideLinks: true, KeepTop: true, MaxBytes: maxContext, MaxEntries: maxContextEntries, Reserve: space.Write,
	})
	return errors.Join(err, root.Close())
}

// Take implements native.Contexts.
func (c *contexts) Take(id sandpit.BuildID) (dir string, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.kept[id]
	switch {
	case b == nil:
		return "", func() {}, nil
	case b.busy:
		return "", nil, sandpit.Errorf(sandpit.Conflict, "the files of build %s are still being sent", id)
	}
	b.busy = true
	return c.dirOf(id), func() {
		_ = c.endUse(id, false) // the next server does it otherwise
	}, nil
}

// dropUnused removes the files of a build that can no longer start.
func (c *contexts) dropUnused(id sandpit.BuildID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.kept[id]
	if b == nil {
		return nil
	}
	if b.busy {
		b.gone = true
		return nil
	}
	return c.removeFiles(id)
}
