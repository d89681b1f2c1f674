package gvisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

var (
	_ sandpit.Checkpointer = (*Instance)(nil)
	_ sandpit.Reviver      = (*Instance)(nil)
)

// Directories beside those of stopped sandboxes. They are no IDs.
const (
	savedName    = "checkpoints"
	archivedName = "archived"
)

// openCold finds out what there is of sandboxes that do not run.
func (p *Provider) openCold() error {
	if p.keep.dir == "" {
		return nil
	}
	p.saved = keeper{dir: filepath.Join(p.keep.dir, savedName), locks: p.keep.dir}
	p.archived = archived{dir: filepath.Join(p.keep.dir, archivedName)}
	for _, dir := range []string{p.saved.dir, p.archived.dir} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make the directory of what is kept: %w", err)
		}
	}
	return errors.Join(p.saved.sweep(), p.dropOld(), keeper{dir: p.archived.dir, locks: p.keep.dir}.sweep())
}

// Checkpoint implements sandpit.Checkpointer. The sandbox holds still while its files are
// written, as it does for a stop, and goes on while they are synced.
//
// Unsupported: the Provider keeps nothing. Exhausted: there is no room on the disk, or all
// checkpoints together would be too large. Then the one before is still there.
func (i *Instance) Checkpoint(ctx context.Context) error {
	if err := i.checkpoint(ctx); err != nil {
		return fmt.Errorf("checkpoint sandbox %s: %w", i.id, err)
	}
	return nil
}

func (i *Instance) checkpoint(ctx context.Context) error {
	p := i.provider
	if p.saved.dir == "" {
		return sandpit.Errorf(sandpit.Unsupported, "there is no directory to keep its files in")
	}
	held, err := p.keep.lock(ctx, i.id)
	if err != nil {
		return err
	}
	defer held.Close()
	dir, err := p.locate(ctx, i.id)
	if err != nil {
		return err
	}
	half, err := p.saved.begin(i.id)
	if err != nil {
		return err
	}
	defer half.discard()
	if _, _, err := call(ctx, dir, request{Op: opSave, ID: i.id, GoOn: true}, half.layer...); err != nil {
		return p.saved.explain(err)
	}
	if err := p.dropOld(); err != nil {
		return err
	}
	done, err := p.makeRoom(ctx, i.id, p.saved.size(half.dir))
	if err != nil {
		return err
	}
	defer done()
	return i.commit(ctx, dir, half)
}

// saveAndGoOn is save for a sandbox that is not to be stopped. The engine does both, so
// that nobody has to live to see the sandbox go on.
func (b *box) saveAndGoOn(ctx context.Context, files []*os.File) error {
	if err := b.save(ctx, files); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.saved { // somebody else had it go on
		return nil
	}
	if err := b.unsaveLocked(); err != nil {
		return b.kernelErrorLocked("resume", err)
	}
	return nil
}

// name gives a directory the name under which a sandbox's files are found, in one step.
// If there was one before, that has the name of the new one then.
func (k keeper) name(dir string, id sandpit.ID) (replaced bool, err error) {
	if !k.has(id) {
		return false, os.Rename(dir, k.path(id))
	}
	return true, unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, k.path(id), unix.RENAME_EXCHANGE)
}

// unkeep ends that a sandbox is stopped, and returns a directory that is to be removed.
// A checkpoint from before the stop must not be found any more from then on: the files
// of the stop are the next one.
func (p *Provider) unkeep(ctx context.Context, id sandpit.ID) (string, error) {
	if err := p.archived.leave(id); err != nil {
		return "", err
	}
	had := p.saved.dir != "" && p.saved.has(id)
	if had {
		if err := errors.Join(p.saved.remove(id), syncPath(p.saved.dir)); err != nil {
			return "", err
		}
	}
	half, err := p.keep.forget(id)
	if err != nil || !had {
		return half, err
	}
	ctx, cancel := context.WithTimeout(ctx, unkeepLimit)
	defer cancel()
	if done, err := p.makeRoom(ctx, id, p.keep.size(half)); err == nil {
		defer done()
		if os.Rename(half, p.saved.path(id)) == nil {
			return "", nil
		}
	}
	return half, nil // there is none until the next checkpoint
}

// Revive implements sandpit.Reviver: the sandbox begins with the files of its last
// checkpoint, as a stopped one does when it is started.
//
// NotFound: there is no checkpoint, or it is too old.
func (i *Instance) Revive(ctx context.Context) (sandpit.Instance, error) {
	next, err := i.revive(ctx)
	if err != nil {
		return nil, fmt.Errorf("revive sandbox %s: %w", i.id, err)
	}
	return next, nil
}

func (i *Instance) revive(ctx context.Context) (*Instance, error) {
	p := i.provider
	if p.saved.dir == "" {
		return nil, sandpit.Errorf(sandpit.NotFound, "there is no directory where its files could be")
	}
	held, err := p.keep.lock(ctx, i.id)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	if err := i.mustHaveEnded(ctx); err != nil {
		return nil, err
	}
	if err := p.dropIfOld(i.id); err != nil {
		return nil, err
	}
	files, err := p.saved.open(i.id)
	if err != nil {
		return nil, err
	}
	return i.startFrom(ctx, files)
}

// mustHaveEnded returns Conflict for a sandbox that runs, or is stopped.
func (i *Instance) mustHaveEnded(ctx context.Context) error {
	dir, err := i.provider.locate(ctx, i.id)
	switch sandpit.CodeOf(err) {
	case sandpit.Conflict:
		return err
	case "":
	default:
		return nil // gone, with its engine or alone
	}
	// A box that has ended answers at once; one that has not, only at its end.
	ctx, cancel := context.WithTimeout(ctx, endedLimit)
	defer cancel()
	_, f, err := call(ctx, dir, request{Op: opWait, ID: i.id})
	if f != nil {
		_ = f.Close()
	}
	if ctx.Err() != nil {
		return sandpit.Errorf(sandpit.Conflict, "it has not ended")
	}
	if sandpit.CodeOf(err) == sandpit.Gone {
		return nil
	}
	return err
}

// endedLimit is how long an engine may take to say that a sandbox has ended.
const endedLimit = 2 * time.Second

// startFrom makes the sandbox with the files that are kept of it, and closes these.
func (i *Instance) startFrom(ctx context.Context, files keptFiles) (*Instance, error) {
	p := i.provider
	img := images{
		rootFile: files.root, layer: files.layer,
		loading: time.Duration(files.size/slowestLoad) * time.Second, kernel: keptOfTree * files.tree, renew: files.renew,
	}
	defer func() { img.close() }()
	if err := i.endLeftover(ctx); err != nil {
		return nil, err
	}
	var err error
	if img.guestFile, err = p.openGuest(ctx); err != nil {
		return nil, err
	}
	eng, err := p.startEngine(ctx)
	if err != nil {
		return nil, err
	}
	rec := files.record
	rec.Token = rand.Text()
	started := newInstance(p, eng.dir, rec)
	if err := p.place(ctx, started, rec, img); err != nil {
		return nil, err
	}
	started.closeIdle()
	return started, nil
}

// restsOf returns what is known of a sandbox that is in no engine.
func (p *Provider) restsOf(id sandpit.ID) (rec record, there bool, err error) {
	if p.keep.dir == "" {
		return rec, false, nil
	}
	m, err := p.suspended.read(string(id))
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return m.Record, err == nil, err
	}
	found, err := p.keep.read(id)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		var away archivedRecord
		away, err = p.archived.read(id)
		found.Record = away.Kept.Record
	}
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return found.Record, err == nil, err
	}
	if !p.saved.has(id) {
		return rec, false, nil
	}
	if found, err = p.saved.read(id); err != nil {
		found.Record = record{ID: id} // enough to remove it
	}
	return found.Record, true, nil
}

// leftovers are the sandboxes that are archived, or of which there is nothing but a
// checkpoint any more.
func (p *Provider) leftovers() ([]record, error) {
	if p.keep.dir == "" {
		return nil, nil
	}
	list, err := p.archived.list()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(p.saved.dir)
	if err != nil {
		return nil, fmt.Errorf("list the checkpoints: %w", err)
	}
	for _, e := range entries {
		id := sandpit.ID(e.Name())
		if id.Validate() != nil {
			continue
		}
		found, err := p.saved.read(id)
		if err != nil {
			found.Record = record{ID: id} // one that is damaged keeps nobody from seeing the others
		}
		list = append(list, found.Record)
	}
	return list, nil
}
