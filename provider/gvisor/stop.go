package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.Stopper = (*Instance)(nil)

const (
	startPoll = 250 * time.Millisecond
	// slowestLoad is how many bytes of files a second a start has to manage at least.
	slowestLoad = 10 << 20
	// keptOfTree is how much memory a kernel keeps for each byte of the file that
	// describes the tree of files: that file itself, and what the collector leaves.
	keptOfTree = 2
	// handleStopped stands in a handle where else an engine does.
	handleStopped = "stopped"
)

// Stop implements sandpit.Stopper. What was written to the sandbox's own files is on
// the disk when it returns, and its image with it; what was in memory, /dev/shm
// included, is gone. Whatever breaks down meanwhile, it runs as before or is stopped.
//
// Exhausted: there is no room on the disk. Unsupported: the Provider keeps nothing.
func (i *Instance) Stop(ctx context.Context) error {
	err := i.stop(ctx)
	i.closeIdle()
	if err != nil {
		return fmt.Errorf("stop sandbox %s: %w", i.id, err)
	}
	return nil
}

func (i *Instance) stop(ctx context.Context) error {
	keep := i.provider.keep
	if keep.dir == "" {
		return sandpit.Errorf(sandpit.Unsupported, "there is no directory to keep its files in")
	}
	held, err := keep.lock(ctx, i.id)
	if err != nil {
		return err
	}
	defer held.Close()
	if keep.has(i.id) {
		return errors.Join(sandpit.Errorf(sandpit.Conflict, "it is stopped already"), i.endLeftover(ctx))
	}
	if i.provider.suspended.has(string(i.id)) {
		return i.stopSuspended(ctx)
	}
	dir, err := i.provider.locate(ctx, i.id)
	if err != nil {
		return err
	}
	if err := i.keep(ctx, dir); err != nil {
		return err
	}
	i.moveTo("")
	// From here on it is stopped. What the engine has of it is in nobody's way, but it
	// takes up memory.
	return i.end(context.WithoutCancel(ctx), dir, true)
}

// keep writes down all of the sandbox that is in an engine. When that fails it runs
// on.
func (i *Instance) keep(ctx context.Context, dir string) error {
	keep := i.provider.keep
	half, err := keep.begin(i.id)
	if err != nil {
		return err
	}
	defer half.discard()
	if _, _, err := call(ctx, dir, request{Op: opSave, ID: i.id}, half.layer...); err != nil {
		return keep.explain(err)
	}
	err = i.commit(ctx, dir, half)
	if err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	_, _, resumeErr := call(clean, dir, request{Op: opResume, ID: i.id})
	return errors.Join(err, resumeErr)
}

// commit adds what the engine knows to the saved layer, and makes it count.
func (i *Instance) commit(ctx context.Context, dir string, half *keeping) error {
	rec, err := i.wholeRecord(ctx, dir)
	if err != nil {
		return err
	}
	root, err := i.held(ctx, dir, heldRoot)
	if err != nil {
		return err
	}
	defer root.Close()
	return half.commit(ctx, rec, root)
}

// wholeRecord returns what is written of a sandbox with what only its engine knows.
func (i *Instance) wholeRecord(ctx context.Context, dir string) (record, error) {
	rec, err := readRecord(dir, i.id)
	if err != nil {
		return rec, err
	}
	private, err := i.held(ctx, dir, heldIdentity)
	if err != nil {
		return rec, err
	}
	defer private.Close()
	d, err := readIdentity(private)
	if err != nil {
		return rec, err
	}
	rec.Spec.Env = d.Env
	return rec, nil
}

// held asks an engine for a file that it holds for the sandbox.
func (i *Instance) held(ctx context.Context, dir string, which heldFile) (*os.File, error) {
	_, f, err := call(ctx, dir, request{Op: opHeld, ID: i.id, Held: which})
	if err == nil && f == nil {
		err = sandpit.Errorf(sandpit.Internal, "the engine sent no %s", which)
	}
	return f, err
}

// Start implements sandpit.Stopper. The sandbox has the id, files, environment, key
// and limits it had, and begins as a new one does. When that fails it is stopped as
// before.
func (i *Instance) Start(ctx context.Context) error {
	if err := i.start(ctx); err != nil {
		return fmt.Errorf("start sandbox %s: %w", i.id, err)
	}
	return nil
}

func (i *Instance) start(ctx context.Context) error {
	p := i.provider
	if p.keep.dir == "" {
		return sandpit.Errorf(sandpit.Unsupported, "there is no directory where its files could be")
	}
	held, err := p.keep.lock(ctx, i.id)
	if err != nil {
		return err
	}
	defer held.Close()
	files, err := p.keep.open(i.id)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if _, err := p.locate(ctx, i.id); err != nil {
			return err
		}
		return sandpit.Errorf(sandpit.Conflict, "it is not stopped")
	}
	if err != nil {
		return err
	}
	// What is left of its memory, if it was paused on disk before it was stopped, must not
	// count later.
	if err := p.suspended.remove(string(i.id)); err != nil {
		files.close()
		return err
	}
	started, err := i.startFrom(ctx, files)
	if err != nil {
		return err
	}
	dir := started.engineDir()
	half, err := p.unkeep(ctx, i.id)
	if err != nil {
		return errors.Join(err, started.end(context.WithoutCancel(ctx), dir, true))
	}
	// From here on it runs: what it writes now is nowhere else.
	i.moveTo(dir)
	_ = os.RemoveAll(half) // what stays is swept the next time
	return nil
}

// endLeftover ends what an engine has of a sandbox that is stopped: of a stop that
// was not finished, or of a start.
func (i *Instance) endLeftover(ctx context.Context) error {
	name, err := i.provider.find(i.id)
	if err != nil || name == "" {
		return err
	}
	return i.end(ctx, filepath.Join(i.provider.engines, name), true)
}

// awaitStart waits until a sandbox that was stopped runs. Gone: it was destroyed.
func (i *Instance) awaitStart(ctx context.Context) error {
	look := time.NewTicker(startPoll)
	defer look.Stop()
	for {
		dir, err := i.provider.locate(ctx, i.id)
		if err == nil {
			i.moveTo(dir)
		}
		if sandpit.CodeOf(err) != sandpit.Conflict {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// call asks the engine that holds the sandbox. If it does not, the sandbox may have
// been stopped and started since. Conflict: it is stopped.
func (i *Instance) call(ctx context.Context, req request, files ...*os.File) (reply, *os.File, error) {
	asked := i.engineDir()
	rep, f, err := call(ctx, asked, req, files...)
	if sandpit.CodeOf(err) != sandpit.Gone {
		return rep, f, err
	}
	dir, where := i.provider.locate(ctx, i.id)
	switch {
	case sandpit.CodeOf(where) == sandpit.Conflict:
		return rep, nil, where
	case where != nil || dir == asked:
		return rep, nil, err
	}
	i.moveTo(dir)
	return call(ctx, dir, req, files...)
}

// locate returns the directory of the engine that has a sandbox. Conflict: it is
// stopped, or paused on disk. Gone: there is none.
func (p *Provider) locate(ctx context.Context, id sandpit.ID) (string, error) {
	if err := p.away(id); err != nil {
		return "", err
	}
	name, err := p.find(id)
	if err != nil {
		return "", err
	}
	if name == "" {
		if err := p.away(id); err != nil { // meanwhile
			return "", err
		}
		if p.archived.has(id) {
			return "", archivedError(id)
		}
		return "", sandpit.Errorf(sandpit.Gone, "sandbox %s is gone", id)
	}
	dir := filepath.Join(p.engines, name)
	conn, err := dialControl(ctx, dir) // a record alone may be what a crash left
	if err != nil {
		return "", fmt.Errorf("sandbox %s: %w", id, err)
	}
	return dir, conn.Close()
}

func stoppedError(id sandpit.ID) error {
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is stopped", id)
}

func (i *Instance) engineDir() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.engine
}

func (i *Instance) moveTo(dir string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.engine = dir
}

// handleEngine is what a handle says of where a sandbox is.
func handleEngine(dir string) string {
	if dir == "" {
		return handleStopped
	}
	return filepath.Base(dir)
}
