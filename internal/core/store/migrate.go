package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

//go:embed migrations/*.sql
var embedded embed.FS

// applicationID marks our files: "sbox".
const applicationID = 0x73626f78

// migration is one step from an older form of the file to the next.
type migration struct {
	name     string
	text     string
	checksum string // SHA-256 of text
}

// loadMigrations returns the migrations of a directory in the order of their names.
func loadMigrations(dir fs.FS) ([]migration, error) {
	names, err := fs.Glob(dir, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	list := make([]migration, 0, len(names))
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		list = append(list, migration{name: name, text: string(text), checksum: hex.EncodeToString(sum[:])})
	}
	return list, nil
}

// inspectFile checks the file without writing to it, and refuses one that is damaged, of
// another program, or of a newer version. It returns the missing migrations.
func (s *Store) inspectFile(ctx context.Context, known []migration) ([]migration, error) {
	db, err := sql.Open("sqlite", s.dataSource("&mode=ro"))
	if err != nil {
		return nil, s.wrapError(err, "open the state")
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if err := s.checkPages(ctx, db); err != nil {
		return nil, err
	}
	var id, tables int
	err = db.QueryRowContext(ctx, `SELECT (SELECT * FROM pragma_application_id), (SELECT count(*) FROM sqlite_schema)`).Scan(&id, &tables)
	switch {
	case err != nil:
		return nil, s.wrapError(err, "open the state %s", s.filePath())
	case tables == 0:
		return known, nil
	case id != applicationID:
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s belongs to another program", s.filePath()),
			"choose another state directory")
	}
	return s.missingMigrations(ctx, db, known)
}

// missingMigrations returns the migrations that were not applied.
func (s *Store) missingMigrations(ctx context.Context, db *sql.DB, known []migration) ([]migration, error) {
	rows, err := db.QueryContext(ctx, `SELECT name, checksum FROM migrations ORDER BY name`)
	if err != nil {
		return nil, s.wrapError(err, "open the state %s", s.filePath())
	}
	defer rows.Close()
	left := slices.Clone(known)
	for rows.Next() {
		var name, checksum string
		if err := rows.Scan(&name, &checksum); err != nil {
			return nil, s.wrapError(err, "open the state %s", s.filePath())
		}
		i := slices.IndexFunc(left, func(m migration) bool { return m.name == name && m.checksum == checksum })
		if i < 0 {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "the state %s was made by a newer sandpit: it has %.100q", s.filePath(), name),
				"run that version, or restore a backup from before")
		}
		left = slices.Delete(left, i, i+1)
	}
	if err := rows.Err(); err != nil {
		return nil, s.wrapError(err, "open the state %s", s.filePath())
	}
	return left, nil
}

// checkPages has SQLite check that the pages of the file fit together.
func (s *Store) checkPages(ctx context.Context, db *sql.DB) error {
	var verdict string
	err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict)
	if err != nil {
		err = s.wrapError(err, "check the state")
		if sandpit.CodeOf(err) == sandpit.Internal {
			return s.damagedError(errors.Unwrap(err))
		}
		return err
	}
	if verdict != "ok" {
		return s.damagedError(fmt.Errorf("%.200s", verdict))
	}
	return nil
}

// applyMigrations applies the missing migrations, each in a transaction of its own.
func (s *Store) applyMigrations(ctx context.Context, list []migration) error {
	if len(list) == 0 {
		return nil // writes nothing, so that a state can be opened on a full disk
	}
	err := s.writeTx(ctx, func(tx *writer) error {
		// The mark comes with the first table, so that no file of ours is without.
		if _, err := tx.exec(ctx, fmt.Sprintf(`PRAGMA application_id = %d`, applicationID)); err != nil {
			return err
		}
		_, err := tx.exec(ctx, `CREATE TABLE IF NOT EXISTS migrations
			(name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT`)
		return err
	})
	if err != nil {
		return s.wrapError(err, "prepare the state")
	}
	for _, m := range list {
		err := s.writeTx(ctx, func(tx *writer) error { return s.applyMigration(ctx, tx, m) })
		if err != nil {
			return s.wrapError(err, "apply %s to the state", m.name)
		}
	}
	return nil
}

func (s *Store) applyMigration(ctx context.Context, tx *writer, m migration) error {
	n, err := tx.exec(ctx, `INSERT INTO migrations VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, m.name, m.checksum, toMicros(s.now()))
	if err != nil || n == 0 {
		return err
	}
	_, err = tx.conn.ExecContext(ctx, m.text)
	return err
}
