package beneath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// movedPrefix begins the names that directories are moved to while a tree is removed.
const movedPrefix = ".removed-"

// RemoveTree removes a directory of this one with all that is in it, whatever its modes
// and however deep it is, which takes two descriptors and no more: directories that are
// not empty are first moved to the top. Links are not followed, also not those that
// somebody puts in the way meanwhile. What is not there is fine. It returns the context's
// error when that ends first; what is left then can be removed later.
func (r *Root) RemoveTree(ctx context.Context, name string) error {
	if err := r.withParent("remove", name, false, func(dir int, base string) error { return removeTree(ctx, dir, base) }); err != nil {
		return err
	}
	return nil
}

func removeTree(ctx context.Context, in int, name string) error {
	top, err := openClosed(in, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(top) }()
	f := flattener{top: top}
	for {
		left, err := f.removeEntries(ctx)
		if err != nil {
			return err
		}
		if !left {
			return unix.Unlinkat(in, name, unix.AT_REMOVEDIR)
		}
	}
}

// flattener empties a directory.
type flattener struct {
	top   int
	moved uint64
}

// removeEntries goes once through the directory, and reports whether it met anything.
func (f *flattener) removeEntries(ctx context.Context) (met bool, err error) {
	err = eachName(ctx, f.top, func(name string) error {
		met = true
		if isDir, err := removeFile(f.top, name); !isDir {
			return err
		}
		if err := f.emptySubdirectory(ctx, name); err != nil {
			return err
		}
		return unix.Unlinkat(f.top, name, unix.AT_REMOVEDIR)
	})
	return met, err
}

// emptySubdirectory removes the files of a directory and moves its directories to the top.
func (f *flattener) emptySubdirectory(ctx context.Context, name string) error {
	dir, err := openClosed(f.top, name)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	for {
		met := false
		err := eachName(ctx, dir, func(child string) error {
			met = true
			if isDir, err := removeFile(dir, child); !isDir {
				return err
			}
			if err := unix.Unlinkat(dir, child, unix.AT_REMOVEDIR); err == nil {
				return nil
			}
			return f.moveToTop(dir, child)
		})
		if err != nil || !met {
			return err
		}
	}
}

// removeFile removes a file, and reports whether it is a directory and so still there.
func removeFile(dir int, name string) (isDir bool, err error) {
	err = unix.Unlinkat(dir, name, 0)
	return errors.Is(err, unix.EISDIR), err
}

// moveToTop moves a directory to the top, under a name that is free there.
func (f *flattener) moveToTop(dir int, name string) error {
	// To move a directory is to change it, which its mode may forbid.
	if err := makeAccessible(dir, name); err != nil {
		return err
	}
	for {
		f.moved++
		err := unix.Renameat2(dir, name, f.top, fmt.Sprintf("%s%d", movedPrefix, f.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// openClosed opens a directory, whatever its mode.
func openClosed(dir int, name string) (int, error) {
	if err := makeAccessible(dir, name); err != nil {
		return -1, err
	}
	return OpenDirAt(dir, name)
}

// eachName does something for each name in a directory, from the first on.
func eachName(ctx context.Context, dir int, do func(name string) error) error {
	fd, err := OpenDirAt(dir, ".")
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "tree")
	defer f.Close()
	const batch = 1024
	for {
		names, err := f.Readdirnames(batch)
		for _, name := range names {
			if err := do(name); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return ctx.Err()
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
}

// makeAccessible lets its owner do everything with a directory. A link that has taken its place
// is not followed: a descriptor says which file is meant.
func makeAccessible(dir int, name string) error {
	fd, err := openat(dir, name, walkFlags, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // it was only looked at
	return unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), 0o700, 0)
}
