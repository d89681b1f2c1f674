package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// imageDir returns the directory of a sandbox's initial files, or "" without any. It returns an error
// if the spec contradicts its snapshot.
func (w *World) imageDir(spec sandpit.Spec) (string, error) {
	if spec.Image == "" || spec.Image == sandpit.HostImage {
		return "", nil
	}
	if ref, ok := spec.Image.Template(); ok && sandpit.BuildID(ref).Validate() == nil {
		return "", nil
	}
	id, ok := spec.Image.Snapshot()
	w.mu.Lock()
	defer w.mu.Unlock()
	s, known := w.snapshots[id]
	if !ok || !known {
		return "", sandpit.Errorf(sandpit.NotFound, "image %q does not exist", string(spec.Image))
	}
	if s.Unloadable != "" {
		return "", sandpit.Errorf(sandpit.Unsupported, "snapshot %s: %s", id, s.Unloadable)
	}
	if len(spec.Mounts) > 0 && !slices.Equal(spec.Mounts, s.Spec.Mounts) {
		return "", sandpit.Errorf(sandpit.Invalid, "snapshot %s has other mounts", id)
	}
	if spec.Resources != (sandpit.Resources{}) && spec.Resources != s.Spec.Resources {
		return "", sandpit.Errorf(sandpit.Invalid, "snapshot %s has other limits", id)
	}
	return filepath.Join(w.snapshotDir(), string(id)), nil
}

// Spoil makes a snapshot unloadable, as a newer engine would. NotFound: it does not exist.
func (w *World) Spoil(id sandpit.SnapshotID, why string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, known := w.snapshots[id]
	if !known {
		return noSnapshot(id)
	}
	s.Unloadable = why
	w.snapshots[id] = s
	return nil
}

// Snapshots returns the IDs of all snapshots, in order.
func (w *World) Snapshots() []sandpit.SnapshotID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.snapshots))
}

func noSnapshot(id sandpit.SnapshotID) error {
	return sandpit.Errorf(sandpit.NotFound, "snapshot %.40s does not exist", string(id))
}

// takeSnapshot copies the files while all processes are stopped.
func (b *sandbox) takeSnapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	if err := b.lockInState(ctx, Running, Paused); err != nil {
		return sandpit.Snapshot{}, err
	}
	defer b.unlock()
	spec, _ := b.identityOf()
	s := sandpit.Snapshot{ID: id, Sandbox: b.id, Spec: spec.Clone(), CreatedAt: time.Now()}
	s.Spec.Env = nil
	if b.currentState() == Running {
		signalAll(b.dir, syscall.SIGSTOP)
		defer signalAll(b.dir, syscall.SIGCONT)
	}
	return b.world.addSnapshot(s, func(dir string) error { return copyTree(ctx, b.dir, dir) })
}

// addSnapshot adds a snapshot. fill writes its files into a new directory.
func (w *World) addSnapshot(s sandpit.Snapshot, fill func(dir string) error) (sandpit.Snapshot, error) {
	if err := w.reserveID(s.ID); err != nil {
		return sandpit.Snapshot{}, err
	}
	dir := filepath.Join(w.snapshotDir(), string(s.ID))
	err := os.MkdirAll(w.snapshotDir(), 0o700)
	if err == nil {
		err = fill(dir)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.taking, s.ID)
	if err != nil {
		return sandpit.Snapshot{}, errors.Join(err, removeAll(dir))
	}
	s.Size = diskUsage(dir) + 4096 // the directory itself counts too
	w.snapshots[s.ID] = s
	return s, nil
}

// reserveID reserves an ID. It returns an error for one that is in use or invalid.
func (w *World) reserveID(id sandpit.SnapshotID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, used := w.snapshots[id]; used || w.taking[id] {
		return sandpit.Errorf(sandpit.AlreadyExists, "snapshot %s already exists", id)
	}
	w.taking[id] = true
	return nil
}

// rollBack replaces the sandbox's files with those of a snapshot, and starts it again.
func (b *sandbox) rollBack(ctx context.Context, id sandpit.SnapshotID) error {
	if err := b.lockInState(ctx, Running, Paused); err != nil {
		return err
	}
	defer b.unlock()
	b.world.mu.Lock()
	s, known := b.world.snapshots[id]
	b.world.mu.Unlock()
	switch {
	case !known:
		return noSnapshot(id)
	case s.Sandbox != b.id:
		return sandpit.Errorf(sandpit.Invalid, "snapshot %s belongs to another sandbox", id)
	case s.Unloadable != "":
		return sandpit.Errorf(sandpit.Unsupported, "snapshot %s: %s", id, s.Unloadable)
	}
	// The copy comes first, so that a failure changes nothing.
	fresh, old := b.dir+".new", b.dir+".old"
	if err := copyTree(ctx, filepath.Join(b.world.snapshotDir(), string(id)), fresh); err != nil {
		return errors.Join(err, removeAll(fresh))
	}
	b.powerOff(Stopped)
	err := errors.Join(os.Rename(b.dir, old), os.Rename(fresh, b.dir))
	if err == nil {
		err = b.bootGuest(ctx)
	}
	return errors.Join(err, removeAll(old), removeAll(fresh))
}

// copyTree copies a directory, with links, modes and times.
func copyTree(ctx context.Context, from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "cp", "-a", "--", from, to).CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("copy %s: %w: %s", from, err, strings.TrimSpace(string(out)))
}
