package gvisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/savedstate"
)

var _ sandpit.Stopper = (*Instance)(nil)

const (
	// minLoadRate is how many bytes of files a second a start reads at least.
	minLoadRate = 10 << 20
	// memoryPerTreeByte is how many bytes of memory a kernel keeps for each byte of the file
	// that describes the tree of files: the file itself, and garbage of reading it.
	memoryPerTreeByte = 2
)

// Stop implements sandpit.Stopper. When it returns, the sandbox's own files and its image are
// on disk; its memory, /dev/shm included, is lost. If it fails or is interrupted, the sandbox
// keeps running or is stopped.
//
// Exhausted: the disk is full. Unsupported: the Provider has no KeepDir.
func (i *Instance) Stop(ctx context.Context) error {
	err := i.lifecycle.stop(ctx)
	i.connections.closeIdle()
	if err != nil {
		return fmt.Errorf("stop sandbox %s: %w", i.id, err)
	}
	return nil
}

// Start implements sandpit.Stopper. The sandbox has the ID, files, environment, key and
// limits that it had, and starts like a new one. If that fails, it stays stopped.
func (i *Instance) Start(ctx context.Context) error {
	if err := i.lifecycle.start(ctx); err != nil {
		return fmt.Errorf("start sandbox %s: %w", i.id, err)
	}
	return nil
}

// lifecycle stops, suspends, saves and archives one sandbox, and brings it back.
type lifecycle struct {
	provider *Provider
	states   *savedStates
	id       sandpit.ID
	location *location
	gate     *gate
	// networkLog returns the sandbox's network log after a sequence number.
	networkLog func(ctx context.Context, after int64) ([]sandpit.NetworkDecision, error)
}

func (l *lifecycle) stop(ctx context.Context) error {
	if !l.states.canStop() {
		return sandpit.Errorf(sandpit.Unsupported, "no directory is configured for stopped sandboxes")
	}
	lock, err := l.states.lock(ctx, l.id)
	if err != nil {
		return err
	}
	defer lock.Close()
	if l.states.stopped.Has(string(l.id)) {
		return errors.Join(sandpit.Errorf(sandpit.Conflict, "it is stopped already"), l.endLeftover(ctx))
	}
	if l.states.suspended.Has(string(l.id)) {
		return l.stopSuspended(ctx)
	}
	dir, err := l.provider.locateSandbox(ctx, l.id)
	if err != nil {
		return err
	}
	engine := engineClient{dir, l.id}
	if err := l.saveStopped(ctx, engine); err != nil {
		return err
	}
	l.location.setEngineDir("")
	// From here on it is stopped. What the engine has of it only takes up memory.
	return engine.end(context.WithoutCancel(ctx), true)
}

// saveStopped saves the sandbox in an engine as a stopped one. If that fails, the sandbox
// keeps running.
func (l *lifecycle) saveStopped(ctx context.Context, engine engineClient) error {
	draft, err := l.states.stopped.Begin(string(l.id), layerFileNames()...)
	if err != nil {
		return err
	}
	defer draft.Discard()
	if _, err := engine.run(ctx, request{Op: opSave}, draft.Files(layerFileNames())...); err != nil {
		return l.states.stopped.ExplainFull(err)
	}
	err = addRecord(ctx, engine, draft, draft.Commit)
	if err == nil {
		return nil
	}
	undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	_, undoErr := engine.run(undoCtx, request{Op: opResume})
	return errors.Join(err, undoErr)
}

// commitLayer is Commit or Replace of a draft.
type commitLayer func(ctx context.Context, describe func(sizes map[string]int64) layerState) (layerState, error)

// addRecord adds the image and the record of a sandbox to its saved layer, and commits it.
func addRecord(ctx context.Context, engine engineClient, draft *savedstate.Draft[layerState], commit commitLayer) error {
	rec, err := engine.fullRecord(ctx)
	if err != nil {
		return err
	}
	root, err := engine.openHeld(ctx, heldRoot)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := draft.Link(rootImage, root); err != nil {
		return draft.Explain(err)
	}
	_, err = commit(ctx, describeLayer(rec))
	return err
}

// describeLayer returns the function that describes a layerState.
func describeLayer(rec record) func(sizes map[string]int64) layerState {
	return func(sizes map[string]int64) layerState { return layerState{layerFormat, rec, sizes} }
}

func (l *lifecycle) start(ctx context.Context) error {
	if !l.states.canStop() {
		return sandpit.Errorf(sandpit.Unsupported, "no directory is configured for stopped sandboxes")
	}
	lock, err := l.states.lock(ctx, l.id)
	if err != nil {
		return err
	}
	defer lock.Close()
	files, err := openLayerState(l.states.stopped, l.id)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if _, err := l.provider.locateSandbox(ctx, l.id); err != nil {
			return err
		}
		return sandpit.Errorf(sandpit.Conflict, "it is not stopped")
	}
	if err != nil {
		return err
	}
	// If it was suspended before it was stopped, its memory must not be found later.
	if err := l.states.suspended.Remove(string(l.id)); err != nil {
		files.close()
		return err
	}
	started, err := l.startFrom(ctx, files)
	if err != nil {
		return err
	}
	engine := started.location.engine()
	draft, err := l.states.detachStopped(ctx, l.id)
	if err != nil {
		return errors.Join(err, engine.end(context.WithoutCancel(ctx), true))
	}
	// From here on it runs: what it writes now is nowhere else.
	l.location.setEngineDir(engine.dir)
	draft.Discard()
	return nil
}

// startFrom creates the sandbox in an engine with the files of a layerState, and closes them.
func (l *lifecycle) startFrom(ctx context.Context, files layerFiles) (*Instance, error) {
	p := l.provider
	src := bootSource{
		rootFile: files.root, layer: files.layer,
		loadTime: loadTime(files.size), kernelMemory: memoryPerTreeByte * files.tree, isCopy: files.isCopy,
	}
	defer func() { src.close() }()
	if err := l.endLeftover(ctx); err != nil {
		return nil, err
	}
	var err error
	if src.guestFile, err = p.openGuest(ctx); err != nil {
		return nil, err
	}
	rec := files.record
	rec.Token = rand.Text()
	started, err := p.createInEngine(ctx, rec, src)
	if err != nil {
		return nil, err
	}
	started.connections.closeIdle()
	return started, nil
}

// endLeftover ends what an engine has of a sandbox that is stopped or suspended, after an
// interrupted stop, start, suspend or resume.
func (l *lifecycle) endLeftover(ctx context.Context) error {
	name, err := l.provider.findEngine(l.id)
	if err != nil || name == "" {
		return err
	}
	return engineClient{filepath.Join(l.provider.engines, name), l.id}.end(ctx, true)
}
