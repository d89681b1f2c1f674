package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// The memory of a saved kernel is bound to the version of gVisor that has saved it. Its
// files are not: with them beside, every version can begin with these.

// Upgraded tells what became of one sandbox that is paused on disk.
type Upgraded struct {
	ID sandpit.ID
	// Done says that its files were written beside its memory now; else they were before.
	Done bool
	// Err is why that cannot be. The sandbox is as it was.
	Err error
}

// UpgradeState has the files of all sandboxes that are paused on disk written beside their
// memory, so that they can be started by other versions of the engine, which cannot load
// the memory. Snapshots, stopped and archived sandboxes and checkpoints have theirs
// anyway. Each sandbox runs for a moment, in an engine of this Provider's, and is saved
// anew; whatever breaks down meanwhile, it is paused on disk as before.
func (p *Provider) UpgradeState(ctx context.Context) ([]Upgraded, error) {
	all, err := p.suspended.list()
	if err != nil {
		return nil, err
	}
	var list []Upgraded
	for name, m := range all {
		one := Upgraded{ID: sandpit.ID(name)}
		if !m.hasLayer() {
			one.Err = newInstance(p, "", m.Record).addFiles(ctx)
			one.Done = one.Err == nil
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Upgraded) int { return cmp.Compare(a.ID, b.ID) })
	return list, ctx.Err()
}

// hasLayer reports whether files were saved beside the memory.
func (m manifest) hasLayer() bool {
	return !slices.ContainsFunc(layerFiles(), func(name string) bool {
		_, ok := m.Sizes[layerPrefix+name]
		return !ok
	})
}

// addFiles replaces what is on disk of a paused sandbox by the same with its files.
func (i *Instance) addFiles(ctx context.Context) error {
	p := i.provider
	held, err := i.lockSaving(ctx, p.suspended)
	if err != nil {
		return err
	}
	defer held.Close()
	files, err := p.suspended.open(string(i.id))
	if err != nil {
		return err
	}
	defer files.close()
	if err := p.loadable(files.manifest); err != nil {
		return err
	}
	if err := i.endLeftover(ctx); err != nil {
		return err
	}
	eng, err := p.startEngine(ctx)
	if err != nil {
		return err
	}
	loaded := newInstance(p, eng.dir, files.manifest.Record)
	if err := p.place(ctx, loaded, files.manifest.Record, files.images(false)); err != nil {
		return err
	}
	defer loaded.closeIdle()
	err = loaded.saveAgain(ctx, eng.dir)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	return errors.Join(err, loaded.end(clean, eng.dir, true))
}

// saveAgain saves with its files a sandbox that was loaded, in the place of what it was
// loaded from.
func (i *Instance) saveAgain(ctx context.Context, dir string) error {
	half, err := i.provider.suspended.begin(string(i.id), snapshotFiles())
	if err != nil {
		return err
	}
	defer half.discard()
	half.replaces = true
	defer i.gate.close(ctx)()
	req := request{Op: opState, ID: i.id, Save: &saveRequest{Stay: true, Layer: true}}
	if _, _, err := call(ctx, dir, req, half.in(snapshotFiles())...); err != nil {
		return i.provider.suspended.explain(err)
	}
	_, err = i.deposit(ctx, dir, half, true)
	return err
}

// filesOf opens what is saved of a kernel besides its memory, as of a stopped sandbox.
func (v vault) filesOf(name string, m manifest) (keptFiles, error) {
	files := keptFiles{record: m.Record}
	for _, entry := range layerFiles() {
		f, err := v.openFile(name, layerPrefix+entry, m)
		if err != nil {
			files.close()
			return keptFiles{}, err
		}
		files.layer = append(files.layer, f)
		files.size += m.Sizes[layerPrefix+entry]
	}
	files.tree = m.Sizes[snapshotFiles()[len(stateFiles())+1]]
	var err error
	if files.root, err = v.openFile(name, savedRoot, m); err != nil {
		files.close()
		return keptFiles{}, err
	}
	return files, nil
}

// memoryLost is why nobody here can load a saved kernel, of which there are files: nil if
// somebody can. What else is wrong is an error.
func (p *Provider) memoryLost(m manifest) (lost, err error) {
	lost = p.loadable(m)
	switch {
	case lost == nil:
		return nil, nil
	case sandpit.CodeOf(lost) == sandpit.Unsupported && m.hasLayer():
		return lost, nil
	default:
		return nil, lost
	}
}

// stopSuspended has a sandbox that is paused on disk be stopped, if its memory can be
// loaded no more: its programs are lost then. Conflict: it can be.
func (i *Instance) stopSuspended(ctx context.Context) error {
	p := i.provider
	m, err := p.suspended.read(string(i.id))
	if err != nil {
		return err
	}
	lost, err := p.memoryLost(m)
	if err != nil {
		return err
	}
	if lost == nil {
		return suspendedError(i.id)
	}
	files, err := p.suspended.filesOf(string(i.id), m)
	if err != nil {
		return err
	}
	defer files.close()
	dir, err := os.MkdirTemp(p.keep.dir, string(i.id)+"-*"+halfSuffix)
	if err != nil {
		return p.keep.explain(err)
	}
	half := &keeping{keeper: p.keep, id: i.id, dir: dir}
	defer half.discard()
	for _, name := range layerFiles() {
		if err := os.Link(filepath.Join(p.suspended.path(string(i.id)), layerPrefix+name), filepath.Join(dir, name)); err != nil {
			return p.keep.explain(fmt.Errorf("keep the files: %w", err))
		}
	}
	half.layer, files.layer = files.layer, nil
	if err := half.commit(ctx, m.Record, files.root); err != nil {
		return err
	}
	// From here on it is stopped; what is left of its memory is removed now, or when it is
	// started.
	return p.suspended.remove(string(i.id))
}
