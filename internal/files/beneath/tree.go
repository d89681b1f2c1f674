package beneath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// movedPrefix begins the names to which directories are moved while a tree is removed.
const movedPrefix = ".removed-"

// RemoveTree removes a directory below with everything in it, whatever its modes and depth. It needs only two
// descriptors, because it first moves directories that are not empty to the top. It does not follow links, even if
// they appear meanwhile. A missing directory is not an error. It returns the context's error when the context ends
// first; the rest can be removed by another call.
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

// flattener removes the content of a directory.
type flattener struct {
	top   int
	moved uint64
}

// removeEntries goes through the directory once, and reports whether it found anything.
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

// removeFile removes a file. It reports whether name is a directory, which is not removed.
func removeFile(dir int, name string) (isDir bool, err error) {
	err = unix.Unlinkat(dir, name, 0)
	return errors.Is(err, unix.EISDIR), err
}

// moveToTop moves a directory to the top, under an unused name.
func (f *flattener) moveToTop(dir int, name string) error {
	// Moving a directory changes it, which its mode may forbid.
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

// openClosed opens a directory whatever its mode.
func openClosed(dir int, name string) (int, error) {
	if err := makeAccessible(dir, name); err != nil {
		return -1, err
	}
	return OpenDirAt(dir, name)
}

// eachName calls do for each name in a directory.
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

// makeAccessible gives the owner all rights on a directory. It does not follow a link that has taken its place,
// because it changes the mode through a descriptor.
func makeAccessible(dir int, name string) error {
	fd, err := openat(dir, name, walkFlags, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // opened only for lookups
	return unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), 0o700, 0)
}
