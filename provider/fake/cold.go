package fake

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Suspend implements sandpit.Suspender. The memory stays where it is.
func (i *Instance) Suspend(ctx context.Context) error {
	return i.perform(ctx, OpSuspend, func() error { return i.box.suspend(ctx) })
}

// Checkpoint implements sandpit.Checkpointer.
func (i *Instance) Checkpoint(ctx context.Context) error {
	return i.perform(ctx, OpCheckpoint, func() error { return i.box.checkpoint(ctx) })
}

// Revive implements sandpit.Reviver. NotFound: there is no checkpoint.
func (i *Instance) Revive(ctx context.Context) (sandpit.Instance, error) {
	var next *box
	err := i.perform(ctx, OpRevive, func() error {
		var err error
		next, err = i.box.revive(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return newInstance(next), nil
}

// EstimateSave implements sandpit.SaveEstimator. There is no memory to be saved.
func (i *Instance) EstimateSave(context.Context, bool) (int64, error) {
	return diskUsage(i.box.dir), nil
}

// admit asks whether what is saved of the sandbox may stay.
func (b *box) admit(ctx context.Context) error { return sandpit.AdmitOf(ctx)(diskUsage(b.dir)) }

// savedBytes is how much a sandbox takes that does not run.
func (b *box) savedBytes() int64 {
	switch b.now() {
	case Suspended, Stopped, Archived:
		return diskUsage(b.dir)
	default:
		return 0
	}
}

func (b *box) suspend(ctx context.Context) error {
	if err := b.in(ctx, Running, Paused); err != nil {
		return err
	}
	defer b.yield()
	if err := b.admit(ctx); err != nil {
		return err
	}
	b.set(Suspended)
	signalAll(b.dir, syscall.SIGSTOP)
	return nil
}

// saved is where the last checkpoint is.
func (b *box) saved() string { return filepath.Join(b.world.dir, "checkpoints", string(b.id)) }

// savedAt is when the last checkpoint was made, zero if there is none.
func (b *box) savedAt() time.Time {
	info, err := os.Stat(b.saved())
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// checkpoint copies the files while all processes hold still.
func (b *box) checkpoint(ctx context.Context) error {
	if err := b.in(ctx, Running); err != nil {
		return err
	}
	defer b.yield()
	half := b.saved() + ".tmp"
	if err := removeAll(half); err != nil {
		return err
	}
	signalAll(b.dir, syscall.SIGSTOP)
	err := copyTree(ctx, b.dir, half)
	signalAll(b.dir, syscall.SIGCONT)
	if err == nil {
		err = sandpit.AdmitOf(ctx)(diskUsage(half))
	}
	if err == nil {
		err = removeAll(b.saved())
	}
	if err == nil {
		err = os.Rename(half, b.saved())
	}
	if err != nil {
		return errors.Join(err, removeAll(half))
	}
	return nil
}

// revive makes the sandbox again, of its last checkpoint.
func (b *box) revive(ctx context.Context) (*box, error) {
	if err := b.take(ctx); err != nil {
		return nil, err
	}
	defer b.yield()
	if now := b.now(); now != Ended {
		return nil, sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s and has not ended", b.id, now)
	}
	if _, err := os.Stat(b.saved()); err != nil {
		return nil, sandpit.Errorf(sandpit.NotFound, "sandbox %s has no checkpoint", b.id)
	}
	next := &box{
		world: b.world, id: b.id, spec: b.spec.Clone(), createdAt: b.createdAt, token: b.token, dir: b.dir,
		turn: make(chan struct{}, 1), ended: make(chan struct{}), state: Starting,
	}
	next.turn <- struct{}{}
	defer next.yield()
	err := removeAll(b.dir)
	if err == nil {
		err = copyTree(ctx, b.saved(), b.dir)
	}
	if err == nil {
		err = next.boot(ctx)
	}
	if err != nil {
		return nil, err
	}
	b.world.replace(b, next)
	return next, nil
}

// replace has a sandbox's name stand for what was made of it.
func (w *World) replace(old, next *box) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.boxes[old.id] == old {
		w.boxes[old.id] = next
	}
}
