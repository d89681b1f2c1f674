package store_test

import (
	"bytes"
	"crypto/rand"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// pageSize is SQLite's default.
const pageSize = 4096

// filled returns a state directory with something in each table, as an orderly
// end leaves it.
func filled(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	s := open(tb, dir)
	fill(tb, s)
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
	return dir
}

func fill(tb testing.TB, s *store.Store) {
	tb.Helper()
	for range 40 {
		r := insert(tb, s, nil)
		if _, err := s.Queue().Schedule(tb.Context(), queue.Message{Topic: "a", Sandbox: r.ID, Kind: "idle", Due: begin}); err != nil {
			tb.Fatal(err)
		}
	}
	appendEvents(tb, s, 40)
}

// killed returns a state directory as kill -9 leaves it: with a journal.
func killed(tb testing.TB) string {
	tb.Helper()
	dir, from := tb.TempDir(), tb.TempDir()
	s := open(tb, from)
	fill(tb, s)
	for name, data := range files(tb, from) {
		write(tb, filepath.Join(dir, name), data)
	}
	if len(files(tb, dir)["state.db-wal"]) == 0 {
		tb.Fatal("no journal")
	}
	return dir
}

// checkpointed is killed, with most of it in the file and the end in the journal.
func checkpointed(tb testing.TB) string {
	tb.Helper()
	dir, from := tb.TempDir(), filled(tb)
	s := open(tb, from)
	insert(tb, s, nil)
	for name, data := range files(tb, from) {
		write(tb, filepath.Join(dir, name), data)
	}
	return dir
}

// files returns what must not be touched.
func files(tb testing.TB, dir string) map[string][]byte {
	tb.Helper()
	found := make(map[string][]byte)
	for _, name := range []string{"state.db", "state.db-wal"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && (len(data) > 0 || name == "state.db") {
			found[name] = data
		}
	}
	return found
}

func write(tb testing.TB, path string, data []byte) {
	tb.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// change changes the bytes of a file.
func change(name string, how func([]byte) []byte) func(testing.TB, string) {
	return func(tb testing.TB, dir string) {
		tb.Helper()
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		write(tb, path, how(data))
	}
}

func garbage(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestRefused(t *testing.T) {
	t.Parallel()
	breakPages := func(b []byte) []byte {
		for at := pageSize; at < len(b); at += pageSize {
			b[at] ^= 0xff // the kind of the page
		}
		return b
	}
	sqlOnly := func(statements ...string) func(testing.TB, string) {
		return func(tb testing.TB, dir string) { tb.Helper(); raw(tb, dir, statements...) }
	}
	const damaged, restore = "is damaged", "To restore a backup"
	for name, tc := range map[string]struct {
		from  func(testing.TB) string
		spoil func(testing.TB, string)
		code  sandpit.Code
		want  string
		hint  string
	}{
		"garbage header":  {filled, change("state.db", func(b []byte) []byte { return append(garbage(100), b[100:]...) }), sandpit.Internal, damaged, restore},
		"all garbage":     {filled, change("state.db", func(b []byte) []byte { return garbage(len(b)) }), sandpit.Internal, damaged, restore},
		"half":            {filled, change("state.db", func(b []byte) []byte { return b[:len(b)/2] }), sandpit.Internal, damaged, restore},
		"50 bytes":        {filled, change("state.db", func(b []byte) []byte { return b[:50] }), sandpit.Internal, damaged, restore},
		"pages":           {filled, change("state.db", breakPages), sandpit.Internal, damaged, restore},
		"zeros inside":    {filled, change("state.db", func(b []byte) []byte { clear(b[pageSize:]); return b }), sandpit.Internal, damaged, restore},
		"text":            {filled, change("state.db", func([]byte) []byte { return []byte(strings.Repeat("hello\n", 999)) }), sandpit.Internal, damaged, restore},
		"short text":      {filled, change("state.db", func([]byte) []byte { return []byte("hello\n") }), sandpit.Internal, damaged, restore},
		"pages, journal":  {checkpointed, change("state.db", breakPages), sandpit.Internal, damaged, restore},
		"text, journal":   {checkpointed, change("state.db", func([]byte) []byte { return []byte(strings.Repeat("hello\n", 999)) }), sandpit.Internal, damaged, restore},
		"empty, journal":  {killed, change("state.db", func([]byte) []byte { return nil }), sandpit.Internal, "the file is empty, but its journal is not", restore},
		"garbage journal": {killed, change("state.db-wal", func(b []byte) []byte { return garbage(len(b)) }), sandpit.Internal, "its journal", restore},
		"text as journal": {filled, func(tb testing.TB, dir string) {
			tb.Helper()
			write(tb, filepath.Join(dir, "state.db-wal"), []byte("hello\n"))
		}, sandpit.Internal, "its journal", restore},
		"newer": {
			filled, sqlOnly(`INSERT INTO migrations VALUES ('migrations/0999_future.sql', '', 0)`),
			sandpit.Unsupported, `was made by a newer sandpit: it has "migrations/0999_future.sql"`, "run that version",
		},
		"newer, journal": {
			killed, sqlOnly(`INSERT INTO migrations VALUES ('migrations/0999_future.sql', '', 0)`),
			sandpit.Unsupported, "was made by a newer sandpit", "run that version",
		},
		"another build": {filled, sqlOnly(`UPDATE migrations SET checksum = 'x'`), sandpit.Unsupported, "was made by a newer sandpit", "run that version"},
		"another program": {
			func(tb testing.TB) string { tb.Helper(); return tb.TempDir() }, sqlOnly(`CREATE TABLE bookmarks (url TEXT)`),
			sandpit.Invalid, "belongs to another program", "choose another state directory",
		},
		"identity":               {filled, sqlOnly(`UPDATE identity SET name = '../x'`), sandpit.Internal, "its identity cannot be read", restore},
		"no table of migrations": {filled, sqlOnly(`DROP TABLE migrations`), sandpit.Internal, "no such table: migrations", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tc.from(t)
			tc.spoil(t, dir)
			before := files(t, dir)
			_, err := store.Open(t.Context(), dir, store.Options{})
			want(t, err, tc.code, tc.want)
			if hint := sandpit.HintOf(err); !strings.Contains(hint, tc.hint) {
				t.Errorf("hint %q, want %q in it", hint, tc.hint)
			}
			if !maps.EqualFunc(before, files(t, dir), bytes.Equal) {
				t.Error("the files were touched")
			}
			// The advice to start empty works.
			for _, name := range []string{"state.db", "state.db-wal", "state.db-shm"} {
				_ = os.Rename(filepath.Join(dir, name), filepath.Join(dir, name+".old")) // not each is there
			}
			open(t, dir)
		})
	}
}

// TestRecovered shows what is no damage.
func TestRecovered(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		from  func(testing.TB) string
		spoil func(testing.TB, string)
		rows  int
	}{
		"journal":       {killed, func(testing.TB, string) {}, 40},
		"garbage below": {killed, change("state.db", func(b []byte) []byte { return garbage(len(b)) }), 40}, // every page is in the journal
		"torn journal":  {killed, change("state.db-wal", func(b []byte) []byte { return b[:len(b)-1000] }), -1},
		"journal of zeros": {filled, func(tb testing.TB, dir string) {
			tb.Helper()
			write(tb, filepath.Join(dir, "state.db-wal"), make([]byte, 9999))
		}, 40},
		"begin of journal": {filled, func(tb testing.TB, dir string) {
			tb.Helper()
			write(tb, filepath.Join(dir, "state.db-wal"), []byte{0x37, 0x7f})
		}, 40},
		"garbage as shm": {killed, func(tb testing.TB, dir string) {
			tb.Helper()
			write(tb, filepath.Join(dir, "state.db-shm"), garbage(32768))
		}, 40},
		"empty": {filled, change("state.db", func([]byte) []byte { return nil }), 0},
		"garbage in lock": {filled, func(tb testing.TB, dir string) {
			tb.Helper()
			write(tb, filepath.Join(dir, "state.lock"), garbage(5000))
		}, 40},
		"killed at opening": {func(tb testing.TB) string { tb.Helper(); return tb.TempDir() }, func(tb testing.TB, dir string) { tb.Helper(); write(tb, filepath.Join(dir, "state.db"), nil) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tc.from(t)
			tc.spoil(t, dir)
			s := open(t, dir)
			list, err := s.Sandboxes().ListSandboxes(t.Context(), store.Filter{})
			if err != nil || tc.rows >= 0 && len(list) != tc.rows {
				t.Errorf("%d rows, %v; want %d", len(list), err, tc.rows)
			}
			if err := s.Events().VerifyEvents(t.Context()); err != nil {
				t.Error(err)
			}
			insert(t, s, nil)
		})
	}
}

// TestFlippedBytes flips bytes anywhere. A file is refused and left alone, or what
// it gives is good or named as bad; SQLite has no checksums, so a changed letter
// may be taken as it is.
func TestFlippedBytes(t *testing.T) {
	t.Parallel()
	whole := files(t, filled(t))["state.db"]
	refused := 0
	for seed := range uint64(60) {
		random := mathrand.New(mathrand.NewPCG(1, seed))
		data := bytes.Clone(whole)
		for range 1 + random.IntN(80) { // half of the pages are free
			data[random.IntN(len(data))] ^= byte(1 + random.IntN(255))
		}
		dir := filepath.Join(t.TempDir(), strconv.FormatUint(seed, 10))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "state.db"), data)
		errs := useAll(t, dir)
		if errs == nil {
			continue
		}
		for _, err := range errs {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("seed %d: the error tells a secret: %v", seed, err)
			}
		}
		if errs[0] != nil {
			refused++
			if got := files(t, dir)["state.db"]; !bytes.Equal(got, data) {
				t.Errorf("seed %d: refused with %v, but touched", seed, errs[0])
			}
		}
	}
	t.Logf("%d of 60 files were refused", refused)
	if refused < 15 {
		t.Errorf("only %d of 60 files were refused", refused)
	}
}

// useAll opens a store, if that works, and calls what reads.
func useAll(t *testing.T, dir string) []error {
	t.Helper()
	s, err := store.Open(t.Context(), dir, store.Options{})
	if err != nil {
		return []error{err}
	}
	defer s.Close()
	rows, listErr := s.Sandboxes().ListSandboxes(t.Context(), store.Filter{})
	_, eventsErr := s.Events().ListEvents(t.Context(), store.EventFilter{})
	_, queueErr := s.Queue().List(t.Context(), queue.Filter{})
	if len(rows) > 40 {
		t.Errorf("%d rows, want at most 40", len(rows))
	}
	return []error{nil, listErr, eventsErr, queueErr, s.Events().VerifyEvents(t.Context())}
}
