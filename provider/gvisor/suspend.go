package gvisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var (
	_ sandpit.Pauser     = (*Instance)(nil)
	_ sandpit.Suspender  = (*Instance)(nil)
	_ sandpit.Rollbacker = (*Instance)(nil)
)

// Pause implements sandpit.Pauser. Connections stay open; what is asked through them is
// answered when the sandbox goes on.
func (i *Instance) Pause(ctx context.Context) error { return i.tell(ctx, opPause) }

// Resume implements sandpit.Pauser, wherever the sandbox is paused. One that is on disk is
// there as before when that fails.
func (i *Instance) Resume(ctx context.Context) error {
	if !i.provider.suspended.has(string(i.id)) {
		err := i.tell(ctx, opResume)
		if sandpit.CodeOf(err) != sandpit.Conflict || !i.provider.suspended.has(string(i.id)) {
			return err
		}
	}
	if err := i.wake(ctx); err != nil {
		return fmt.Errorf("resume sandbox %s: %w", i.id, err)
	}
	return nil
}

// Suspend implements sandpit.Suspender. Everything of it is on the disk when it returns.
// Whatever breaks down meanwhile, it is as before or paused on disk.
func (i *Instance) Suspend(ctx context.Context) error {
	err := i.suspend(ctx)
	i.closeIdle()
	if err != nil {
		return fmt.Errorf("suspend sandbox %s: %w", i.id, err)
	}
	return nil
}

// lockSaving keeps others from stopping, starting, saving and destroying the sandbox.
// Unsupported: the Provider saves nothing.
func (i *Instance) lockSaving(ctx context.Context, v vault) (*os.File, error) {
	if v.dir == "" || i.provider.keep.dir == "" {
		return nil, sandpit.Errorf(sandpit.Unsupported, "there is no directory to keep a %s in", v.what)
	}
	return i.provider.keep.lock(ctx, i.id)
}

func (i *Instance) suspend(ctx context.Context) error {
	held, err := i.lockSaving(ctx, i.provider.suspended)
	if err != nil {
		return err
	}
	defer held.Close()
	if i.provider.suspended.has(string(i.id)) {
		return errors.Join(suspendedError(i.id), i.endLeftover(ctx))
	}
	return i.suspendLocked(ctx)
}

// suspendLocked is suspend for who has the lock.
func (i *Instance) suspendLocked(ctx context.Context) error {
	p := i.provider
	dir, err := p.locate(ctx, i.id)
	if err != nil {
		return err
	}
	half, err := p.suspended.begin(string(i.id), stateFiles())
	if err != nil {
		return err
	}
	defer half.discard()
	defer i.gate.close(ctx)()
	req := request{Op: opState, ID: i.id, Save: &saveRequest{Stay: true}}
	if _, _, err := call(ctx, dir, req, half.in(stateFiles())...); err != nil {
		return p.suspended.explain(err)
	}
	if _, err := i.deposit(ctx, dir, half, true); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		_, _, undo := call(clean, dir, request{Op: opUnsave, ID: i.id})
		return errors.Join(err, undo)
	}
	i.moveTo("")
	// From here on it is on disk. What the engine has of it is in nobody's way, but it
	// takes up memory.
	return i.end(context.WithoutCancel(ctx), dir, true)
}

// deposit adds what the engine knows to a saved kernel, and makes it count. With secrets
// it can be continued, else only copied.
func (i *Instance) deposit(ctx context.Context, dir string, half *deposit, secrets bool) (manifest, error) {
	m := manifest{SavedAt: time.Now()}
	var err error
	if m.Engine, err = i.provider.engineVersion(); err != nil {
		return m, err
	}
	if m.Record, err = readRecord(dir, i.id); err != nil {
		return m, err
	}
	m.Record.Spec.Env = nil
	if !secrets {
		m.Bare = len(m.Record.Spec.Secrets) > 0
		m.Record.Token, m.Record.Spec.Secrets = "", nil
	} else {
		if m.Record.Spec.Env, err = i.environment(ctx, dir); err != nil {
			return m, err
		}
		m.Decisions = i.lastDecisions(ctx)
	}
	root, err := i.held(ctx, dir, heldRoot)
	if err != nil {
		return m, err
	}
	defer root.Close()
	guestFile, err := i.held(ctx, dir, heldGuest)
	if err != nil {
		return m, err
	}
	defer guestFile.Close()
	return half.commit(ctx, m, root, guestFile)
}

// logPatience is how long a gateway has to tell its log. It is more than the time in which
// one that broke down is started again.
const logPatience = restartMost + time.Second

// lastDecisions is the network log of a sandbox that is being suspended, or says that it
// cannot be had: that may be the sandbox's own doing, and keeps nobody from suspending it.
func (i *Instance) lastDecisions(ctx context.Context) []sandpit.NetworkDecision {
	ctx, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	list, err := i.NetworkLog(ctx, 0)
	if err != nil {
		now := time.Now()
		list = []sandpit.NetworkDecision{{
			Seq: now.UnixMicro(), At: now, Count: 1, Protocol: "gateway", Reason: "what was here before the pause could not be read: " + err.Error(),
		}}
	}
	return list
}

// environment asks the engine for what no record tells.
func (i *Instance) environment(ctx context.Context, dir string) (map[string]string, error) {
	private, err := i.held(ctx, dir, heldIdentity)
	if err != nil {
		return nil, err
	}
	defer private.Close()
	d, err := readIdentity(private)
	return d.Env, err
}

// wake has a sandbox go on that is paused on disk.
func (i *Instance) wake(ctx context.Context) error {
	held, err := i.lockSaving(ctx, i.provider.suspended)
	if err != nil {
		return err
	}
	defer held.Close()
	return i.wakeLocked(ctx)
}

// wakeLocked is wake for who has the lock.
func (i *Instance) wakeLocked(ctx context.Context) error {
	p := i.provider
	files, err := p.suspended.open(string(i.id))
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if _, err := p.locate(ctx, i.id); err != nil {
			return err
		}
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is not paused", i.id)
	}
	if err != nil {
		return err
	}
	defer files.close()
	return i.awaken(ctx, files, files.manifest)
}

// awaken has the sandbox, which is paused on disk, go on as a saved kernel and with the
// record and network log of now. When that fails it is paused as before.
func (i *Instance) awaken(ctx context.Context, files savedFiles, now manifest) error {
	p, rec := i.provider, now.Record
	rec.Token = rand.Text() // what a copy of its memory holds opens nothing any more
	if lost, err := p.memoryLost(files.manifest); err != nil || lost != nil {
		return errors.Join(err, sandpit.WithHint(lost, "its files are there, without the programs: stop it, and start it"))
	}
	if err := i.endLeftover(ctx); err != nil {
		return err
	}
	eng, err := p.startEngine(ctx)
	if err != nil {
		return err
	}
	started := newInstance(p, eng.dir, rec)
	img := files.images(false)
	img.decisions = now.Decisions
	if err := p.place(ctx, started, rec, img); err != nil {
		return err
	}
	started.closeIdle()
	half, err := p.suspended.forget(string(i.id))
	if err != nil {
		return errors.Join(err, started.end(context.WithoutCancel(ctx), eng.dir, true))
	}
	// From here on it runs: what it does now is nowhere else.
	i.moveTo(eng.dir)
	_ = os.RemoveAll(half) // what stays is swept the next time
	return nil
}

// Rollback implements sandpit.Rollbacker. What it is now is on disk until what it was
// runs: whatever breaks down meanwhile, it runs as the snapshot, or is what it was before,
// maybe paused on disk.
func (i *Instance) Rollback(ctx context.Context, id sandpit.SnapshotID) error {
	err := i.rollback(ctx, id)
	i.closeIdle()
	if err != nil {
		return fmt.Errorf("roll sandbox %s back: %w", i.id, err)
	}
	return nil
}

func (i *Instance) rollback(ctx context.Context, id sandpit.SnapshotID) error {
	p := i.provider
	held, err := i.lockSaving(ctx, p.suspended)
	if err != nil {
		return err
	}
	defer held.Close()
	files, err := p.snapshots.open(string(id))
	if err != nil {
		return err
	}
	defer files.close()
	if files.manifest.Record.ID != i.id {
		return sandpit.Errorf(sandpit.Invalid, "snapshot %s is of sandbox %s", id, files.manifest.Record.ID)
	}
	if err := p.loadable(files.manifest); err != nil {
		return err
	}
	onDisk := p.suspended.has(string(i.id))
	wasPaused := false
	if !onDisk {
		rep, _, err := i.call(ctx, request{Op: opStats, ID: i.id})
		if err != nil {
			return err
		}
		wasPaused = rep.Paused
		if err := i.suspendLocked(ctx); err != nil {
			return err
		}
	}
	now, err := p.suspended.read(string(i.id))
	if err != nil {
		return err
	}
	now.Record.Group = files.manifest.Record.Group
	if err = i.awaken(ctx, files, now); err == nil || onDisk {
		return err
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*startTimeout)
	defer cancel()
	undo := i.wakeLocked(clean)
	if undo == nil && wasPaused {
		undo = i.tell(clean, opPause)
	}
	return errors.Join(err, undo)
}

func suspendedError(id sandpit.ID) error {
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is paused on disk", id)
}

// away is a Conflict for a sandbox that is on disk and in no engine.
func (p *Provider) away(id sandpit.ID) error {
	switch {
	case p.keep.has(id):
		return stoppedError(id)
	case p.suspended.has(string(id)):
		return suspendedError(id)
	}
	return nil
}

// awayRecords are those of all such sandboxes.
func (p *Provider) awayRecords() ([]record, error) {
	all, err := p.keep.list()
	if err != nil {
		return nil, err
	}
	suspended, err := p.suspended.list()
	if err != nil {
		return nil, err
	}
	for _, m := range suspended {
		all = append(all, m.Record)
	}
	return all, nil
}
