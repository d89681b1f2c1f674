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

// The bounds of what one build copies.
const (
	maxContext        = 1 << 30 // bytes
	maxContextEntries = 100_000
)

// contexts keep the files that builds copy, a directory for each build. They do not
// outlive the server: neither do builds.
type contexts struct {
	dir string

	mu   sync.Mutex
	busy map[sandpit.BuildID]bool // somebody fills the directory
}

var _ native.Contexts = (*contexts)(nil)

// openContexts removes what the last server has left.
func openContexts(stateDir string) (*contexts, error) {
	dir := filepath.Join(stateDir, "contexts")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	return &contexts{dir: dir, busy: make(map[sandpit.BuildID]bool)}, config.MakePrivate(dir, os.Geteuid())
}

func (c *contexts) begin(id sandpit.BuildID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[id] {
		return false
	}
	c.busy[id] = true
	return true
}

func (c *contexts) end(id sandpit.BuildID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, id)
}

// Put implements native.Contexts.
func (c *contexts) Put(ctx context.Context, id sandpit.BuildID, from io.Reader) error {
	if err := id.Validate(); err != nil {
		return err
	}
	if !c.begin(id) {
		return sandpit.Errorf(sandpit.Conflict, "the files of build %s are being sent already", id)
	}
	defer c.end(id)
	dir := filepath.Join(c.dir, string(id))
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err := unpackContext(ctx, dir, from)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

func unpackContext(ctx context.Context, dir string, from io.Reader) error {
	root, err := beneath.Open(dir)
	if err != nil {
		return err
	}
	// Links may lead anywhere: who copies follows none out of the directory.
	_, err = tree.Unpack(ctx, from, root, tree.Options{OutsideLinks: true, KeepTop: true, MaxBytes: maxContext, MaxEntries: maxContextEntries})
	return errors.Join(err, root.Close())
}

// Take implements native.Contexts.
func (c *contexts) Take(id sandpit.BuildID) (dir string, release func()) {
	dir = filepath.Join(c.dir, string(id))
	if info, err := os.Stat(dir); id.Validate() != nil || err != nil || !info.IsDir() || !c.begin(id) {
		return "", func() {}
	}
	return dir, func() {
		defer c.end(id)
		_ = os.RemoveAll(dir) // the next server does it otherwise
	}
}
