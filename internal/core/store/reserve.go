package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// SQLite cannot even delete on a full disk: a write goes to the journal first, and may need
// further pages of the file. So the journal has allocated blocks that it does not use yet,
// and the file has free pages. No other program can take either. Only operations that free
// space or add nothing may use them; all others are refused while the disk is almost full.
// While no store is open, a separate file holds the journal's blocks, because SQLite removes
// the journal.

const reserveName = "state.reserve"

// The sizes of what is reserved and of what stays free, which are less on a small disk.
const (
	journalReserve = 8 << 20
	spareBytes     = 256 << 10 // of free pages
	minRoom        = 4 << 20
)

// journalFor returns how many bytes are reserved for the journal on a disk of this size, and
// with how many pages it is written back: so that it does not outgrow its reserve.
func journalFor(size int64) (bytes, pages int64) {
	const (
		frame      = 4096 + 24
		maxPages   = 1000 // SQLite's own default
		halfOfThem = 2    // the last transaction before that may be large
	)
	bytes = min(journalReserve, size/8)
	return bytes, max(1, min(maxPages, bytes/halfOfThem/frame))
}

// reserve keeps blocks for a store.
type reserve struct {
	dir     string
	index   *os.File // of the journal; it stays open, since closing it would give up SQLite's locks
	journal bool     // it has its blocks

	pageSize int64
}

// openReserve frees the blocks that were reserved while no store was open. The caller has
// locked the directory.
func openReserve(dir string) (*reserve, error) {
	if err := os.Remove(filepath.Join(dir, reserveName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, diskError(err, "free the reserve of the state")
	}
	return &reserve{dir: dir}, nil
}

// fillReserve reserves what is missing. What cannot be had is tried again after the next write. The
// caller has the writer.
func (r *reserve) fillReserve(ctx context.Context, w *writer) {
	size, _, err := measureDisk(r.dir)
	if err != nil {
		return
	}
	_ = errors.Join(r.fillIndex(), r.fillJournal(size)) // without a reserve the store works as well
	_ = r.fillSpare(ctx, w, min(spareBytes, size/40))
}

// fillSpare sees that the file has so many bytes of free pages, or half of that: they are
// written and deleted.
func (r *reserve) fillSpare(ctx context.Context, w *writer, bytes int64) error {
	if r.pageSize == 0 {
		if err := w.scanRow(ctx, `PRAGMA page_size`, nil, &r.pageSize); err != nil {
			return err
		}
	}
	var free int64
	if err := w.scanRow(ctx, `PRAGMA freelist_count`, nil, &free); err != nil || free*r.pageSize >= bytes/2 {
		return err
	}
	for _, do := range []func(*writer) error{
		func(w *writer) error {
			_, err := w.exec(ctx, `INSERT OR REPLACE INTO spare VALUES (1, zeroblob(?))`, bytes)
			return err
		},
		func(w *writer) error { _, err := w.exec(ctx, `DELETE FROM spare`); return err },
	} {
		if err := w.runTx(ctx, do); err != nil {
			return err
		}
	}
	return nil
}

// indexSize is what the index of a journal takes that has up to 4062 pages. SQLite maps it
// into memory: a block that is missing there is more than an error.
const indexSize = 32 << 10

func (r *reserve) fillIndex() error {
	if r.index != nil {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(r.dir, fileName+"-shm"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	r.index = f
	return allocateBlocks(f, 0, indexSize)
}

func (r *reserve) fillJournal(size int64) error {
	if r.journal {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(r.dir, fileName+"-wal"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	bytes, _ := journalFor(size)
	err = allocateBlocks(f, 0, bytes)
	r.journal = err == nil
	return errors.Join(err, f.Close())
}

// allocateBlocks allocates blocks behind the end of a file. It does nothing if the file
// system does not support that.
func allocateBlocks(f *os.File, from, bytes int64) error {
	if bytes <= 0 {
		return nil
	}
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, from, bytes)
}

// close keeps the blocks for the next store, after SQLite has given them back.
func (r *reserve) close() error {
	if r.index != nil {
		_ = r.index.Close() // nothing was written by it
	}
	size, _, err := measureDisk(r.dir)
	if err != nil {
		return nil //nolint:nilerr // the next store does without
	}
	f, err := os.OpenFile(filepath.Join(r.dir, reserveName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil //nolint:nilerr // the disk is full; the next store may find room
	}
	bytes, _ := journalFor(size)
	_ = allocateBlocks(f, 0, bytes) // as far as there is room
	return f.Close()
}

// measureDisk returns the size of the file system, and how many bytes can still be written.
func measureDisk(dir string) (size, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil //nolint:gosec // sizes of real disks
}

// CheckRoom reports whether there is space for more records.
//
// Exhausted: the disk is almost full. Existing records can be changed and deleted.
func (s *Store) CheckRoom() error {
	size, free, err := measureDisk(s.dir)
	if err != nil || free >= min(minRoom, size/20) {
		return nil //nolint:nilerr // then SQLite finds out
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "the disk of the server's state is almost full: %d KiB free", free>>10), fullHint)
}
