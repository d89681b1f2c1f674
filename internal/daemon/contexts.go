package daemon

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/native"
	"github.com/sandpit-dev/sandpit/internal/beneath"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/tree"
)

// The bounds of what builds copy, of one and of all of an owner's that were not started.
const (
	maxContext        = 1 << 30 // bytes
	maxContexts       = 4 << 30
	maxContextEntries = 100_000
	contextEntryBytes = 4 << 10 // what an entry counts besides its content
)

// contexts keep the files that builds copy, a directory for each build, until that is
// started, or forgotten. They do not outlive the server: neither do builds.
type contexts struct {
	dir string

	mu   sync.Mutex
	kept map[sandpit.BuildID]*buildContext
}

// buildContext is what there is of one build.
type buildContext struct {
	owner string
	size  int64 // bytes; while the files are being sent, as many as may come
	busy  bool  // somebody fills the directory, or copies from it
	gone  bool  // who is busy is to remove it
}

var _ native.Contexts = (*contexts)(nil)

// openContexts removes what the last server has left.
func openContexts(stateDir string) (*contexts, error) {
	dir := filepath.Join(stateDir, "contexts")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	return &contexts{dir: dir, kept: make(map[sandpit.BuildID]*buildContext)}, config.MakePrivate(dir, os.Geteuid())
}

func (c *contexts) path(id sandpit.BuildID) string { return filepath.Join(c.dir, string(id)) }

// begin makes room for the files of a build, and returns how many bytes these may have.
func (c *contexts) begin(owner string, id sandpit.BuildID) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.kept[id]; b != nil && b.busy {
		return 0, sandpit.Errorf(sandpit.Conflict, "the files of build %s are being sent already", id)
	}
	room := int64(maxContexts)
	for other, b := range c.kept {
		if other != id && b.owner == owner {
			room -= b.size
		}
	}
	if room = min(room, maxContext); room <= 0 {
		return 0, sandpit.WithHint(
			sandpit.Errorf(sandpit.Exhausted, "the files of builds that were not started have, or may have, %d bytes, and that is as much as may be kept", int64(maxContexts)),
			"start these builds; one that nobody starts is forgotten after an hour")
	}
	c.kept[id] = &buildContext{owner: owner, size: room, busy: true}
	return room, nil
}

// end removes the files of a build for who was busy with them, or keeps so many bytes.
func (c *contexts) end(id sandpit.BuildID, keep bool, size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.kept[id]
	if keep && !b.gone {
		b.busy, b.size = false, size
		return nil
	}
	delete(c.kept, id)
	return os.RemoveAll(c.path(id))
}

// Put implements native.Contexts.
func (c *contexts) Put(ctx context.Context, owner string, id sandpit.BuildID, from io.Reader) error {
	if err := id.Validate(); err != nil {
		return err
	}
	room, err := c.begin(owner, id)
	if err != nil {
		return err
	}
	size, err := c.fill(ctx, c.path(id), from, room)
	return errors.Join(err, c.end(id, err == nil, size))
}

// fill unpacks a stream into a new directory, and returns how much that counts.
func (c *contexts) fill(ctx context.Context, dir string, from io.Reader, room int64) (int64, error) {
	if err := os.RemoveAll(dir); err != nil {
		return 0, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, err
	}
	root, err := beneath.Open(dir)
	if err != nil {
		return 0, err
	}
	// Links may lead anywhere: who copies follows none out of the directory.
	done, err := tree.Unpack(ctx, from, root, tree.Options{OutsideLinks: true, KeepTop: true, MaxBytes: room, MaxEntries: maxContextEntries})
	return done.Bytes + contextEntryBytes*int64(done.Files+done.Dirs+done.Links), errors.Join(err, root.Close())
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
	b.busy, b.size = true, 0 // a build that goes on is bounded otherwise
	return c.path(id), func() {
		_ = c.end(id, false, 0) // the next server does it otherwise
	}, nil
}

// drop removes the files of a build that nobody can start any more.
func (c *contexts) drop(id sandpit.BuildID) error {
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
	delete(c.kept, id)
	return os.RemoveAll(c.path(id))
}
