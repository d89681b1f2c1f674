package gvisor

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var (
	_ sandpit.Checkpointer = (*Instance)(nil)
	_ sandpit.Reviver      = (*Instance)(nil)
)

// Checkpoint implements sandpit.Checkpointer. The sandbox is frozen while its files are
// written, as for a stop, and continues while they are synced.
//
// Unsupported: the Provider has no KeepDir. Exhausted: the disk is full, or all checkpoints
// together would be too large. Then the previous checkpoint still exists.
func (i *Instance) Checkpoint(ctx context.Context) error {
	if err := i.lifecycle.checkpoint(ctx); err != nil {
		return fmt.Errorf("checkpoint sandbox %s: %w", i.id, err)
	}
	return nil
}

func (l *lifecycle) checkpoint(ctx context.Context) error {
	checkpoints := l.states.checkpoints
	if checkpoints.Dir == "" {
		return sandpit.Errorf(sandpit.Unsupported, "no directory is configured for checkpoints")
	}
	lock, err := l.states.lock(ctx, l.id)
	if err != nil {
		return err
	}
	defer lock.Close()
	dir, err := l.provider.locateSandbox(ctx, l.id)
	if err != nil {
		return err
	}
	draft, err := checkpoints.Begin(string(l.id), layerFileNames()...)
	if err != nil {
		return err
	}
	defer draft.Discard()
	engine := engineClient{dir, l.id}
	if _, err := engine.run(ctx, request{Op: opSave, GoOn: true}, draft.Files(layerFileNames())...); err != nil {
		return checkpoints.ExplainFull(err)
	}
	if err := l.states.dropExpiredCheckpoints(); err != nil {
		return err
	}
	release, err := l.states.reserveCheckpoint(ctx, l.id, draft.Size(layerFileNames()))
	if err != nil {
		return err
	}
	defer release()
	return addRecord(ctx, engine, draft, draft.Replace)
}

// saveAndContinue is save for a sandbox that keeps running. The engine does both, so that the
// sandbox continues even if the caller is killed.
func (sb *engineSandbox) saveAndContinue(ctx context.Context, files []*os.File) error {
	if err := sb.saveStopped(ctx, files); err != nil {
		return err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if !sb.isSaved { // resumed by another call meanwhile
		return nil
	}
	if err := sb.undoSaveLocked(); err != nil {
		return sb.kernelErrorLocked("resume", err)
	}
	return nil
}

// Revive implements sandpit.Reviver: the sandbox starts with the files of its last
// checkpoint, as a stopped sandbox does.
//
// NotFound: there is no checkpoint, or it has expired.
func (i *Instance) Revive(ctx context.Context) (sandpit.Instance, error) {
	next, err := i.lifecycle.revive(ctx)
	if err != nil {
		return nil, fmt.Errorf("revive sandbox %s: %w", i.id, err)
	}
	return next, nil
}

func (l *lifecycle) revive(ctx context.Context) (*Instance, error) {
	if l.states.checkpoints.Dir == "" {
		return nil, sandpit.Errorf(sandpit.NotFound, "no directory is configured for checkpoints")
	}
	lock, err := l.states.lock(ctx, l.id)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := l.checkEnded(ctx); err != nil {
		return nil, err
	}
	if err := l.states.dropExpiredCheckpoint(l.id); err != nil {
		return nil, err
	}
	files, err := openLayerState(l.states.checkpoints, l.id)
	if err != nil {
		return nil, err
	}
	return l.startFrom(ctx, files)
}

// endReportLimit is how long an engine may take to report that a sandbox has ended.
const endReportLimit = 2 * time.Second

// checkEnded returns a Conflict for a sandbox that runs, or is stopped or suspended.
func (l *lifecycle) checkEnded(ctx context.Context) error {
	dir, err := l.provider.locateSandbox(ctx, l.id)
	switch sandpit.CodeOf(err) {
	case sandpit.Conflict:
		return err
	case "":
	default:
		return nil // gone, with its engine or alone
	}
	// The reply comes at once if the sandbox has ended, and otherwise not before it ends.
	ctx, cancel := context.WithTimeout(ctx, endReportLimit)
	defer cancel()
	_, err = engineClient{dir, l.id}.run(ctx, request{Op: opWait})
	if ctx.Err() != nil {
		return sandpit.Errorf(sandpit.Conflict, "it has not ended")
	}
	if sandpit.CodeOf(err) == sandpit.Gone {
		return nil
	}
	return err
}
