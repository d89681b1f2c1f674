package gvisor

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// The memory of a saved kernel can be loaded only by the version of gVisor that saved it. Its
// files, when saved beside the memory, can be used by every version.

// Upgraded reports the upgrade of one suspended sandbox.
type Upgraded struct {
	ID sandpit.ID
	// Done means that the files were saved beside the memory now. Otherwise they were there
	// before.
	Done bool
	// Err is why they could not be saved. The sandbox is unchanged.
	Err error
}

// UpgradeState saves the files of all suspended sandboxes beside their memory, so that other
// versions of the engine, which cannot load the memory, can start them. Snapshots, stopped and
// archived sandboxes and checkpoints always have their files. Each sandbox runs for a moment
// in an engine of this Provider and is saved again; if that fails or is interrupted, it is
// suspended as before.
func (p *Provider) UpgradeState(ctx context.Context) ([]Upgraded, error) {
	all, err := p.states.suspended.List()
	if err != nil {
		return nil, err
	}
	var list []Upgraded
	for name, state := range all {
		one := Upgraded{ID: sandpit.ID(name)}
		if !state.hasLayer() {
			one.Err = newInstance(p, "", state.Record).lifecycle.addLayer(ctx)
			one.Done = one.Err == nil
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Upgraded) int { return cmp.Compare(a.ID, b.ID) })
	return list, ctx.Err()
}

// addLayer replaces the saved state of a suspended sandbox by the same state with its files.
func (l *lifecycle) addLayer(ctx context.Context) error {
	p := l.provider
	lock, err := l.states.lockFor(ctx, l.id, l.states.suspended)
	if err != nil {
		return err
	}
	defer lock.Close()
	files, err := openKernelState(l.states.suspended, string(l.id))
	if err != nil {
		return err
	}
	defer files.close()
	if err := p.checkLoadable(files.state); err != nil {
		return err
	}
	if err := l.endLeftover(ctx); err != nil {
		return err
	}
	loaded, err := p.createInEngine(ctx, files.state.Record, files.bootSource(false))
	if err != nil {
		return err
	}
	defer loaded.connections.closeIdle()
	engine := loaded.location.engine()
	err = loaded.lifecycle.replaceSuspended(ctx, engine)
	endCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	return errors.Join(err, engine.end(endCtx, true))
}

// replaceSuspended saves a sandbox that was loaded from its suspended state again, with its
// files.
func (l *lifecycle) replaceSuspended(ctx context.Context, engine engineClient) error {
	suspended, names := l.states.suspended, snapshotFileNames()
	draft, err := suspended.Begin(string(l.id), names...)
	if err != nil {
		return err
	}
	defer draft.Discard()
	defer l.gate.close(ctx)()
	req := request{Op: opState, Save: &saveRequest{Stay: true, Layer: true}}
	if _, err := engine.run(ctx, req, draft.Files(names)...); err != nil {
		return suspended.ExplainFull(err)
	}
	return l.commitSuspended(ctx, engine, draft, draft.Replace)
}

// stopSuspended stops a suspended sandbox whose memory this engine cannot load: its programs
// are lost.
//
// Conflict: its memory can be loaded.
func (l *lifecycle) stopSuspended(ctx context.Context) error {
	name := string(l.id)
	state, err := l.states.suspended.Read(name)
	if err != nil {
		return err
	}
	unloadable, err := l.provider.whyUnloadable(state)
	if err != nil {
		return err
	}
	if unloadable == nil {
		return suspendedError(l.id)
	}
	files, err := openLayerOf(l.states.suspended, name, state)
	if err != nil {
		return err
	}
	defer files.close()
	draft, err := l.states.stopped.Begin(name)
	if err != nil {
		return err
	}
	defer draft.Discard()
	for i, file := range layerFileNames() {
		if err := draft.Link(file, files.layer[i]); err != nil {
			return draft.Explain(err)
		}
	}
	if err := draft.Link(rootImage, files.root); err != nil {
		return draft.Explain(err)
	}
	if _, err := draft.Commit(ctx, describeLayer(state.Record)); err != nil {
		return err
	}
	// From here on it is stopped. What is left of its memory is removed now, or before it is
	// started.
	return l.states.suspended.Remove(name)
}
