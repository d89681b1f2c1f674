package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/sandpit-dev/sandpit"
)

// maxReaders is how many calls read at the same time.
const maxReaders = 4

// querier runs queries, inside a transaction or not.
type querier interface {
	query(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// dataSource returns the name for the driver. It escapes the path, which may contain any
// character.
func (s *Store) dataSource(options string) string {
	name := url.URL{Scheme: "file", Path: s.filePath()}
	return name.String() + "?_busy_timeout=5000&_synchronous=NORMAL&_dqs=0&_defensive=1&_error_rc=1" +
		"&_pragma=trusted_schema(0)&_pragma=cell_size_check(1)" + options
}

// writer is the one connection that writes. It is its own transaction manager,
// since database/sql would start a goroutine for each, could not keep prepared
// statements, and leaves open whether a commit that was cancelled happened.
type writer struct {
	db       *sql.DB
	conn     *sql.Conn
	turn     chan struct{} // holds one token while no write runs
	prepared map[string]*sql.Stmt
}

func (s *Store) openWriter(ctx context.Context) (*writer, error) {
	db, err := sql.Open("sqlite", s.dataSource("&_journal_mode=WAL&_pragma=journal_size_limit(16777216)"))
	if err != nil {
		return nil, s.wrapError(err, "open the state")
	}
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err != nil {
		_ = db.Close() // the first error matters
		return nil, s.wrapError(err, "open the state")
	}
	w := &writer{db: db, conn: conn, turn: make(chan struct{}, 1), prepared: make(map[string]*sql.Stmt)}
	w.turn <- struct{}{}
	var mode string
	if err := w.scanRow(ctx, `PRAGMA journal_mode`, nil, &mode); err != nil {
		_ = w.closeWriter() // the first error matters
		return nil, s.wrapError(err, "open the state")
	}
	if size, _, err := measureDisk(s.dir); err == nil {
		_, pages := journalFor(size)
		if _, err := conn.ExecContext(ctx, fmt.Sprintf(`PRAGMA wal_autocheckpoint = %d`, pages)); err != nil {
			_ = w.closeWriter() // the first error matters
			return nil, s.wrapError(err, "open the state")
		}
	}
	if mode != "wal" {
		_ = w.closeWriter() // the first error matters
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "state directory %s: the file system cannot share memory", s.dir),
			"choose a state directory on a local file system")
	}
	return w, nil
}

func (w *writer) closeWriter() error {
	for _, stmt := range w.prepared {
		_ = stmt.Close() // closing the connection returns the errors that matter
	}
	return errors.Join(w.conn.Close(), w.db.Close())
}

// writeTx runs do as one transaction: it happens wholly or not at all. When do has
// succeeded, the end of ctx does not matter any more.
//
// Exhausted: the disk is almost full. What frees space uses writeAnyway.
func (s *Store) writeTx(ctx context.Context, do func(*writer) error) error {
	return s.withWriter(ctx, func(w *writer) error {
		if err := s.CheckRoom(); err != nil {
			return err
		}
		err := w.runTx(ctx, do)
		if err == nil {
			s.reserve.fillReserve(context.WithoutCancel(ctx), w)
		}
		return err
	})
}

// writeAnyway is write for what deletes, or does not make rows longer. It works on a full
// disk, too.
func (s *Store) writeAnyway(ctx context.Context, do func(*writer) error) error {
	return s.withWriter(ctx, func(w *writer) error { return w.runTx(ctx, do) })
}

// withWriter waits for the writer's turn.
func (s *Store) withWriter(ctx context.Context, do func(*writer) error) error {
	leave, err := s.enterStore(ctx)
	if err != nil {
		return err
	}
	defer leave()
	w := s.writer
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.turn:
	}
	defer func() { w.turn <- struct{}{} }()
	return do(w)
}

// readTx runs do, whose single queries each see one moment.
func (s *Store) readTx(ctx context.Context, do func(*reader) error) error {
	leave, err := s.enterStore(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return do(s.reader)
}

// enterStore keeps the store open until leave is called.
func (s *Store) enterStore(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.gate.RLock()
	if s.closed {
		s.gate.RUnlock()
		return nil, sandpit.Errorf(sandpit.Unavailable, "the state %s is closed", s.filePath())
	}
	return s.gate.RUnlock, nil
}

// runTx runs a transaction; the caller holds the turn. Begin and commit are not
// canceled, so it is always known whether the transaction happened.
func (w *writer) runTx(ctx context.Context, do func(*writer) error) error {
	always := context.WithoutCancel(ctx)
	if _, err := w.exec(always, `BEGIN IMMEDIATE`); err != nil {
		return err
	}
	err := do(w)
	if err == nil {
		_, err = w.exec(always, `COMMIT`)
	}
	if err != nil {
		_, _ = w.exec(always, `ROLLBACK`) // some errors have rolled back already
		return err
	}
	return nil
}

// preparedStmt returns a prepared statement; the caller holds the turn.
func (w *writer) preparedStmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt, ok := w.prepared[query]; ok {
		return stmt, nil
	}
	stmt, err := w.conn.PrepareContext(ctx, query)
	if err == nil {
		w.prepared[query] = stmt
	}
	return stmt, err
}

func (w *writer) exec(ctx context.Context, query string, args ...any) (int64, error) {
	stmt, err := w.preparedStmt(ctx, query)
	if err != nil {
		return 0, err
	}
	res, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (w *writer) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := w.preparedStmt(ctx, query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// scanRow scans one row. Without a row it returns sql.ErrNoRows.
func (w *writer) scanRow(ctx context.Context, query string, args []any, dest ...any) error {
	stmt, err := w.preparedStmt(ctx, query)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(ctx, args...).Scan(dest...)
}

// reader is a few connections that only read.
type reader struct {
	db *sql.DB

	mu       sync.Mutex
	prepared map[string]*sql.Stmt
}

func (s *Store) openReader() (*reader, error) {
	db, err := sql.Open("sqlite", s.dataSource("&_query_only=1"))
	if err != nil {
		return nil, s.wrapError(err, "open the state")
	}
	db.SetMaxOpenConns(maxReaders)
	db.SetMaxIdleConns(maxReaders)
	return &reader{db: db, prepared: make(map[string]*sql.Stmt)}, nil
}

func (r *reader) close() error {
	for _, stmt := range r.prepared {
		_ = stmt.Close() // closing the connections returns the errors that matter
	}
	return r.db.Close()
}

func (r *reader) preparedStmt(ctx context.Context, query string) (*sql.Stmt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stmt, ok := r.prepared[query]; ok {
		return stmt, nil
	}
	stmt, err := r.db.PrepareContext(ctx, query)
	if err == nil {
		r.prepared[query] = stmt
	}
	return stmt, err
}

func (r *reader) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := r.preparedStmt(ctx, query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}
