package fake

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// State is a state of a sandbox.
type State string

// The states.
const (
	Starting State = "starting"
	Running  State = "running"
	Paused   State = "paused"
	// Suspended is paused on disk.
	Suspended State = "suspended"
	Stopped   State = "stopped"
	Archived  State = "archived"
	// Ended is ended and not destroyed yet.
	Ended State = "ended"
)

// sandbox is the World's state of one sandbox.
type sandbox struct {
	world     *World
	id        sandpit.ID
	createdAt time.Time
	dir       string

	locked chan struct{} // full while a call changes the state
	ended  chan struct{} // closed after exit is set

	mu      sync.Mutex
	spec    sandpit.Spec
	token   string
	state   State
	machine *machine // nil unless running or paused
	stall   Stall
	exit    sandpit.Exit
	network sandpit.NetworkPolicy
	expiry  sandpit.Expiry
	own     chan struct{} // closed while the World has stopped the sandbox by itself
}

// createSandbox creates a sandbox. If it fails, it removes everything again.
func (w *World) createSandbox(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (*sandbox, error) {
	source, err := w.imageDir(spec)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b := &sandbox{
		world: w, id: id, spec: spec.Clone(), createdAt: time.Now(), token: rand.Text(),
		dir:    filepath.Join(w.boxesDir(), string(id)),
		locked: make(chan struct{}, 1), ended: make(chan struct{}), state: Starting,
		expiry: spec.Expiry, own: make(chan struct{}),
	}
	b.locked <- struct{}{}
	defer b.unlock()
	if err := w.addSandbox(b); err != nil {
		return nil, err
	}
	err = b.makeFiles(ctx, source)
	if err == nil {
		err = b.showVolumes()
	}
	if err == nil {
		err = b.bootGuest(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, b.removeSandbox(sandpit.Exit{Reason: "the sandbox could not be made"}))
	}
	return b, nil
}

func (b *sandbox) makeFiles(ctx context.Context, source string) error {
	if source == "" {
		return os.MkdirAll(b.dir, 0o700)
	}
	return copyTree(ctx, source, b.dir)
}

// hostPath returns the path on the machine of a path inside the sandbox.
func (b *sandbox) hostPath(path string) string { return filepath.Join(b.dir, path) }

const homeDir = "/home"

// bootGuest starts a guest and sends it its key.
func (b *sandbox) bootGuest(ctx context.Context) error {
	for _, dir := range []string{homeDir, "/tmp"} {
		if err := os.MkdirAll(b.hostPath(dir), 0o755); err != nil { //nolint:gosec // below a closed directory
			return err
		}
	}
	b.mu.Lock()
	b.stall = Stall{} // the guest that hung has ended
	b.mu.Unlock()
	m := startMachine(b.currentStall)
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return m.dialPort(ctx, guest.Port) },
		DisableKeepAlives: true,
	}
	_, token := b.identityOf()
	err := envd.New(transport, token).Init(ctx, b.guestDefaults())
	if err != nil {
		m.stopAll(b.dir)
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine, b.state = m, Running
	b.endOwnChange()
	return nil
}

// guestDefaults returns the defaults that the guest gives to every process.
func (b *sandbox) guestDefaults() envd.InitRequest {
	spec, _ := b.identityOf()
	env := map[string]string{"HOME": b.hostPath(homeDir), "TMPDIR": b.hostPath("/tmp"), markVariable: b.dir}
	maps.Copy(env, spec.Env)
	req := envd.InitRequest{Env: env, User: spec.User, WorkDir: spec.WorkDir}
	if req.User == "" {
		req.User = fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
	}
	switch req.WorkDir {
	case "":
		req.WorkDir = sandpit.DefaultWorkDir
	case sandpit.HomeDir:
		req.WorkDir = homeDir
	}
	req.WorkDir = b.hostPath(req.WorkDir)
	return req
}

// lock gives the caller the exclusive right to change the state.
func (b *sandbox) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case b.locked <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *sandbox) unlock() { <-b.locked }

// lockInState locks the sandbox if it is in one of these states. Otherwise it returns an error.
func (b *sandbox) lockInState(ctx context.Context, states ...State) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	now := b.currentState()
	if slices.Contains(states, now) {
		return nil
	}
	b.unlock()
	if now == Ended {
		return b.stateError(now)
	}
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s, not %s", b.id, now, states[0])
}

func (b *sandbox) currentState() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *sandbox) setState(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = s
}

// runningMachine returns the machine, or an error if it does not run.
func (b *sandbox) runningMachine() (*machine, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machine, b.stateError(b.state)
}

func (b *sandbox) stateError(s State) error {
	switch s {
	case Running:
		return nil
	case Starting:
		return sandpit.Errorf(sandpit.Unavailable, "sandbox %s is starting", b.id)
	case Ended:
		return sandpit.Errorf(sandpit.Gone, "sandbox %s has ended", b.id)
	case Paused, Suspended, Stopped, Archived:
	}
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", b.id, s)
}

// powerOff ends the guest and all processes. The caller holds the lock.
func (b *sandbox) powerOff(next State) {
	b.mu.Lock()
	m := b.machine
	b.machine, b.state = nil, next
	b.mu.Unlock()
	if m != nil {
		m.stopAll(b.dir)
	}
}

// recordEnd records the end of the sandbox and wakes its waiters. The caller holds the lock.
func (b *sandbox) recordEnd(exit sandpit.Exit) {
	over := b.currentState() == Ended
	b.powerOff(Ended)
	if !over {
		b.exit = exit
		close(b.ended)
	}
}

// removeSandbox ends the sandbox and removes its files. The caller holds the lock.
func (b *sandbox) removeSandbox(exit sandpit.Exit) error {
	b.recordEnd(exit)
	if err := errors.Join(removeAll(b.dir), removeAll(b.checkpointDir())); err != nil {
		return fmt.Errorf("remove the files of sandbox %s: %w", b.id, err)
	}
	b.world.forgetSandbox(b)
	return nil
}

// removeAll removes a tree, including directories that its own user may not enter.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, os.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = os.Chmod(path, 0o700) //nolint:gosec // it is removed next, which returns the error
		}
		return nil
	})
	return os.RemoveAll(dir)
}

func (b *sandbox) destroySandbox(exit sandpit.Exit) error {
	b.locked <- struct{}{}
	defer b.unlock()
	return b.removeSandbox(exit)
}

func (b *sandbox) killSandbox(exit sandpit.Exit) error {
	b.locked <- struct{}{}
	defer b.unlock()
	if now := b.currentState(); now == Ended {
		return b.stateError(now)
	}
	b.recordEnd(exit)
	return nil
}

func (b *sandbox) stopSandbox(ctx context.Context) error {
	if err := b.lockInState(ctx, Running); err != nil {
		return err
	}
	defer b.unlock()
	if err := b.admitSave(ctx); err != nil {
		return err
	}
	b.powerOff(Stopped)
	return nil
}

func (b *sandbox) startSandbox(ctx context.Context) error {
	if err := b.lockInState(ctx, Stopped); err != nil {
		return err
	}
	defer b.unlock()
	return b.bootGuest(ctx)
}

func (b *sandbox) pauseSandbox(ctx context.Context) error {
	if err := b.lockInState(ctx, Running); err != nil {
		return err
	}
	defer b.unlock()
	b.setState(Paused)
	signalAll(b.dir, syscall.SIGSTOP)
	return nil
}

func (b *sandbox) resumeSandbox(ctx context.Context) error {
	if err := b.lockInState(ctx, Paused, Suspended); err != nil {
		return err
	}
	defer b.unlock()
	signalAll(b.dir, syscall.SIGCONT)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = Running
	b.endOwnChange()
	return nil
}

func (b *sandbox) archiveFiles(ctx context.Context) error {
	return b.changeState(ctx, Stopped, Archived)
}

func (b *sandbox) restoreFiles(ctx context.Context) error {
	return b.changeState(ctx, Archived, Stopped)
}

// changeState changes between two states without a running machine.
func (b *sandbox) changeState(ctx context.Context, from, to State) error {
	if err := b.lockInState(ctx, from); err != nil {
		return err
	}
	defer b.unlock()
	if err := b.admitSave(ctx); err != nil {
		return err
	}
	b.setState(to)
	return nil
}
