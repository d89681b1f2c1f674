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

// State is where a sandbox is in its life.
type State string

// The states.
const (
	Starting State = "starting"
	Running  State = "running"
	Paused   State = "paused"
	// Suspended is one that is paused on disk.
	Suspended State = "suspended"
	Stopped   State = "stopped"
	Archived  State = "archived"
	// Ended is one that ended and was not destroyed yet.
	Ended State = "ended"
)

// box is a sandbox, as its World knows it.
type box struct {
	world     *World
	id        sandpit.ID
	createdAt time.Time
	dir       string

	turn  chan struct{} // full while somebody changes the state
	ended chan struct{} // closed after exit is set

	mu        sync.Mutex
	spec      sandpit.Spec
	token     string
	state     State
	machine   *machine // nil unless running or paused
	stall     Stall
	exit      sandpit.Exit
	resources sandpit.Resources
	network   sandpit.NetworkPolicy
}

// create makes a sandbox. Of one that fails, nothing is left.
func (w *World) create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (*box, error) {
	source, err := w.imageDir(spec)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b := &box{
		world: w, id: id, spec: spec.Clone(), createdAt: time.Now(), token: rand.Text(),
		dir:  filepath.Join(w.boxesDir(), string(id)),
		turn: make(chan struct{}, 1), ended: make(chan struct{}), state: Starting,
	}
	b.turn <- struct{}{}
	defer b.yield()
	if err := w.add(b); err != nil {
		return nil, err
	}
	err = b.makeFiles(ctx, source)
	if err == nil {
		err = b.showVolumes()
	}
	if err == nil {
		err = b.boot(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, b.remove(sandpit.Exit{Reason: "the sandbox could not be made"}))
	}
	return b, nil
}

func (b *box) makeFiles(ctx context.Context, source string) error {
	if source == "" {
		return os.MkdirAll(b.dir, 0o700)
	}
	return copyTree(ctx, source, b.dir)
}

// inside returns where a path of the sandbox's own is on the machine.
func (b *box) inside(path string) string { return filepath.Join(b.dir, path) }

const homeDir = "/home"

// boot starts a guest and gives it its key.
func (b *box) boot(ctx context.Context) error {
	for _, dir := range []string{homeDir, "/tmp"} {
		if err := os.MkdirAll(b.inside(dir), 0o755); err != nil { //nolint:gosec // below a closed directory
			return err
		}
	}
	b.mu.Lock()
	b.stall = Stall{} // the one that hung has ended
	b.mu.Unlock()
	m := startMachine(b.stalled)
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return m.dial(ctx, guest.Port) },
		DisableKeepAlives: true,
	}
	_, token := b.identity()
	err := envd.New(transport, token).Init(ctx, b.defaults())
	if err != nil {
		m.stop(b.dir)
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine, b.state = m, Running
	return nil
}

// defaults are what the guest gives to every process.
func (b *box) defaults() envd.InitRequest {
	spec, _ := b.identity()
	env := map[string]string{"HOME": b.inside(homeDir), "TMPDIR": b.inside("/tmp"), markVariable: b.dir}
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
	req.WorkDir = b.inside(req.WorkDir)
	return req
}

// take waits for the turn to change the state.
func (b *box) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *box) yield() { <-b.turn }

// in takes the turn if the sandbox is in one of these states.
func (b *box) in(ctx context.Context, states ...State) error {
	if err := b.take(ctx); err != nil {
		return err
	}
	now := b.now()
	if slices.Contains(states, now) {
		return nil
	}
	b.yield()
	if now == Ended {
		return b.stateError(now)
	}
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s, not %s", b.id, now, states[0])
}

func (b *box) now() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *box) set(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = s
}

// running returns the machine, or why there is none to talk to.
func (b *box) running() (*machine, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machine, b.stateError(b.state)
}

func (b *box) stateError(s State) error {
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

// powerOff ends the guest and all processes. Whoever calls it has the turn.
func (b *box) powerOff(next State) {
	b.mu.Lock()
	m := b.machine
	b.machine, b.state = nil, next
	b.mu.Unlock()
	if m != nil {
		m.stop(b.dir)
	}
}

// end tells everybody that the sandbox is over. Whoever calls it has the turn.
func (b *box) end(exit sandpit.Exit) {
	over := b.now() == Ended
	b.powerOff(Ended)
	if !over {
		b.exit = exit
		close(b.ended)
	}
}

// remove ends the sandbox and removes its files. Whoever calls it has the turn.
func (b *box) remove(exit sandpit.Exit) error {
	b.end(exit)
	if err := errors.Join(removeAll(b.dir), removeAll(b.saved())); err != nil {
		return fmt.Errorf("remove the files of sandbox %s: %w", b.id, err)
	}
	b.world.forget(b)
	return nil
}

// removeAll also removes directories that a program has closed to its own user.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, os.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = os.Chmod(path, 0o700) //nolint:gosec // it is about to be removed, which tells what went wrong
		}
		return nil
	})
	return os.RemoveAll(dir)
}

func (b *box) destroy(exit sandpit.Exit) error {
	b.turn <- struct{}{}
	defer b.yield()
	return b.remove(exit)
}

func (b *box) kill(exit sandpit.Exit) error {
	b.turn <- struct{}{}
	defer b.yield()
	if now := b.now(); now == Ended {
		return b.stateError(now)
	}
	b.end(exit)
	return nil
}

func (b *box) stop(ctx context.Context) error {
	if err := b.in(ctx, Running); err != nil {
		return err
	}
	defer b.yield()
	if err := b.admit(ctx); err != nil {
		return err
	}
	b.powerOff(Stopped)
	return nil
}

func (b *box) start(ctx context.Context) error {
	if err := b.in(ctx, Stopped); err != nil {
		return err
	}
	defer b.yield()
	return b.boot(ctx)
}

func (b *box) pause(ctx context.Context) error {
	if err := b.in(ctx, Running); err != nil {
		return err
	}
	defer b.yield()
	b.set(Paused)
	signalAll(b.dir, syscall.SIGSTOP)
	return nil
}

func (b *box) resume(ctx context.Context) error {
	if err := b.in(ctx, Paused, Suspended); err != nil {
		return err
	}
	defer b.yield()
	signalAll(b.dir, syscall.SIGCONT)
	b.set(Running)
	return nil
}

func (b *box) archive(ctx context.Context) error { return b.move(ctx, Stopped, Archived) }

func (b *box) restore(ctx context.Context) error { return b.move(ctx, Archived, Stopped) }

// move changes between two states in which nothing runs.
func (b *box) move(ctx context.Context, from, to State) error {
	if err := b.in(ctx, from); err != nil {
		return err
	}
	defer b.yield()
	if err := b.admit(ctx); err != nil {
		return err
	}
	b.set(to)
	return nil
}
