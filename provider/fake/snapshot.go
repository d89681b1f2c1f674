package fake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// imageDir returns the directory that a sandbox's files are copied from, "" for
// none.
func (w *World) imageDir(image sandpit.Image) (string, error) {
	if image == "" || image == sandpit.HostImage {
		return "", nil
	}
	id, ok := image.Snapshot()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.snapshots[id]; !ok || !known {
		return "", sandpit.Errorf(sandpit.NotFound, "image %q does not exist", string(image))
	}
	return filepath.Join(w.snapshotDir(), string(id)), nil
}

// snapshot copies the files while all processes hold still.
func (b *box) snapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	if err := b.in(ctx, Running); err != nil {
		return sandpit.Snapshot{}, err
	}
	defer b.yield()
	if err := b.world.newSnapshot(id); err != nil {
		return sandpit.Snapshot{}, err
	}
	s := sandpit.Snapshot{ID: id, Sandbox: b.id, Spec: b.spec.Clone(), CreatedAt: time.Now()}
	s.Spec.Env = nil
	dir := filepath.Join(b.world.snapshotDir(), string(id))
	signalAll(b.dir, syscall.SIGSTOP)
	err := copyTree(ctx, b.dir, dir)
	signalAll(b.dir, syscall.SIGCONT)
	if err != nil {
		return sandpit.Snapshot{}, errors.Join(err, removeAll(dir))
	}
	s.Size = diskUsage(dir)
	b.world.mu.Lock()
	defer b.world.mu.Unlock()
	b.world.snapshots[s.ID] = s
	return s, nil
}

// newSnapshot refuses an ID that is in use, or none.
func (w *World) newSnapshot(id sandpit.SnapshotID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, used := w.snapshots[id]; used {
		return sandpit.Errorf(sandpit.AlreadyExists, "snapshot %s exists", id)
	}
	return nil
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
