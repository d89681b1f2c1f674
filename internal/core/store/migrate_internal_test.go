package store

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// TestMigrate goes from the first form to a later one, and stops at a step that
// does not work without doing half of it.
func TestMigrate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(t.Context(), dir, Options{Now: func() time.Time { return time.Unix(1e9, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	own, err := loadMigrations(embedded)
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{
		"migrations/9002_more.sql":  {Data: []byte(`CREATE TABLE more (id INTEGER) STRICT; INSERT INTO more VALUES (1);`)},
		"migrations/9003_bad.sql":   {Data: []byte(`INSERT INTO more VALUES (2); INSERT INTO nowhere VALUES (3);`)},
		"migrations/9004_never.sql": {Data: []byte(`INSERT INTO more VALUES (4);`)},
	}
	for _, m := range own {
		files[m.name] = &fstest.MapFile{Data: []byte(m.text)}
	}
	list, err := loadMigrations(files)
	if err != nil || len(list) != len(own)+3 {
		t.Fatal(list, err)
	}
	for range 2 {
		err = s.applyMigrations(t.Context(), list)
		if got, want := err.Error(), "apply migrations/9003_bad.sql to the state: SQL logic error: no such table: nowhere (1)"; got != want {
			t.Errorf("error %q, want %q", got, want)
		}
	}
	var rows, applied, when int64
	if err := s.writer.scanRow(t.Context(), `SELECT (SELECT sum(id) FROM more), (SELECT count(*) FROM migrations), (SELECT max(applied_at) FROM migrations)`,
		nil, &rows, &applied, &when); err != nil {
		t.Fatal(err)
	}
	if rows != 1 || applied != int64(len(own)+1) || when != 1e15 {
		t.Errorf("sum %d, %d migrations, at %d; want 1, %d, 1e15", rows, applied, when, len(own)+1)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), dir, Options{}) // the program of before
	if sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("error %v, want unsupported", err)
	}
}
