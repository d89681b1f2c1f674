package fake

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// World is the machine that fake sandboxes live on. It survives its Providers.
// All methods may be called concurrently.
type World struct {
	dir string

	mu        sync.Mutex
	boxes     map[sandpit.ID]*sandbox
	snapshots map[sandpit.SnapshotID]sandpit.Snapshot
	taking    map[sandpit.SnapshotID]bool // incomplete snapshots
	faults    []*Fault
	calls     map[callKey]int
	closed    bool
	liveness  liveness.Options
}

// NewWorld returns an empty World with all of its files in dir, which must exist and must not contain
// links. The caller must Close it, which also ends its goroutines.
func NewWorld(dir string) *World {
	return &World{
		dir:       dir,
		boxes:     make(map[sandpit.ID]*sandbox),
		snapshots: make(map[sandpit.SnapshotID]sandpit.Snapshot),
		taking:    make(map[sandpit.SnapshotID]bool),
		calls:     make(map[callKey]int),
	}
}

// NewProvider returns another Provider of this World.
func (w *World) NewProvider() *Provider { return &Provider{world: w} }

// Close destroys all sandboxes and removes all files. It is idempotent.
func (w *World) Close() error {
	w.mu.Lock()
	w.closed = true
	boxes := make([]*sandbox, 0, len(w.boxes))
	for _, b := range w.boxes {
		boxes = append(boxes, b)
	}
	w.mu.Unlock()
	var errs []error
	for _, b := range boxes {
		errs = append(errs, b.destroySandbox(sandpit.Exit{Reason: "the world was closed"}))
	}
	errs = append(errs, removeAll(w.snapshotDir()), removeAll(w.volumesDir()), os.RemoveAll(w.boxesDir()))
	return errors.Join(errs...)
}

// Kill ends a sandbox from outside, like a crash or another tool. The sandbox is listed until it is
// destroyed. Wait returns exit, which needs a Reason.
//
// NotFound: no such sandbox. Gone: it has ended already.
func (w *World) Kill(id sandpit.ID, exit sandpit.Exit) error {
	b, err := w.findSandbox(id)
	if err != nil {
		return err
	}
	if exit.Reason == "" {
		return sandpit.Errorf(sandpit.Invalid, "kill sandbox %s: exit without a reason", id)
	}
	return b.killSandbox(exit)
}

// Vanish removes a sandbox without the knowledge of its Providers. Its exit is unknown. NotFound: no
// such sandbox.
func (w *World) Vanish(id sandpit.ID) error {
	b, err := w.findSandbox(id)
	if err != nil {
		return err
	}
	return b.destroySandbox(sandpit.Exit{Reason: "the sandbox vanished"})
}

// View is the state of a sandbox as seen from outside.
type View struct {
	State State
	// Dir is the directory of all its files.
	Dir string
	// Image is the image of its spec.
	Image sandpit.Image
	// Resources are those of its spec, or the last ones of Resize. Network is the last requested one.
	Resources sandpit.Resources
	Network   sandpit.NetworkPolicy
	// Expiry is the one of its spec, or the last one of Renew.
	Expiry sandpit.Expiry
}

// Look returns the View of a sandbox, or false if it does not exist.
func (w *World) Look(id sandpit.ID) (View, bool) {
	b, err := w.findSandbox(id)
	if err != nil {
		return View{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return View{State: b.state, Dir: b.dir, Image: b.spec.Image, Resources: b.spec.Resources, Network: b.network, Expiry: b.expiry}, true
}

// Leftovers returns the names of remaining files and processes of sandboxes, including destroyed
// ones. Snapshots are kept until Close and do not count.
func (w *World) Leftovers() []string {
	var left []string
	entries, err := os.ReadDir(w.boxesDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		left = append(left, err.Error())
	}
	for _, e := range entries {
		left = append(left, filepath.Join(w.boxesDir(), e.Name()))
	}
	for _, pid := range markedBy(w.boxesDir() + "/") {
		left = append(left, fmt.Sprintf("process %d", pid))
	}
	return left
}

func (w *World) boxesDir() string    { return filepath.Join(w.dir, "boxes") }
func (w *World) snapshotDir() string { return filepath.Join(w.dir, "snapshots") }

func (w *World) findSandbox(id sandpit.ID) (*sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.boxes[id]
	if b == nil {
		return nil, sandpit.Errorf(sandpit.NotFound, "sandbox %s does not exist", id)
	}
	return b, nil
}

// addSandbox adds a sandbox, whose ID must be new.
func (w *World) addSandbox(b *sandbox) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return sandpit.Errorf(sandpit.Unavailable, "the world is closed")
	}
	if w.boxes[b.id] != nil {
		return sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s already exists", b.id)
	}
	w.boxes[b.id] = b
	return nil
}

func (w *World) forgetSandbox(b *sandbox) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.boxes[b.id] == b {
		delete(w.boxes, b.id)
	}
}

func (w *World) listSandboxes() []*sandbox {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*sandbox, 0, len(w.boxes))
	for _, b := range w.boxes {
		list = append(list, b)
	}
	return list
}
