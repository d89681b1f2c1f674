package fake

import (
	"context"
	"crypto/rand"
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

const snapshotPrefix = "snapshot:"

// SnapshotImage names the image that a sandbox with a snapshot's files starts
// from.
func SnapshotImage(s sandpit.Snapshot) sandpit.Image {
	return sandpit.Image(snapshotPrefix + s.ID)
}

// imageDir returns the directory that a sandbox's files are copied from, "" for
// none.
func (w *World) imageDir(image sandpit.Image) (string, error) {
	if image == "" || image == sandpit.HostImage {
		return "", nil
	}
	id, ok := strings.CutPrefix(string(image), snapshotPrefix)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.snapshots[id]; !ok || !known {
		return "", sandpit.Errorf(sandpit.NotFound, "image %q does not exist", string(image))
	}
	return filepath.Join(w.snapshotDir(), id), nil
}

// snapshot copies the files while all processes hold still.
func (b *box) snapshot(ctx context.Context, name string) (sandpit.Snapshot, error) {
	if err := b.in(ctx, Running); err != nil {
		return sandpit.Snapshot{}, err
	}
	defer b.yield()
	s := sandpit.Snapshot{ID: strings.ToLower(rand.Text()), Name: name, Sandbox: b.id, CreatedAt: time.Now()}
	dir := filepath.Join(b.world.snapshotDir(), s.ID)
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
