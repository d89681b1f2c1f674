package api

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

func listenTCP(ctx context.Context, address string) (net.Listener, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "somebody else listens at %s", address),
			"end that program, or choose another address")
	case errors.Is(err, unix.EACCES):
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "listen at %s: %w", address, err)
	case err != nil:
		return nil, sandpit.Errorf(sandpit.Invalid, "listen at %s: %w", address, err)
	}
	return l, nil
}

// socketListener removes its socket when it is closed, if it is its own still.
type socketListener struct {
	net.Listener

	path string
	file os.FileInfo
	once sync.Once
}

// Close implements net.Listener.
func (l *socketListener) Close() error {
	l.once.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
			_ = os.Remove(l.path) // whoever comes next replaces it
		}
	})
	return l.Listener.Close()
}

// maxSocketPath is how long the path of a unix socket may be, for Linux.
const maxSocketPath = 107

// listenUnix makes a unix socket that only its owner reaches, from the moment it has
// its name on. One that a dead server has left is replaced.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "unix socket: %w", err)
	}
	if len(path) > maxSocketPath {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "unix socket %s: a path of %d bytes, and there may be %d", path, len(path), maxSocketPath),
			"choose a shorter path")
	}
	if err := checkFree(ctx, path); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s-*") // with permissions 0700
	if err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "make a unix socket: %w", err)
	}
	defer os.RemoveAll(dir)
	temporary := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.CodeOf(err), "make a unix socket %s: %w", path, err),
			"if its path is long, choose a shorter one")
	}
	l.SetUnlinkOnClose(false)
	own, err := publishSocket(temporary, path)
	if err != nil {
		return nil, errors.Join(sandpit.Errorf(sandpit.CodeOf(err), "make a unix socket: %w", err), l.Close())
	}
	return &socketListener{Listener: l, path: path, file: own}, nil
}

func publishSocket(temporary, path string) (os.FileInfo, error) {
	if err := os.Chmod(temporary, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(temporary, path); err != nil {
		return nil, err
	}
	return os.Lstat(path)
}

// checkFree fails if there is something at a path that is no socket, or somebody who
// answers.
func checkFree(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "make a unix socket: %w", err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return sandpit.Errorf(sandpit.Conflict, "%s is there already, and is no socket", path)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil //nolint:nilerr // nobody answers: a dead server has left it
	}
	_ = c.Close() // nothing was said
	return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "somebody else listens at %s", path),
		"end that program, or choose another path")
}
