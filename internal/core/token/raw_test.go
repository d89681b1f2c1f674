package token_test

import (
	"database/sql"
	"path/filepath"
	"testing"
)

// openRaw opens the store's file behind its back, with the driver that the store brings.
func openRaw(tb testing.TB, dir string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "state.db")+"?_busy_timeout=5000")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	return db
}
