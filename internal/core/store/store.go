package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// The names in a state directory.
const (
	fileName = "state.db"
	lockName = "state.lock"
)

// Options are how a store is opened. The zero value is good.
type Options struct {
	// Now returns the time of day. Default: time.Now.
	Now func() time.Time
}

// Store is an open state directory. All methods may be called concurrently.
//
// Errors of all methods: Exhausted when the disk is full, Internal when the file
// is damaged, Unavailable after Close, and the context's error when that ended
// first; nothing has changed then. No error contains values of a row but its ID.
type Store struct {
	dir      string
	now      func() time.Time
	lock     *os.File
	writer   *writer
	reader   *reader
	reserve  *reserve
	identity string
	news     news // of events

	gate   sync.RWMutex // held for reading by every call that runs
	closed bool
}

// Sandboxes are the records of sandboxes and of the settings of their ports.
type Sandboxes struct{ db *Store }

// Snapshots are the records of snapshots.
type Snapshots struct{ db *Store }

// Volumes are the records of volumes.
type Volumes struct{ db *Store }

// Templates are the records of templates and of their builds.
type Templates struct{ db *Store }

// Credentials are the records of API keys, of SSH keys, and of tokens.
type Credentials struct{ db *Store }

// Events are the audit trail.
type Events struct{ db *Store }

// Sandboxes returns the records of sandboxes.
func (s *Store) Sandboxes() *Sandboxes { return &Sandboxes{s} }

// Snapshots returns the records of snapshots.
func (s *Store) Snapshots() *Snapshots { return &Snapshots{s} }

// Volumes returns the records of volumes.
func (s *Store) Volumes() *Volumes { return &Volumes{s} }

// ProviderUses returns the records of how long sandboxes of providers have run.
func (s *Store) ProviderUses() *ProviderUses { return &ProviderUses{s} }

// PendingSandboxes returns the records of sandboxes that wait for the builds of their images.
func (s *Store) PendingSandboxes() *PendingSandboxes { return &PendingSandboxes{s} }

// Templates returns the records of templates and builds.
func (s *Store) Templates() *Templates { return &Templates{s} }

// Credentials returns the records of API keys, SSH keys and tokens.
func (s *Store) Credentials() *Credentials { return &Credentials{s} }

// Events returns the audit trail.
func (s *Store) Events() *Events { return &Events{s} }

// Open opens the state in dir, and makes both if missing: the directory with
// permissions 0700, the file with 0600. Until Close the directory is the caller's.
//
// Conflict: another process, or another store of this one, has the directory.
// Internal: the file is damaged. Invalid: it is not a state of sandpit.
// Unsupported: it is of a newer version, or on a file system that cannot hold it.
// PermissionDenied: others may write to the directory. Exhausted: the disk is
// full. A refused file is not changed, and the hint says what to do.
func Open(ctx context.Context, dir string, o Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "state directory: %w", err)
	}
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	lock, err := takeLock(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, now: o.Now, lock: lock}
	if s.now == nil {
		s.now = time.Now
	}
	if err := s.openFile(ctx); err != nil {
		_ = s.Close() // the first error is returned
		return nil, err
	}
	return s, nil
}

// openFile checks the file before anything writes to it.
func (s *Store) openFile(ctx context.Context) error {
	list, err := loadMigrations(embedded)
	if err != nil {
		return sandpit.Errorf(sandpit.Internal, "read the migrations: %w", err)
	}
	if err := s.prepareFile(); err != nil {
		return err
	}
	if s.reserve, err = openReserve(s.dir); err != nil {
		return err
	}
	if list, err = s.inspectFile(ctx, list); err != nil {
		return err
	}
	if s.writer, err = s.openWriter(ctx); err != nil {
		return err
	}
	if err := s.applyMigrations(ctx, list); err != nil {
		return err
	}
	if err := s.loadIdentity(ctx); err != nil {
		return err
	}
	s.reserve.fillReserve(ctx, s.writer)
	s.reader, err = s.openReader()
	return err
}

// Close waits for the calls that run, tidies up and lets go of the directory. It
// is idempotent. Calls that come later are Unavailable: to the rest of a program
// a closed store looks as if its server had been killed, which tests make use of.
func (s *Store) Close() error {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.closeFiles()
}

// closeFiles closes the writer last: SQLite tidies up when the last connection goes.
func (s *Store) closeFiles() error {
	var first error
	if s.reader != nil {
		first = s.reader.close()
	}
	if s.writer != nil {
		if err := s.writer.closeWriter(); first == nil {
			first = err
		}
	}
	if s.reserve != nil {
		if err := s.reserve.close(); first == nil {
			first = err
		}
	}
	dropLock(s.lock)
	if first != nil {
		return s.wrapError(first, "close the state")
	}
	return nil
}

// Identity is a random name, 32 hexadecimal digits, made once for each file. It
// says which manager sandboxes and queued messages belong to.
func (s *Store) Identity() string { return s.identity }

func (s *Store) loadIdentity(ctx context.Context) error {
	read := func() error { return s.writer.scanRow(ctx, `SELECT name FROM identity`, nil, &s.identity) }
	err := read()
	if errors.Is(err, sql.ErrNoRows) {
		err = s.writeTx(ctx, func(tx *writer) error {
			_, err := tx.exec(ctx, `INSERT INTO identity VALUES (1, lower(hex(randomblob(16))))`)
			return cmp.Or(err, read())
		})
	}
	if err != nil {
		return s.wrapError(err, "read the identity of the state")
	}
	if raw, err := hex.DecodeString(s.identity); err != nil || len(raw) != 16 {
		return s.damagedError(errors.New("its identity cannot be read"))
	}
	return nil
}

func (s *Store) filePath() string { return filepath.Join(s.dir, fileName) }

// CheckWrite makes sure that the store can be written, by doing it; nothing is changed.
//
// Exhausted: its disk is full. Unavailable: it is locked, or cannot be written.
func (s *Store) CheckWrite(ctx context.Context) error {
	err := s.writeTx(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `UPDATE event_chain SET bytes = bytes`)
		return err
	})
	if err != nil {
		return s.wrapError(err, "write to the store")
	}
	return nil
}
