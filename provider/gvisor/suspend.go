package gvisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/savedstate"
)

var (
	_ sandpit.Pauser     = (*Instance)(nil)
	_ sandpit.Suspender  = (*Instance)(nil)
	_ sandpit.Rollbacker = (*Instance)(nil)
)

// Pause implements sandpit.Pauser. Connections stay open; requests through them are answered
// after the sandbox is resumed.
func (i *Instance) Pause(ctx context.Context) error {
	_, err := i.location.run(ctx, request{Op: opPause})
	return err
}

// Resume implements sandpit.Pauser for paused and suspended sandboxes. If that fails, a
// suspended sandbox stays suspended.
func (i *Instance) Resume(ctx context.Context) error {
	isSuspended := func() bool { return i.provider.states.suspended.Has(string(i.id)) }
	if !isSuspended() {
		_, err := i.location.run(ctx, request{Op: opResume})
		if sandpit.CodeOf(err) != sandpit.Conflict || !isSuspended() {
			return err
		}
	}
	if err := i.lifecycle.resume(ctx); err != nil {
		return fmt.Errorf("resume sandbox %s: %w", i.id, err)
	}
	return nil
}

// Suspend implements sandpit.Suspender. When it returns, the whole sandbox is on disk. If it
// fails or is interrupted, the sandbox is unchanged or suspended.
func (i *Instance) Suspend(ctx context.Context) error {
	err := i.lifecycle.suspend(ctx)
	i.connections.closeIdle()
	if err != nil {
		return fmt.Errorf("suspend sandbox %s: %w", i.id, err)
	}
	return nil
}

// Rollback implements sandpit.Rollbacker. The present state is on disk until the snapshot
// runs: if Rollback fails or is interrupted, the sandbox runs from the snapshot, is
// unchanged, or is suspended.
func (i *Instance) Rollback(ctx context.Context, id sandpit.SnapshotID) error {
	err := i.lifecycle.rollBack(ctx, id)
	i.connections.closeIdle()
	if err != nil {
		return fmt.Errorf("roll sandbox %s back: %w", i.id, err)
	}
	return nil
}

func (l *lifecycle) suspend(ctx context.Context) error {
	lock, err := l.states.lockFor(ctx, l.id, l.states.suspended)
	if err != nil {
		return err
	}
	defer lock.Close()
	if l.states.suspended.Has(string(l.id)) {
		return errors.Join(suspendedError(l.id), l.endLeftover(ctx))
	}
	return l.suspendLocked(ctx)
}

// suspendLocked suspends a sandbox that is not suspended. The caller has the lock.
func (l *lifecycle) suspendLocked(ctx context.Context) error {
	dir, err := l.provider.locateSandbox(ctx, l.id)
	if err != nil {
		return err
	}
	engine := engineClient{dir, l.id}
	draft, err := l.states.suspended.Begin(string(l.id), kernelFileNames()...)
	if err != nil {
		return err
	}
	defer draft.Discard()
	defer l.gate.close(ctx)()
	req := request{Op: opState, Save: &saveRequest{Stay: true}}
	if _, err := engine.run(ctx, req, draft.Files(kernelFileNames())...); err != nil {
		return l.states.suspended.ExplainFull(err)
	}
	if err := l.commitSuspended(ctx, engine, draft, draft.Commit); err != nil {
		undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		_, undoErr := engine.run(undoCtx, request{Op: opUnsave})
		return errors.Join(err, undoErr)
	}
	l.location.setEngineDir("")
	// From here on it is suspended. What the engine has of it only takes up memory.
	return engine.end(context.WithoutCancel(ctx), true)
}

// commitKernel is Commit or Replace of a draft.
type commitKernel func(ctx context.Context, describe func(sizes map[string]int64) kernelState) (kernelState, error)

// commitSuspended completes and commits the saved kernel of a suspended sandbox, with
// everything that is needed to resume it.
func (l *lifecycle) commitSuspended(ctx context.Context, engine engineClient, draft *savedstate.Draft[kernelState], commit commitKernel) error {
	rec, err := engine.fullRecord(ctx)
	if err != nil {
		return err
	}
	_, err = l.commitState(ctx, engine, draft, commit, kernelState{Record: rec, Decisions: l.lastDecisions(ctx)})
	return err
}

// commitState adds the images to a saved kernel and commits it.
func (l *lifecycle) commitState(
	ctx context.Context, engine engineClient, draft *savedstate.Draft[kernelState], commit commitKernel, state kernelState,
) (kernelState, error) {
	var err error
	state.Format, state.SavedAt = kernelFormat, time.Now()
	if state.Engine, err = l.provider.engineVersion(); err != nil {
		return state, err
	}
	for which, name := range map[heldFile]string{heldRoot: rootImage, heldGuest: guestImage} {
		f, err := engine.openHeld(ctx, which)
		if err != nil {
			return state, err
		}
		err = errors.Join(draft.Link(name, f), f.Close())
		if err != nil {
			return state, draft.Explain(err)
		}
	}
	return commit(ctx, func(sizes map[string]int64) kernelState {
		state.Sizes = sizes
		return state
	})
}

// logLimit is how long a gateway may take to send its log: more than the time in which a
// failed one is restarted.
const logLimit = restartMax + time.Second

// lastDecisions returns the network log of a sandbox that is being suspended. If the log
// cannot be read it returns an entry that reports this: the sandbox may be the reason, and
// does not prevent its suspension.
func (l *lifecycle) lastDecisions(ctx context.Context) []sandpit.NetworkDecision {
	ctx, cancel := context.WithTimeout(ctx, logLimit)
	defer cancel()
	list, err := l.networkLog(ctx, 0)
	if err != nil {
		now := time.Now()
		list = []sandpit.NetworkDecision{{
			Seq: now.UnixMicro(), At: now, Count: 1, Protocol: "gateway", Reason: "the log from before the suspension could not be read: " + err.Error(),
		}}
	}
	return list
}

// resume resumes a suspended sandbox.
func (l *lifecycle) resume(ctx context.Context) error {
	lock, err := l.states.lockFor(ctx, l.id, l.states.suspended)
	if err != nil {
		return err
	}
	defer lock.Close()
	return l.resumeLocked(ctx)
}

// resumeLocked is resume for callers that have the lock.
func (l *lifecycle) resumeLocked(ctx context.Context) error {
	files, err := openKernelState(l.states.suspended, string(l.id))
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if _, err := l.provider.locateSandbox(ctx, l.id); err != nil {
			return err
		}
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is not paused", l.id)
	}
	if err != nil {
		return err
	}
	defer files.close()
	return l.resumeFrom(ctx, files, files.state)
}

// resumeFrom resumes a suspended sandbox from a saved kernel, with the record and network log
// of present. If that fails, the sandbox stays suspended.
func (l *lifecycle) resumeFrom(ctx context.Context, files kernelFiles, present kernelState) error {
	p, rec := l.provider, present.Record
	rec.Token = rand.Text() // the token in a copy of its memory must not give access
	if unloadable, err := p.whyUnloadable(files.state); err != nil || unloadable != nil {
		return errors.Join(err, sandpit.WithHint(unloadable, "its files exist without its memory: stop it, and start it"))
	}
	if err := l.endLeftover(ctx); err != nil {
		return err
	}
	src := files.bootSource(false)
	src.decisions = present.Decisions
	started, err := p.createInEngine(ctx, rec, src)
	if err != nil {
		return err
	}
	started.connections.closeIdle()
	engine := started.location.engine()
	draft, err := l.states.suspended.Detach(string(l.id))
	if err != nil {
		return errors.Join(err, engine.end(context.WithoutCancel(ctx), true))
	}
	// From here on it runs: what it does now is nowhere else.
	l.location.setEngineDir(engine.dir)
	draft.Discard()
	return nil
}

func (l *lifecycle) rollBack(ctx context.Context, id sandpit.SnapshotID) error {
	lock, err := l.states.lockFor(ctx, l.id, l.states.suspended)
	if err != nil {
		return err
	}
	defer lock.Close()
	files, err := openKernelState(l.states.snapshots, string(id))
	if err != nil {
		return err
	}
	defer files.close()
	if files.state.Record.ID != l.id {
		return sandpit.Errorf(sandpit.Invalid, "snapshot %s is of sandbox %s", id, files.state.Record.ID)
	}
	if err := l.provider.checkLoadable(files.state); err != nil {
		return err
	}
	wasSuspended := l.states.suspended.Has(string(l.id))
	wasPaused := false
	if !wasSuspended {
		rep, err := l.location.run(ctx, request{Op: opStats})
		if err != nil {
			return err
		}
		wasPaused = rep.Paused
		if err := l.suspendLocked(ctx); err != nil {
			return err
		}
	}
	present, err := l.states.suspended.Read(string(l.id))
	if err != nil {
		return err
	}
	present.Record.Group = files.state.Record.Group
	if err = l.resumeFrom(ctx, files, present); err == nil || wasSuspended {
		return err
	}
	undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*startTimeout)
	defer cancel()
	undoErr := l.resumeLocked(undoCtx)
	if undoErr == nil && wasPaused {
		_, undoErr = l.location.run(undoCtx, request{Op: opPause})
	}
	return errors.Join(err, undoErr)
}
