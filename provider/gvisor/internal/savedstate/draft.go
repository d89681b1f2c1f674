package savedstate

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Draft is a saved state that is being written. Its directory is locked, which keeps it from
// being swept. A Draft is not safe for concurrent use.
type Draft[D any] struct {
	store *Store[D]
	name  string
	dir   string   // empty: it is a state now
	lock  *os.File // the locked directory
	files map[string]*os.File
	sizes map[string]int64 // of files that were linked or copied
}

// Begin begins a draft of a state with empty files. The caller discards the draft, also after
// a commit.
//
// Exhausted: the disk is full.
func (s *Store[D]) Begin(name string, files ...string) (*Draft[D], error) {
	d := &Draft[D]{store: s, name: name, files: make(map[string]*os.File), sizes: make(map[string]int64)}
	var err error
	if d.dir, d.lock, err = newDraftDir(s.Dir, name); err == nil {
		for _, file := range files {
			if _, err = d.createFile(file, s.IsLarge != nil && s.IsLarge(file)); err != nil {
				break
			}
		}
	}
	if err != nil {
		d.Discard()
		return nil, s.ExplainFull(fmt.Errorf("create the files of %s %s: %w", s.Kind, name, err))
	}
	return d, nil
}

// newDraftDir creates and locks a directory for a draft. A sweep may remove a directory before
// it is locked: then it creates another one.
func newDraftDir(parent, name string) (string, *os.File, error) {
	const tries = 5
	for try := 1; ; try++ {
		dir, err := os.MkdirTemp(parent, name+"-*"+DraftSuffix)
		if err != nil {
			return "", nil, err
		}
		lock, err := lockDir(dir)
		if err == nil {
			if _, err = os.Lstat(dir); err == nil {
				return dir, lock, nil
			}
			_ = lock.Close()
		}
		_ = os.Remove(dir) // a sweep removes it as well
		if try == tries {
			return "", nil, err
		}
	}
}

// draftName returns an unused name for a directory that is to be removed. No directory is
// created with it first, which a full disk would not allow.
func draftName(path string) string { return path + "-" + strings.ToLower(rand.Text()) + DraftSuffix }

// lockDir locks a directory without waiting.
func lockDir(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Create adds an empty file, which the draft closes.
func (d *Draft[D]) Create(file string) (*os.File, error) { return d.createFile(file, false) }

func (d *Draft[D]) createFile(file string, direct bool) (*os.File, error) {
	f, err := newFile(filepath.Join(d.dir, file), direct)
	if err != nil {
		return nil, err
	}
	d.files[file] = f
	return f, nil
}

// newFile creates an empty file. Where the file system has no direct writing, the file is
// written through the page cache.
func newFile(path string, direct bool) (*os.File, error) {
	flags := os.O_CREATE | os.O_EXCL | os.O_RDWR
	if direct {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if direct && errors.Is(err, unix.EINVAL) {
		// The file may have been created nevertheless.
		f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(FileMode); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Files returns the files with the names, in their order.
func (d *Draft[D]) Files(names []string) []*os.File {
	list := make([]*os.File, len(names))
	for i, name := range names {
		list[i] = d.files[name]
	}
	return list
}

// Size returns how many bytes the files with the names have so far.
func (d *Draft[D]) Size(names []string) int64 { return sizeOf(d.dir, names) }

// Link adds a file that exists elsewhere under a second name, as a link where that is
// possible and as a copy otherwise. So no cache can free space by removing it.
func (d *Draft[D]) Link(name string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	path := filepath.Join(d.dir, name)
	source := filepath.Join("/proc/self/fd", strconv.Itoa(int(f.Fd())))
	if err = unix.Linkat(unix.AT_FDCWD, source, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		// Another file system, a file that was removed from the cache, or one that may have
		// no more names.
		err = copyFile(path, f, info.Size())
	}
	d.sizes[name] = info.Size()
	return err
}

func copyFile(path string, source *os.File, size int64) error {
	f, err := newFile(path, false)
	if err != nil {
		return err
	}
	// Others read by the same descriptor, and share its position.
	_, err = io.Copy(f, io.NewSectionReader(source, 0, size))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Commit writes the draft to disk, asks [sandpit.AdmitOf] for its bytes and publishes it.
//
// AlreadyExists: a state with the name exists. Exhausted: the disk is full.
func (d *Draft[D]) Commit(ctx context.Context, describe func(sizes map[string]int64) D) (D, error) {
	return d.writeAndPublish(ctx, describe, false)
}

// Replace is Commit for a state that may exist: it is replaced in one step, and discarded
// with the draft. A crash leaves one of both, and both are complete.
func (d *Draft[D]) Replace(ctx context.Context, describe func(sizes map[string]int64) D) (D, error) {
	return d.writeAndPublish(ctx, describe, true)
}

func (d *Draft[D]) writeAndPublish(ctx context.Context, describe func(sizes map[string]int64) D, replace bool) (D, error) {
	description, err := d.Write(describe)
	if err != nil {
		return description, err
	}
	if err := sandpit.AdmitOf(ctx)(ownBytes(d.dir)); err != nil {
		return description, err
	}
	return description, d.publish(replace)
}

// Write writes all files and the description to disk. The description has the sizes of all
// files in bytes.
//
// Exhausted: the disk is full, or the description is too large.
func (d *Draft[D]) Write(describe func(sizes map[string]int64) D) (D, error) {
	var description D
	err := d.syncFiles()
	if err == nil {
		description = describe(d.sizes)
		err = d.writeDescription(description)
	}
	if err == nil {
		err = SyncDir(d.dir)
	}
	return description, d.Explain(err)
}

func (d *Draft[D]) syncFiles() error {
	for name, f := range d.files {
		if err := f.Sync(); err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			return err
		}
		d.sizes[name] = info.Size()
	}
	return nil
}

func (d *Draft[D]) writeDescription(description D) error {
	data, err := encodeDescription(description)
	if err != nil {
		return err
	}
	return writeSynced(filepath.Join(d.dir, d.store.Description), data)
}

// encodeDescription returns the contents of a description's file.
func encodeDescription(description any) ([]byte, error) {
	data, err := json.Marshal(description)
	if err == nil && len(data) > MaxDescription {
		err = sandpit.Errorf(sandpit.Exhausted, "its description has %d bytes, at most %d can be stored", len(data), MaxDescription)
	}
	return data, err
}

// Publish gives a written draft its name.
//
// AlreadyExists: a state with the name exists.
func (d *Draft[D]) Publish() error { return d.publish(false) }

func (d *Draft[D]) publish(replace bool) error {
	target := d.store.Path(d.name)
	err := unix.Renameat2(unix.AT_FDCWD, d.dir, unix.AT_FDCWD, target, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		err = unix.Rename(d.dir, target) // a file system without the flag; a state is never empty, and so not replaced
	}
	switch exists := errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY); {
	case exists && replace:
		return d.Explain(d.exchangeState(target))
	case exists:
		return d.Explain(sandpit.Errorf(sandpit.AlreadyExists, "it exists already"))
	case err != nil:
		return d.Explain(err)
	}
	d.dir = ""
	d.unlock()
	if err := SyncDir(d.store.Dir); err != nil {
		// What a crash would leave is unknown, so it is not promised.
		return d.Explain(errors.Join(err, d.store.Remove(d.name)))
	}
	return nil
}

// exchangeState swaps the draft with the state at target, which is the draft then.
func (d *Draft[D]) exchangeState(target string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, d.dir, unix.AT_FDCWD, target, unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	d.unlock()
	return SyncDir(d.store.Dir)
}

// MoveTo publishes a detached state in a store that has no state with the name. It does not
// sync: after a crash the state may be in neither store.
func (d *Draft[D]) MoveTo(s *Store[D]) error {
	if err := os.Rename(d.dir, s.Path(d.name)); err != nil {
		return err
	}
	d.dir = ""
	return nil
}

// Discard removes what was not published, and closes all files. What it cannot remove is
// swept later. Discarding nil does nothing.
func (d *Draft[D]) Discard() {
	if d == nil {
		return
	}
	for _, f := range d.files {
		_ = f.Close() // synced before it counts
	}
	d.files = nil
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
	d.unlock()
}

func (d *Draft[D]) unlock() {
	if d.lock != nil {
		_ = d.lock.Close() // only locked
		d.lock = nil
	}
}

// Explain adds to an error which state was being saved, and what the user can do if the disk
// is full. Nil stays nil.
func (d *Draft[D]) Explain(err error) error {
	if err == nil {
		return nil
	}
	return d.store.ExplainFull(fmt.Errorf("save %s %s: %w", d.store.Kind, d.name, err))
}

// WriteFile writes a file of a state to a directory, in one step. A killed process leaves a
// draft named after the state, which [SweepDir] removes.
func WriteFile(dir, state, file string, data []byte) error {
	draft, lock, err := newDraftDir(dir, state)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer os.RemoveAll(draft) // what it cannot remove is swept later
	path := filepath.Join(draft, "file")
	if err := writeSynced(path, data); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(dir, file)); err != nil {
		return err
	}
	return SyncDir(dir)
}

// writeSynced writes a new file to disk.
func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// SyncDir writes the entries of a directory to disk.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
