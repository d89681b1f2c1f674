// Package atomicfile writes files so that a reader, also one after a crash, finds the old content or all of the new
// content, never a part.
//
// A file is written under a temporary name in the same directory, synced, and renamed; then the directory is synced,
// because only that makes the new name survive a crash of the machine. A process that is killed in between leaves the
// temporary file: a package that sweeps its directory sets the name with [Pattern].
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// An Option changes how a file is written.
type Option func(*options)

type options struct {
	pattern string
	noSync  bool
}

// Pattern sets the name of the temporary file, as in [os.CreateTemp]. Default: ".NAME.*".
func Pattern(pattern string) Option { return func(o *options) { o.pattern = pattern } }

// NoSync leaves out both syncs: a crash of the machine may then leave an empty or damaged file. The reason why that is
// acceptable is for the reader of the code; it must not be empty.
func NoSync(reason string) Option {
	if reason == "" {
		panic("atomicfile: NoSync without a reason")
	}
	return func(o *options) { o.noSync = true }
}

// File is a file with a temporary name, open for reading and writing. The caller ends it with Rename, Link or Discard.
// It must not be used concurrently.
type File struct {
	*os.File

	path   string
	noSync bool
	named  bool
}

// New creates the temporary file for path, with exactly the permissions of mode whatever the umask. The errors of this
// package are those of package os.
func New(path string, mode fs.FileMode, opts ...Option) (*File, error) {
	o := options{pattern: "." + filepath.Base(path) + ".*"}
	for _, set := range opts {
		set(&o)
	}
	f, err := os.CreateTemp(filepath.Dir(path), o.pattern)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(mode); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return &File{File: f, path: path, noSync: o.noSync}, nil
}

// Rename gives the file its final name and replaces what had it. The file stays open; Close closes it.
func (f *File) Rename() error {
	if err := f.syncContent(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), f.path); err != nil {
		return err
	}
	f.named = true
	return f.syncName()
}

// Link gives the file its final name unless something has it: then the error is [fs.ErrExist]. Discard must follow; it
// removes the temporary name.
func (f *File) Link() error {
	if err := f.syncContent(); err != nil {
		return err
	}
	if err := os.Link(f.Name(), f.path); err != nil {
		return err
	}
	return f.syncName()
}

// Discard closes the file and removes its temporary name. After Rename it only closes the file, if it is still open.
func (f *File) Discard() error {
	err := f.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	if f.named {
		return err
	}
	return errors.Join(err, os.Remove(f.Name()))
}

func (f *File) syncContent() error {
	if f.noSync {
		return nil
	}
	return f.Sync()
}

// syncName syncs the directory. It ignores the error of network file systems that cannot sync directories, and a
// directory that this process may write but not read.
func (f *File) syncName() error {
	if f.noSync {
		return nil
	}
	d, err := os.Open(filepath.Dir(f.path))
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// Write replaces the file path, or creates it.
func Write(path string, mode fs.FileMode, data []byte, opts ...Option) error {
	return WriteFunc(path, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}, opts...)
}

// WriteFunc is [Write] with the content that fill writes. After an error of fill, which it returns, the old file stays.
func WriteFunc(path string, mode fs.FileMode, fill func(io.Writer) error, opts ...Option) error {
	return writeAndPublish(path, mode, fill, (*File).Rename, opts)
}

// Create creates the file path, which must not exist. If it exists, the file stays unchanged and the error is
// [fs.ErrExist].
func Create(path string, mode fs.FileMode, data []byte, opts ...Option) error {
	return writeAndPublish(path, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}, (*File).Link, opts)
}

func writeAndPublish(path string, mode fs.FileMode, fill func(io.Writer) error, publish func(*File) error, opts []Option) error {
	f, err := New(path, mode, opts...)
	if err != nil {
		return err
	}
	if err := fill(f.File); err != nil {
		return errors.Join(err, f.Discard())
	}
	return errors.Join(publish(f), f.Discard())
}
