package store

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sandpit-dev/sandpit"
)

const fullHint = "make room on the disk, or lift the limit (quota, ulimit -f), and try again"

// diskError gives an error of the file system its code. It returns nil for nil.
func diskError(err error, what string) error {
	if err == nil {
		return nil
	}
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EFBIG} {
		if errors.Is(err, full) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%s: %w", what, err), fullHint)
		}
	}
	return sandpit.Errorf(sandpit.CodeOf(err), "%s: %w", what, err)
}

// wrapError adds a code and the failed operation to an error of SQLite. It returns an error
// that has a code unchanged.
func (s *Store) wrapError(err error, format string, args ...any) error {
	if _, ok := errors.AsType[*sandpit.Error](err); ok {
		return err
	}
	what := fmt.Sprintf(format, args...)
	code, hint := s.classifyError(err)
	return sandpit.WithHint(sandpit.Errorf(code, "%s: %w", what, err), hint)
}

func (s *Store) classifyError(err error) (code sandpit.Code, hint string) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return sandpit.CodeOf(err), ""
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return sandpit.CodeOf(err), ""
	}
	switch e.Code() {
	// Quotas and limits of the file size look like failures to write.
	case sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE:
		return sandpit.Exhausted, fullHint
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		return sandpit.Exhausted, fullHint
	case sqlite3.SQLITE_NOMEM:
		return sandpit.Exhausted, ""
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return sandpit.Internal, s.repairHint()
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return sandpit.Unavailable, "another program has the file open; close it and try again"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return sandpit.PermissionDenied, fmt.Sprintf("see that this user may write to %s and to what is in it", s.dir)
	}
	return sandpit.Internal, ""
}

// isTaken reports whether err says that a unique value already exists.
func isTaken(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// damagedError says that the file cannot be used as it is.
func (s *Store) damagedError(cause error) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Internal, "the state %s is damaged: %w", s.filePath(), cause), s.repairHint())
}

func (s *Store) repairHint() string {
	return fmt.Sprintf("nothing was changed. To restore a backup: move %[1]s, %[1]s-wal and %[1]s-shm away and copy the backup to %[1]s. "+
		"To start empty: move them away", s.filePath())
}
