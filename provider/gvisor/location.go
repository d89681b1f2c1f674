package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	// handleStopped stands in a handle instead of the name of an engine.
	handleStopped = "stopped"
	startPoll     = 250 * time.Millisecond
)

// location knows which engine has a sandbox. Others may stop and start the sandbox, so it
// finds the engine again when the one that it knows does not have the sandbox.
type location struct {
	provider *Provider
	id       sandpit.ID

	mu  sync.Mutex
	dir string // the engine's; empty while the sandbox is not in an engine
}

// engineDir returns the directory of the engine that had the sandbox last.
func (l *location) engineDir() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dir
}

// engine returns a client of the engine that had the sandbox last.
func (l *location) engine() engineClient { return engineClient{l.engineDir(), l.id} }

// setEngineDir records which engine has the sandbox, none if dir is empty.
func (l *location) setEngineDir(dir string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dir = dir
}

// call makes a request to the engine that has the sandbox.
//
// Conflict: the sandbox is stopped or suspended. Gone: it does not exist.
func (l *location) call(ctx context.Context, req request, files ...*os.File) (reply, *os.File, error) {
	known := l.engine()
	rep, f, err := known.call(ctx, req, files...)
	if sandpit.CodeOf(err) != sandpit.Gone {
		return rep, f, err
	}
	dir, locateErr := l.provider.locateSandbox(ctx, l.id)
	switch {
	case sandpit.CodeOf(locateErr) == sandpit.Conflict:
		return rep, nil, locateErr
	case locateErr != nil || dir == known.dir:
		return rep, nil, err
	}
	l.setEngineDir(dir)
	return l.engine().call(ctx, req, files...)
}

// run is call for a request whose reply has no file.
func (l *location) run(ctx context.Context, req request, files ...*os.File) (reply, error) {
	rep, f, err := l.call(ctx, req, files...)
	if f != nil {
		_ = f.Close()
	}
	return rep, err
}

// record returns the record of a running sandbox.
//
// Conflict: it is stopped or suspended. Gone: it does not exist.
func (l *location) record() (record, error) {
	rec, err := l.engine().record()
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if err := l.provider.states.notRunning(l.id); err != nil {
			return rec, err
		}
		err = sandpit.Errorf(sandpit.Gone, "sandbox %s is gone", l.id)
	}
	return rec, err
}

// awaitStart waits until a sandbox that is stopped or suspended runs.
//
// Gone: it was destroyed.
func (l *location) awaitStart(ctx context.Context) error {
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for {
		dir, err := l.provider.locateSandbox(ctx, l.id)
		if err == nil {
			l.setEngineDir(dir)
		}
		if sandpit.CodeOf(err) != sandpit.Conflict {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitEnd waits until the sandbox ends in the engine that is known to have it. ended is false
// if the sandbox itself did not end there: it was stopped, or another engine has it.
func (l *location) awaitEnd(ctx context.Context) (exit sandpit.Exit, ended bool, err error) {
	engine := l.engine()
	rep, err := engine.run(ctx, request{Op: opWait})
	if sandpit.CodeOf(err) == sandpit.Gone {
		dir, err := l.provider.locateSandbox(ctx, l.id)
		if err == nil && dir != engine.dir {
			l.setEngineDir(dir)
			return exit, false, nil
		}
		return sandpit.Exit{Reason: engineEnd(ctx, engine.dir)}, true, nil
	}
	if err != nil {
		return exit, false, err
	}
	if rep.Exit == nil {
		return exit, false, sandpit.Errorf(sandpit.Internal, "wait: the engine sent no exit")
	}
	return *rep.Exit, !rep.Stopped, nil
}

// locateSandbox returns the directory of the engine that has a sandbox.
//
// Conflict: the sandbox is stopped, suspended or archived. Gone: it does not exist.
func (p *Provider) locateSandbox(ctx context.Context, id sandpit.ID) (string, error) {
	if err := p.states.notRunning(id); err != nil {
		return "", err
	}
	name, err := p.findEngine(id)
	if err != nil {
		return "", err
	}
	if name == "" {
		if err := p.states.notRunning(id); err != nil { // stopped meanwhile
			return "", err
		}
		if p.states.archived.has(id) {
			return "", archivedError(id)
		}
		return "", sandpit.Errorf(sandpit.Gone, "sandbox %s is gone", id)
	}
	dir := filepath.Join(p.engines, name)
	conn, err := dialControl(ctx, dir) // a crash may have left a record alone
	if err != nil {
		return "", fmt.Errorf("sandbox %s: %w", id, err)
	}
	return dir, conn.Close()
}
