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

// Suspend implements sandpit.Suspender. The memory is not moved to disk.
func (i *Instance) Suspend(ctx context.Context) error {
	return i.performOp(ctx, OpSuspend, func() error { return i.box.suspendSandbox(ctx) })
}

// Checkpoint implements sandpit.Checkpointer.
func (i *Instance) Checkpoint(ctx context.Context) error {
	return i.performOp(ctx, OpCheckpoint, func() error { return i.box.takeCheckpoint(ctx) })
}

// Revive implements sandpit.Reviver. NotFound: the sandbox has no checkpoint.
func (i *Instance) Revive(ctx context.Context) (sandpit.Instance, error) {
	var next *sandbox
	err := i.performOp(ctx, OpRevive, func() error {
		var err error
		next, err = i.box.reviveSandbox(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return newInstance(next), nil
}

// EstimateSave implements sandpit.SaveEstimator. It counts no memory, which is not saved.
func (i *Instance) EstimateSave(context.Context, bool) (int64, error) {
	return diskUsage(i.box.dir), nil
}

// admitSave asks whether the saved state of the sandbox may be kept.
func (b *sandbox) admitSave(ctx context.Context) error { return sandpit.AdmitOf(ctx)(diskUsage(b.dir)) }

// savedBytes returns the size of the saved state of a sandbox.
func (b *sandbox) savedBytes() int64 {
	switch b.currentState() {
	case Suspended, Stopped, Archived:
		return diskUsage(b.dir)
	default:
		return 0
	}
}

func (b *sandbox) suspendSandbox(ctx context.Context) error {
	if err := b.lockInState(ctx, Running, Paused); err != nil {
		return err
	}
	defer b.unlock()
	if err := b.admitSave(ctx); err != nil {
		return err
	}
	b.setState(Suspended)
	signalAll(b.dir, syscall.SIGSTOP)
	return nil
}

// checkpointDir returns the directory of the last checkpoint.
func (b *sandbox) checkpointDir() string {
	return filepath.Join(b.world.dir, "checkpoints", string(b.id))
}

// savedAt returns when the last checkpoint was taken, or zero without a checkpoint.
func (b *sandbox) savedAt() time.Time {
	info, err := os.Stat(b.checkpointDir())
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// takeCheckpoint copies the files while all processes are stopped.
func (b *sandbox) takeCheckpoint(ctx context.Context) error {
	if err := b.lockInState(ctx, Running); err != nil {
		return err
	}
	defer b.unlock()
	half := b.checkpointDir() + ".tmp"
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
		err = removeAll(b.checkpointDir())
	}
	if err == nil {
		err = os.Rename(half, b.checkpointDir())
	}
	if err != nil {
		return errors.Join(err, removeAll(half))
	}
	return nil
}

// reviveSandbox recreates the sandbox from its last checkpoint.
func (b *sandbox) reviveSandbox(ctx context.Context) (*sandbox, error) {
	if err := b.lock(ctx); err != nil {
		return nil, err
	}
	defer b.unlock()
	if now := b.currentState(); now != Ended {
		return nil, sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s and has not ended", b.id, now)
	}
	if _, err := os.Stat(b.checkpointDir()); err != nil {
		return nil, sandpit.Errorf(sandpit.NotFound, "sandbox %s has no checkpoint", b.id)
	}
	next := &sandbox{
		world: b.world, id: b.id, spec: b.spec.Clone(), createdAt: b.createdAt, token: b.token, dir: b.dir,
		locked: make(chan struct{}, 1), ended: make(chan struct{}), state: Starting,
		expiry: b.expiry, own: make(chan struct{}),
	}
	next.locked <- struct{}{}
	defer next.unlock()
	err := removeAll(b.dir)
	if err == nil {
		err = copyTree(ctx, b.checkpointDir(), b.dir)
	}
	if err == nil {
		err = next.bootGuest(ctx)
	}
	if err != nil {
		return nil, err
	}
	b.world.replaceSandbox(b, next)
	return next, nil
}

// replaceSandbox puts a recreated sandbox in the place of the old one.
func (w *World) replaceSandbox(old, next *sandbox) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.boxes[old.id] == old {
		w.boxes[old.id] = next
	}
}
