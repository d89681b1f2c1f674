package gvisor

import (
	"cmp"
	"context"
	"crypto/rand"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/ocilayer"
)

var (
	_ sandpit.Snapshotter    = (*Instance)(nil)
	_ sandpit.SnapshotKeeper = (*Provider)(nil)
)

// Snapshot implements sandpit.Snapshotter. Programs are frozen for a moment, and connections
// into the sandbox are closed; a client that follows a command gets the rest of its output
// over a new connection. Of a sandbox with secrets only the files are saved, because its
// programs have the secrets in memory.
func (i *Instance) Snapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	snap, err := i.lifecycle.snapshot(ctx, id)
	i.connections.closeIdle()
	if err != nil {
		return sandpit.Snapshot{}, fmt.Errorf("snapshot sandbox %s: %w", i.id, err)
	}
	return snap, nil
}

func (l *lifecycle) snapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	var none sandpit.Snapshot
	snapshots := l.states.snapshots
	if err := id.Validate(); err != nil {
		return none, err
	}
	lock, err := l.states.lockFor(ctx, l.id, snapshots)
	if err != nil {
		return none, err
	}
	defer lock.Close()
	if snapshots.Has(string(id)) {
		return none, sandpit.Errorf(sandpit.AlreadyExists, "snapshot %s exists already", id)
	}
	dir, err := l.provider.locateSandbox(ctx, l.id)
	if err != nil {
		return none, err
	}
	engine := engineClient{dir, l.id}
	rec, err := engine.record()
	if err != nil {
		return none, err
	}
	names := snapshotFileNames()
	draft, err := snapshots.Begin(string(id), names...)
	if err != nil {
		return none, err
	}
	defer draft.Discard()
	defer l.gate.close(ctx)()
	req := request{Op: opState, Save: &saveRequest{Layer: true, Bare: len(rec.Spec.Secrets) > 0}}
	if _, err := engine.run(ctx, req, draft.Files(names)...); err != nil {
		return none, snapshots.ExplainFull(err)
	}
	if rec, err = engine.record(); err != nil {
		return none, err
	}
	hasSecrets := len(rec.Spec.Secrets) > 0
	rec.Spec.Env, rec.Spec.Secrets, rec.Token = nil, nil, ""
	state, err := l.commitState(ctx, engine, draft, draft.Commit, kernelState{Record: rec, Bare: hasSecrets})
	if err != nil {
		return none, err
	}
	return l.provider.describeSnapshot(id, state), nil
}

func (p *Provider) describeSnapshot(id sandpit.SnapshotID, state kernelState) sandpit.Snapshot {
	snap := sandpit.Snapshot{
		ID: id, Sandbox: state.Record.ID, Spec: state.Record.Spec, Size: state.bytes(), CreatedAt: state.SavedAt,
	}
	unloadable, err := p.whyUnloadable(state)
	snap.Memory = unloadable == nil
	if err != nil {
		snap.Unloadable = err.Error()
	}
	return snap
}

// engineVersion returns the version of gVisor, which can load the kernels that it has saved.
func (p *Provider) engineVersion() (string, error) {
	const module = "gvisor.dev/gvisor"
	info, err := buildinfo.ReadFile(p.binary.path)
	if err != nil {
		return "", fmt.Errorf("find the engine's version: %w", err)
	}
	for _, dep := range info.Deps {
		if dep.Path == module {
			return dep.Version, nil
		}
	}
	return "", sandpit.Errorf(sandpit.Internal, "find the engine's version: %s has no %s", p.binary.path, module)
}

// checkLoadable returns Unsupported for a kernel that this engine cannot load.
func (p *Provider) checkLoadable(state kernelState) error {
	if state.Bare {
		return sandpit.Errorf(sandpit.Unsupported, "it has files only, and no memory")
	}
	if state.Format != kernelFormat {
		return sandpit.Errorf(sandpit.Unsupported, "it was saved in format %d, this sandpit has %d", state.Format, kernelFormat)
	}
	version, err := p.engineVersion()
	if err != nil {
		return err
	}
	if state.Engine != version {
		return sandpit.Errorf(sandpit.Unsupported, "it was saved by version %.80q of gVisor, this is %s", state.Engine, version)
	}
	return nil
}

// whyUnloadable returns why this engine cannot load the memory of a saved kernel whose files
// exist without it. Nil: it can. err is any other defect.
func (p *Provider) whyUnloadable(state kernelState) (reason, err error) {
	reason = p.checkLoadable(state)
	switch {
	case reason == nil:
		return nil, nil
	case sandpit.CodeOf(reason) == sandpit.Unsupported && state.hasLayer():
		return reason, nil
	default:
		return nil, reason
	}
}

// bootSource returns the files as a sandbox starts from them, the same one or a copy.
func (f kernelFiles) bootSource(isCopy bool) bootSource {
	src := bootSource{rootFile: f.root, guestFile: f.guest, kernel: f.kernel, isCopy: isCopy}
	if !isCopy {
		src.decisions = f.state.Decisions
	}
	src.root.Config, src.root.Mounts = f.state.Record.Image, f.state.Record.Shown
	for _, name := range kernelFileNames() {
		src.loadTime += loadTime(f.state.Sizes[name])
	}
	// What describes the kernel stays in its memory, like what describes a layer.
	src.kernelMemory = f.state.Record.Limits.Kernel + memoryPerTreeByte*f.state.Sizes[kernelFileNames()[0]]
	return src
}

// loadTime returns how long reading so many bytes may take.
func loadTime(bytes int64) time.Duration { return time.Duration(bytes/minLoadRate) * time.Second }

// createCopy creates a sandbox from a snapshot.
func (p *Provider) createCopy(ctx context.Context, id sandpit.ID, from sandpit.SnapshotID, spec sandpit.Spec) (*Instance, error) {
	snapshots := p.states.snapshots
	files, err := openKernelState(snapshots, string(from))
	if err != nil {
		return nil, err
	}
	defer files.close()
	unloadable, err := p.whyUnloadable(files.state)
	if err != nil {
		return nil, err
	}
	rec := files.state.Record
	if rec.Spec, err = mergeSpec(spec, rec); err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", from, err)
	}
	if err := validateSpec(rec.Spec); err != nil {
		return nil, err
	}
	if err := p.checkUnused(id); err != nil {
		return nil, err
	}
	rec.Group = cmp.Or(rec.Group, rec.ID)
	rec.ID, rec.CreatedAt, rec.Token = id, time.Now(), rand.Text()
	if unloadable != nil {
		layer, err := openLayerOf(snapshots, string(from), files.state)
		if err != nil {
			return nil, err
		}
		layer.record, layer.isCopy = rec, true
		return newInstance(p, "", rec).lifecycle.startFrom(ctx, layer)
	}
	return p.createInEngine(ctx, rec, files.bootSource(true))
}

// checkUnused returns AlreadyExists for the ID of an existing sandbox.
func (p *Provider) checkUnused(id sandpit.ID) error {
	engine, err := p.findEngine(id)
	if err == nil && (engine != "" || p.states.notRunning(id) != nil || p.states.archived.has(id)) {
		err = sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s exists already", id)
	}
	return err
}

// mergeSpec returns the spec of a copy of another sandbox that is created with spec.
//
// Invalid: spec differs in what cannot be changed.
func mergeSpec(spec sandpit.Spec, original record) (sandpit.Spec, error) {
	old := original.Spec
	merged := spec.Clone()
	merged.Image = old.Image
	merged.Hostname = cmp.Or(spec.Hostname, old.Hostname)
	if len(spec.Mounts) > 0 && !slices.Equal(spec.Mounts, old.Mounts) {
		return merged, sandpit.Errorf(sandpit.Invalid, "mounts of a snapshot cannot be changed")
	}
	merged.Mounts = slices.Clone(old.Mounts)
	if orDefaults(spec.Resources, original.Limits.Resources) != original.Limits.Resources {
		return merged, sandpit.Errorf(sandpit.Invalid, "limits of a snapshot cannot be changed")
	}
	merged.Resources = old.Resources
	switch {
	case spec.Network.Equal(sandpit.NetworkPolicy{}):
		merged.Network = old.Network.Clone()
	case spec.Network.Online != old.Network.Online:
		return merged, sandpit.Errorf(sandpit.Invalid, "whether it is online cannot be changed")
	}
	return merged, nil
}

// ListSnapshots implements sandpit.SnapshotKeeper.
func (p *Provider) ListSnapshots(context.Context) ([]sandpit.Snapshot, error) {
	all, err := p.states.snapshots.List()
	if err != nil {
		return nil, err
	}
	list := make([]sandpit.Snapshot, 0, len(all))
	for id, state := range all {
		list = append(list, p.describeSnapshot(sandpit.SnapshotID(id), state))
	}
	slices.SortFunc(list, func(a, b sandpit.Snapshot) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// RemoveSnapshot implements sandpit.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(_ context.Context, id sandpit.SnapshotID) error {
	return p.states.snapshots.Remove(string(id))
}

// ReadSnapshotLayer implements sandpit.SnapshotKeeper.
func (p *Provider) ReadSnapshotLayer(_ context.Context, id sandpit.SnapshotID) (io.ReadCloser, error) {
	snapshots := p.states.snapshots
	state, err := snapshots.Read(string(id))
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, name := range layerFileNames() {
		f, err := snapshots.OpenFile(string(id), layerPrefix+name, state.Sizes[layerPrefix+name])
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, f)
	}
	r, err := ocilayer.Stream(files, guestDir)
	if err != nil {
		closeAll(files)
		return nil, fmt.Errorf("read the layer of snapshot %s: %w", id, err)
	}
	return r, nil
}
