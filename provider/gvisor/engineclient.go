package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
)

// engineClient makes requests about one sandbox to one engine.
type engineClient struct {
	dir string // the engine's; empty: none
	id  sandpit.ID
}

// call makes a request. A file of the reply, if there is one, belongs to the caller.
func (c engineClient) call(ctx context.Context, req request, files ...*os.File) (reply, *os.File, error) {
	req.ID = c.id
	return callEngine(ctx, c.dir, req, files...)
}

// run makes a request whose reply has no file.
func (c engineClient) run(ctx context.Context, req request, files ...*os.File) (reply, error) {
	rep, f, err := c.call(ctx, req, files...)
	if f != nil {
		_ = f.Close()
	}
	return rep, err
}

// end ends the sandbox in the engine if it exists there, and removes its record. stopped
// means that the sandbox itself does not end.
func (c engineClient) end(ctx context.Context, stopped bool) error {
	if c.dir == "" {
		return nil
	}
	_, err := c.run(ctx, request{Op: opDestroy, Stopped: stopped})
	if sandpit.CodeOf(err) == sandpit.Gone {
		err = nil // with its engine, or earlier
	}
	if err != nil {
		return err
	}
	if err := os.Remove(recordPath(c.dir, c.id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// openHeld returns a file that the engine holds for the sandbox.
func (c engineClient) openHeld(ctx context.Context, which heldFile) (*os.File, error) {
	_, f, err := c.call(ctx, request{Op: opHeld, Held: which})
	if err == nil && f == nil {
		err = sandpit.Errorf(sandpit.Internal, "the engine sent no %s", which)
	}
	return f, err
}

// environment returns the sandbox's environment, which its record does not have.
func (c engineClient) environment(ctx context.Context) (map[string]string, error) {
	f, err := c.openHeld(ctx, heldIdentity)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	i, err := readIdentity(f)
	return i.Env, err
}

// setEnvironment has the engine hold another environment.
func (c engineClient) setEnvironment(ctx context.Context, env map[string]string) error {
	f, err := identity{Env: env}.toFile()
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = c.run(ctx, request{Op: opIdentify}, f)
	return err
}

// record returns the sandbox's record, without its environment.
func (c engineClient) record() (record, error) { return readRecord(c.dir, c.id) }

// fullRecord returns the sandbox's record with its environment.
func (c engineClient) fullRecord(ctx context.Context) (record, error) {
	rec, err := c.record()
	if err != nil {
		return rec, err
	}
	rec.Spec.Env, err = c.environment(ctx)
	return rec, err
}

// name returns how a handle names the engine.
func (c engineClient) name() string {
	if c.dir == "" {
		return handleStopped
	}
	return filepath.Base(c.dir)
}
