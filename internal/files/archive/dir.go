package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// Dir is a Store in a directory.
type Dir struct{ path string }

var _ Store = (*Dir)(nil)

// partialPrefix begins the names of incomplete objects. No key begins with it.
const partialPrefix = ".half-"

// OpenDir returns the Store in a directory. It creates a missing directory, accessible to its user only, and removes
// incomplete objects of processes that were killed: therefore only one process may use the directory at a time.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("open the archive: %w", err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("open the archive: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partialPrefix) {
			errs = append(errs, os.Remove(filepath.Join(path, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("open the archive: %w", err)
	}
	return &Dir{path}, nil
}

// Put implements Store.
func (d *Dir) Put(ctx context.Context, key string, from io.Reader) error {
	if err := checkKey(key); err != nil {
		return err
	}
	err := d.writeObject(ctx, key, from)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%w", err), "free space on the disk of "+d.path)
	}
	if err != nil {
		return fmt.Errorf("put %s into the archive: %w", key, err)
	}
	return nil
}

func (d *Dir) writeObject(ctx context.Context, key string, from io.Reader) error {
	return atomicfile.WriteFunc(filepath.Join(d.path, key), 0o600, func(f io.Writer) error {
		_, err := io.Copy(f, contextReader{ctx, from})
		return err
	}, atomicfile.Pattern(partialPrefix+"*"))
}

// Get implements Store.
func (d *Dir) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(d.path, key))
	if err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "get %s from the archive: %w", key, err)
	}
	return &objectReader{contextReader{ctx, f}, f}, nil
}

// Remove implements Store.
func (d *Dir) Remove(_ context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(d.path, key)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s from the archive: %w", key, err)
	}
	return nil
}

// List implements Store.
func (d *Dir) List(context.Context) ([]Object, error) {
	entries, err := os.ReadDir(d.path) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("list the archive: %w", err)
	}
	var list []Object
	for _, e := range entries {
		info, err := e.Info()
		if checkKey(e.Name()) != nil || errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the archive: %w", err)
		}
		list = append(list, Object{Key: e.Name(), Size: info.Size(), CreatedAt: info.ModTime()})
	}
	return list, nil
}

// contextReader ends when a context ends.
type contextReader struct {
	ctx  context.Context //nolint:containedctx // lives as long as one call
	from io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.from.Read(p)
}

type objectReader struct {
	contextReader
	io.Closer
}
