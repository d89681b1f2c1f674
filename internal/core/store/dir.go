package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// makeDir creates the directory for its owner only. An existing one may be readable by
// other users, because the files in it are not.
func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return diskError(err, "make the state directory")
	}
	err := os.Mkdir(dir, 0o700)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return diskError(err, "make the state directory")
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return diskError(err, "look at the state directory")
	case !info.IsDir():
		return sandpit.Errorf(sandpit.Invalid, "state directory %s: not a directory", dir)
	case info.Mode().Perm()&0o022 != 0:
		return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "state directory %s: others may write to it", dir),
			"run: chmod 700 "+dir)
	}
	return nil
}

// takeLock locks the directory. The lock is the kernel's and goes with the
// process; the text in the file is for the message only.
func takeLock(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // close-on-exec, as everything Go opens
	if err != nil {
		return nil, diskError(err, "open the lock of the state")
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = inUse(dir, f)
		_ = f.Close() // only read
		return nil, err
	}
	if err == nil {
		_ = writePID(f) // for messages only; a full disk does not allow it
	}
	if err != nil {
		_ = f.Close() // the first error matters
		return nil, diskError(err, "lock the state")
	}
	return f, nil
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	return err
}

func inUse(dir string, f *os.File) error {
	who := "another process"
	text := make([]byte, 20)
	n, _ := f.ReadAt(text, 0) // without a number the message is shorter
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n]))); err == nil {
		who = fmt.Sprintf("process %d", pid)
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "state directory %s is in use by %s", dir, who),
		"stop that process, or choose another state directory")
}

func dropLock(f *os.File) {
	_ = f.Truncate(0) // the number is for messages only
	// A process that is just being started has the file too, until it executes its
	// program. So closing it alone may give up the lock a moment later.
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // closing does it otherwise
	_ = f.Close()                             // nothing of it is needed any more
}

// prepareFile creates an empty file with the right permissions if it is missing, and
// refuses a file that SQLite would take for empty and overwrite.
func (s *Store) prepareFile() error {
	f, err := os.OpenFile(s.filePath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return diskError(err, "open the state")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return diskError(err, "open the state")
	}
	if !info.Mode().IsRegular() {
		return sandpit.Errorf(sandpit.Invalid, "%s: not a regular file", s.filePath())
	}
	journal, err := readHead(s.filePath() + "-wal")
	if err != nil {
		return diskError(err, "open the journal of the state")
	}
	if info.Size() == 0 && len(journal) > 0 {
		return s.damagedError(errors.New("the file is empty, but its journal is not"))
	}
	if foreignJournal(journal) {
		return s.damagedError(fmt.Errorf("its journal %s-wal is not one", s.filePath()))
	}
	if info.Mode().Perm() != 0o600 {
		return diskError(f.Chmod(0o600), "keep the state from others")
	}
	return nil
}

// readHead returns up to 4 bytes from the beginning of a file, none if it does not exist.
func readHead(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, 4)
	n, _ := f.ReadAt(head, 0) // what is shorter is judged by its length
	return head[:n], nil
}

// foreignJournal reports whether a write-ahead log begins with something else than
// its magic number. Zeros are what the loss of power can leave, before anything was
// kept in it.
func foreignJournal(head []byte) bool {
	return len(head) == 4 && !bytes.Equal(head, []byte{0, 0, 0, 0}) &&
		!bytes.Equal(head, []byte{0x37, 0x7f, 0x06, 0x82}) && !bytes.Equal(head, []byte{0x37, 0x7f, 0x06, 0x83})
}
