package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
	"github.com/sandpit-dev/sandpit/internal/files/tree"
)

// CopyTo copies a file, or a directory with its content, from this machine into the sandbox.
// If target is a directory there, or ends in a slash, the copy gets source's name in it; else
// target is the copy's name. Existing directories are merged, files replaced. Links are
// copied as links.
//
// NotFound: no such source. PermissionDenied: it cannot be read. Exhausted: no space inside.
func (w *Workspace) CopyTo(ctx context.Context, source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return copyError(source, err)
	}
	if target, err = w.targetInside(ctx, source, target); err != nil {
		return err
	}
	if info.IsDir() {
		return w.packTo(ctx, source, target)
	}
	f, err := os.Open(source)
	if err != nil {
		return copyError(source, err)
	}
	defer f.Close()
	if !info.Mode().IsRegular() {
		return sandpit.Errorf(sandpit.Invalid, "copy %s: neither a file nor a directory", source)
	}
	return w.files.WriteFile(ctx, w.o.User, target, f, sandpit.WriteOptions{Mode: info.Mode().Perm()})
}

// targetInside returns the path inside of a copy of source.
func (w *Workspace) targetInside(ctx context.Context, source, target string) (string, error) {
	into := target != "" && target[len(target)-1] == '/'
	target = w.resolvePath(target)
	f, err := w.files.Stat(ctx, w.o.User, target)
	switch {
	case err == nil:
		into = into || f.Mode.IsDir()
	case sandpit.CodeOf(err) != sandpit.NotFound:
		return "", err
	}
	if !into {
		return target, nil
	}
	abs, err := filepath.Abs(source)
	if err != nil {
		return "", copyError(source, err)
	}
	return path.Join(target, filepath.Base(abs)), nil
}

// packTo streams a directory of this machine into a directory inside.
func (w *Workspace) packTo(ctx context.Context, source, target string) error {
	root, err := beneath.Open(source)
	if err != nil {
		return copyError(source, err)
	}
	defer root.Close()
	r, pipe := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := tree.Pack(ctx, pipe, root, ".")
		pipe.CloseWithError(err) // nil ends the stream
		packed <- err
	}()
	err = w.files.WriteTree(ctx, w.o.User, target, r)
	// The guest may have stopped reading.
	_ = r.CloseWithError(errStopped)
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, errStopped) {
		return fmt.Errorf("copy %s: %w", source, packErr)
	}
	return err
}

var errStopped = errors.New("the sandbox stopped reading")

// CopyFrom copies a file, or a directory with its content, out of the sandbox. If target is a
// directory, or ends in a slash, the copy gets source's name in it; else target is the copy's
// name. Missing directories are created. It writes nothing outside of the copy, also if the
// sandbox is hostile.
//
// It returns the skipped paths: symbolic links that lead out of the copy, and entries other
// than files, directories and links. NotFound: no such source. Exhausted: more than
// Options.MaxTree, or a million files; the partial copy stays. Conflict: a directory cannot
// replace a file, nor a file a directory.
func (w *Workspace) CopyFrom(ctx context.Context, source, target string) (skipped []string, err error) {
	source = w.resolvePath(source)
	f, err := w.files.Stat(ctx, w.o.User, source)
	if err != nil {
		return nil, toFileError(err, source)
	}
	isDir := f.Mode.IsDir()
	if f.Mode&fs.ModeSymlink != 0 {
		isDir = w.leadsToDir(ctx, source)
	}
	target, err = targetOutside(source, target)
	if err != nil {
		return nil, copyError(target, err)
	}
	if !isDir {
		return nil, w.fileFrom(ctx, source, target, f.Mode.Perm())
	}
	return w.unpackFrom(ctx, source, target)
}

// leadsToDir reports whether a link leads to a directory.
func (w *Workspace) leadsToDir(ctx context.Context, p string) bool {
	_, err := w.files.ListDir(ctx, w.o.User, p, 1)
	return err == nil || sandpit.CodeOf(err) == sandpit.Exhausted // a directory with too many entries
}

// targetOutside returns the path on this machine of a copy of source, and creates the
// directories above it.
func targetOutside(source, target string) (string, error) {
	into := target != "" && os.IsPathSeparator(target[len(target)-1])
	info, err := os.Stat(target)
	if err == nil {
		into = into || info.IsDir()
	}
	if into {
		name := path.Base(source)
		if name == "/" || name == "." || name == ".." {
			name = "root"
		}
		target = filepath.Join(target, name)
	}
	return target, os.MkdirAll(filepath.Dir(target), newDir)
}

// fileFrom copies one file atomically.
func (w *Workspace) fileFrom(ctx context.Context, source, target string, mode fs.FileMode) error {
	if info, err := os.Lstat(target); err == nil && info.IsDir() {
		return sandpit.Errorf(sandpit.Conflict, "copy %s: %s is a directory", source, target)
	}
	r, err := w.files.ReadFile(ctx, w.o.User, source)
	if err != nil {
		return toFileError(err, source)
	}
	defer r.Close()
	f, err := atomicfile.New(target, mode, atomicfile.Pattern(".sandpit-*"), atomicfile.NoSync("the sandbox still has the file"))
	if err != nil {
		return copyError(target, err)
	}
	n, err := io.Copy(f, io.LimitReader(r, w.o.MaxTree+1))
	switch {
	case err != nil:
	case n > w.o.MaxTree:
		err = sandpit.Errorf(sandpit.Exhausted, "the file is larger than %d bytes", w.o.MaxTree)
	default:
		err = f.Rename()
	}
	if err = errors.Join(err, f.Discard()); err != nil {
		return fmt.Errorf("copy %s: %w", source, err)
	}
	return nil
}

// unpackFrom copies a directory.
func (w *Workspace) unpackFrom(ctx context.Context, source, target string) ([]string, error) {
	info, err := os.Stat(target)
	existed := err == nil
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.Mkdir(target, newDir); err != nil {
			return nil, copyError(target, err)
		}
	case err != nil:
		return nil, copyError(target, err)
	case !info.IsDir():
		return nil, sandpit.Errorf(sandpit.Conflict, "copy %s: the source is a directory, but %s is a file", source, target)
	}
	root, err := beneath.Open(target)
	if err != nil {
		return nil, copyError(target, err)
	}
	defer root.Close()
	r, err := w.files.ReadTree(ctx, w.o.User, source)
	if err != nil {
		return nil, toFileError(err, source)
	}
	defer r.Close()
	report, err := tree.Unpack(ctx, r, root, tree.Options{MaxBytes: w.o.MaxTree, MaxEntries: maxEntries, KeepTop: existed})
	if err != nil {
		return report.Skipped, fmt.Errorf("copy %s: %w", source, err)
	}
	return report.Skipped, nil
}

// newDir is the mode of new directories on this machine before the user's umask, like
// mkdir's.
const newDir = 0o777

// maxEntries bounds the files of one copy out of a sandbox.
const maxEntries = 1_000_000

// copyError converts an error about a path on this machine.
func copyError(p string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return sandpit.Errorf(sandpit.NotFound, "file not found: %s: %w", p, err)
	}
	return fmt.Errorf("copy %s: %w", p, err)
}
