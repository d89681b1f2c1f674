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
)

var (
	_ sandpit.Snapshotter    = (*Instance)(nil)
	_ sandpit.SnapshotKeeper = (*Provider)(nil)
)

// Snapshot implements sandpit.Snapshotter. Programs stand still for a moment, and
// connections into the sandbox are closed; whoever follows a command is told the rest of
// its output by a new one. Of a sandbox with secrets only files are saved, since its
// programs have these in memory.
func (i *Instance) Snapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	snap, err := i.snapshot(ctx, id)
	i.closeIdle()
	if err != nil {
		return sandpit.Snapshot{}, fmt.Errorf("snapshot sandbox %s: %w", i.id, err)
	}
	return snap, nil
}

func (i *Instance) snapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	var none sandpit.Snapshot
	p := i.provider
	if err := id.Validate(); err != nil {
		return none, err
	}
	held, err := i.lockSaving(ctx, p.snapshots)
	if err != nil {
		return none, err
	}
	defer held.Close()
	if p.snapshots.has(string(id)) {
		return none, sandpit.Errorf(sandpit.AlreadyExists, "snapshot %s exists already", id)
	}
	dir, err := p.locate(ctx, i.id)
	if err != nil {
		return none, err
	}
	rec, err := readRecord(dir, i.id)
	if err != nil {
		return none, err
	}
	names := snapshotFiles()
	half, err := p.snapshots.begin(string(id), names)
	if err != nil {
		return none, err
	}
	defer half.discard()
	defer i.gate.close(ctx)()
	req := request{Op: opState, ID: i.id, Save: &saveRequest{Layer: true, Bare: len(rec.Spec.Secrets) > 0}}
	if _, _, err := call(ctx, dir, req, half.in(names)...); err != nil {
		return none, p.snapshots.explain(err)
	}
	m, err := i.deposit(ctx, dir, half, false)
	if err != nil {
		return none, err
	}
	return p.describe(id, m), nil
}

// describe is what is told of a snapshot.
func (p *Provider) describe(id sandpit.SnapshotID, m manifest) sandpit.Snapshot {
	snap := sandpit.Snapshot{
		ID: id, Sandbox: m.Record.ID, Spec: m.Record.Spec, Memory: true, Size: m.size(), CreatedAt: m.SavedAt,
	}
	lost, err := p.memoryLost(m)
	snap.Memory = lost == nil
	if err != nil {
		snap.Unloadable = err.Error()
	}
	return snap
}

// engineVersion is what a saved kernel is bound to.
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

// loadable is Unsupported for a kernel that this engine cannot load.
func (p *Provider) loadable(m manifest) error {
	if m.Bare {
		return sandpit.Errorf(sandpit.Unsupported, "it has files only, and no programs")
	}
	if m.Format != savedFormat {
		return sandpit.Errorf(sandpit.Unsupported, "it was saved in format %d, this sandpit has %d", m.Format, savedFormat)
	}
	own, err := p.engineVersion()
	if err != nil {
		return err
	}
	if m.Engine != own {
		return sandpit.Errorf(sandpit.Unsupported, "it was saved by version %.80q of gVisor, this is %s", m.Engine, own)
	}
	return nil
}

// images are the files as a sandbox starts from them. renew: as a copy.
func (f savedFiles) images(renew bool) images {
	img := images{rootFile: f.root, guestFile: f.guest, state: f.state, renew: renew}
	if !renew {
		img.decisions = f.manifest.Decisions
	}
	img.root.Config, img.root.Mounts = f.manifest.Record.Image, f.manifest.Record.Shown
	for name, size := range f.manifest.Sizes {
		if slices.Contains(stateFiles(), name) {
			img.loading += time.Duration(size/slowestLoad) * time.Second
		}
	}
	// What describes the kernel is in its memory afterwards, as what describes a layer is.
	img.kernel = f.manifest.Record.Limits.Kernel + keptOfTree*f.manifest.Sizes[stateFiles()[0]]
	return img
}

// createCopy makes a sandbox of a snapshot.
func (p *Provider) createCopy(ctx context.Context, id sandpit.ID, from sandpit.SnapshotID, spec sandpit.Spec) (*Instance, error) {
	files, err := p.snapshots.open(string(from))
	if err != nil {
		return nil, err
	}
	defer files.close()
	lost, err := p.memoryLost(files.manifest)
	if err != nil {
		return nil, err
	}
	rec := files.manifest.Record
	if rec.Spec, err = mergeSpec(spec, rec); err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", from, err)
	}
	if err := validateSpec(rec.Spec); err != nil {
		return nil, err
	}
	eng, err := p.startEngine(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.expectNew(id); err != nil {
		return nil, err
	}
	rec.Group = cmp.Or(rec.Group, rec.ID)
	rec.ID, rec.CreatedAt, rec.Token = id, time.Now(), rand.Text()
	inst := newInstance(p, eng.dir, rec)
	if lost != nil {
		kept, err := p.snapshots.filesOf(string(from), files.manifest)
		if err != nil {
			return nil, err
		}
		kept.record, kept.renew = rec, true
		return inst.startFrom(ctx, kept)
	}
	if err := p.place(ctx, inst, rec, files.images(true)); err != nil {
		return nil, err
	}
	return inst, nil
}

// expectNew is AlreadyExists for the id of a sandbox that there is.
func (p *Provider) expectNew(id sandpit.ID) error {
	other, err := p.find(id)
	if err == nil && (other != "" || p.away(id) != nil || p.archived.has(id)) {
		err = sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s exists already", id)
	}
	return err
}

// mergeSpec is what a sandbox has that is made by spec as a copy of another one. Invalid:
// something differs that cannot.
func mergeSpec(spec sandpit.Spec, of record) (sandpit.Spec, error) {
	was := of.Spec
	merged := spec.Clone()
	merged.Image = was.Image
	merged.Hostname = cmp.Or(spec.Hostname, was.Hostname)
	if len(spec.Mounts) > 0 && !slices.Equal(spec.Mounts, was.Mounts) {
		return merged, sandpit.Errorf(sandpit.Invalid, "its mounts cannot be changed")
	}
	merged.Mounts = slices.Clone(was.Mounts)
	if asked := spec.Resources; orDefaults(asked, of.Limits.Resources) != of.Limits.Resources {
		return merged, sandpit.Errorf(sandpit.Invalid, "its limits cannot be changed")
	}
	merged.Resources = was.Resources
	switch {
	case spec.Network.Equal(sandpit.NetworkPolicy{}):
		merged.Network = was.Network.Clone()
	case spec.Network.Online != was.Network.Online:
		return merged, sandpit.Errorf(sandpit.Invalid, "whether it is online cannot be changed")
	}
	return merged, nil
}

// ListSnapshots implements sandpit.SnapshotKeeper.
func (p *Provider) ListSnapshots(context.Context) ([]sandpit.Snapshot, error) {
	all, err := p.snapshots.list()
	if err != nil {
		return nil, err
	}
	list := make([]sandpit.Snapshot, 0, len(all))
	for id, m := range all {
		list = append(list, p.describe(sandpit.SnapshotID(id), m))
	}
	slices.SortFunc(list, func(a, b sandpit.Snapshot) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// RemoveSnapshot implements sandpit.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(_ context.Context, id sandpit.SnapshotID) error {
	return p.snapshots.remove(string(id))
}

// ReadSnapshotLayer implements sandpit.SnapshotKeeper.
func (p *Provider) ReadSnapshotLayer(_ context.Context, id sandpit.SnapshotID) (io.ReadCloser, error) {
	m, err := p.snapshots.read(string(id))
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, name := range layerFiles() {
		f, err := p.snapshots.openFile(string(id), layerPrefix+name, m)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, f)
	}
	r, err := streamLayer(files)
	if err != nil {
		closeAll(files)
		return nil, fmt.Errorf("read the layer of snapshot %s: %w", id, err)
	}
	return r, nil
}
