package store

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Backup writes a copy of the current state to path, with permissions 0600, while the store
// is in use. The file appears when it is complete. To restore it, copy it as state.db into
// a state directory that is not in use.
//
// AlreadyExists: path exists. Exhausted: no space.
func (s *Store) Backup(ctx context.Context, path string) error {
	leave, err := s.enterStore(ctx)
	if err != nil {
		return err
	}
	defer leave()
	// Absolute, since SQLite takes a name that begins with "file:" for more than a name.
	if path, err = filepath.Abs(path); err != nil {
		return sandpit.Errorf(sandpit.Invalid, "name of the backup: %w", err)
	}
	if _, err := os.Lstat(path); err == nil {
		return fileExists(path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".sandpit-backup-*")
	if err != nil {
		return diskError(err, "make the backup")
	}
	defer func() {
		_ = f.Close()           // what matters was synced
		_ = os.Remove(f.Name()) // it has its real name, or is not wanted
	}()
	if err := s.copyTo(ctx, f.Name()); err != nil {
		return s.wrapError(err, "write the backup %s", path)
	}
	if err := f.Sync(); err != nil {
		return diskError(err, "write the backup")
	}
	return linkFile(f.Name(), path)
}

// copyTo reads through a connection of its own, so no other caller waits.
func (s *Store) copyTo(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", s.dataSource(""))
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `VACUUM INTO ?`, path)
	return errors.Join(err, db.Close())
}

// linkFile gives a file its name unless something has it.
func linkFile(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		err = os.Link(from, to) // for file systems without the former
	}
	if errors.Is(err, fs.ErrExist) {
		return fileExists(to)
	}
	if err != nil {
		return diskError(err, "name the backup")
	}
	return syncDir(filepath.Dir(to))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return diskError(err, "keep the name of the backup")
	}
	defer d.Close()
	return diskError(d.Sync(), "keep the name of the backup")
}

func fileExists(path string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.AlreadyExists, "the backup %s exists already", path), "choose another name")
}
