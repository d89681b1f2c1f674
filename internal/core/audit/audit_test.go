package audit_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/core/audit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// begin is when the first event of a test happened.
var begin = time.Now().Add(-100 * time.Hour).Round(time.Microsecond)

// newTrail returns a store with n events, an hour apart, of the same size.
func newTrail(t *testing.T, n int) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		e := store.Event{At: begin.Add(time.Duration(i) * time.Hour), Actor: "anna", Action: "create", Args: map[string]string{"n": fmt.Sprintf("%04d", i)}}
		if err := s.Events().AppendEvents(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func newExporter(t *testing.T, dir string, maxBytes int64) *audit.Exporter {
	t.Helper()
	x, err := audit.NewExporter(dir, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func prune(t *testing.T, o audit.Options) {
	t.Helper()
	o.Clock, o.Log, o.Every = clock.System{}, slog.New(slog.DiscardHandler), time.Hour
	if err := audit.NewPruner(o).Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// stored returns the numbers of the events in a store, whose chain must be whole.
func stored(t *testing.T, s *store.Store) (seqs []int64) {
	t.Helper()
	if err := s.Events().VerifyEvents(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := s.Events().ListEvents(t.Context(), store.EventFilter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		seqs = append(seqs, e.Seq)
	}
	return seqs
}

// exported returns the numbers of the events in the files of a directory.
func exported(t *testing.T, dir string) (seqs []int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lines := bufio.NewScanner(z)
		for lines.Scan() {
			var e struct {
				Seq   int64             `json:"seq"`
				Actor string            `json:"actor"`
				Args  map[string]string `json:"args"`
				Hash  string            `json:"hash"`
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Actor != "anna" || e.Args["n"] == "" || len(e.Hash) != 64 {
				t.Errorf("%s: line %q, %v", name, lines.Text(), err)
			}
			seqs = append(seqs, e.Seq)
		}
		if err := errors.Join(lines.Err(), z.Close(), f.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	return seqs
}

func sequence(from, through int64) (list []int64) {
	for i := from; i <= through; i++ {
		list = append(list, i)
	}
	return list
}

func TestPruneByAge(t *testing.T) {
	t.Parallel()
	s, dir := newTrail(t, 20), t.TempDir()
	// 100 hours have passed since the first event, and they are an hour apart.
	prune(t, audit.Options{Trail: s.Events(), MaxAge: 95*time.Hour + 30*time.Minute, Exporter: newExporter(t, dir, 0)})
	if got := stored(t, s); !slices.Equal(got, sequence(6, 20)) {
		t.Errorf("stored are %v, want 6 to 20", got)
	}
	if got := exported(t, dir); !slices.Equal(got, sequence(1, 5)) {
		t.Errorf("exported are %v, want 1 to 5", got)
	}
}

func TestPruneBySize(t *testing.T) {
	t.Parallel()
	s, dir := newTrail(t, 20), t.TempDir()
	span, err := s.Events().EventSpan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	prune(t, audit.Options{Trail: s.Events(), MaxBytes: span.Bytes / 2, Exporter: newExporter(t, dir, 0)})
	if got := stored(t, s); !slices.Equal(got, sequence(11, 20)) {
		t.Errorf("stored are %v, want 11 to 20", got)
	}
	if got := exported(t, dir); !slices.Equal(got, sequence(1, 10)) {
		t.Errorf("exported are %v, want 1 to 10", got)
	}
	prune(t, audit.Options{Trail: s.Events(), MaxBytes: 1})
	if got := stored(t, s); got != nil {
		t.Errorf("stored are %v, want none", got)
	}
}

func TestNothingIsOutOfBounds(t *testing.T) {
	t.Parallel()
	s, dir := newTrail(t, 3), t.TempDir()
	for _, o := range []audit.Options{{}, {MaxAge: 1000 * time.Hour}, {MaxBytes: 1 << 20}} {
		o.Trail, o.Exporter = s.Events(), newExporter(t, dir, 0)
		prune(t, o)
	}
	if got := stored(t, s); len(got) != 3 || exported(t, dir) != nil {
		t.Errorf("stored are %v, exported %v", got, exported(t, dir))
	}
}

// failingTrail fails to drop events.
type failingTrail struct{ audit.Trail }

var errDrop = errors.New("no")

func (failingTrail) DropEvents(context.Context, int64) error { return errDrop }

// TestNoEventIsLost shows that events whose export was not followed by their removal are
// exported once when that is tried again, and stay where the export fails.
func TestNoEventIsLost(t *testing.T) {
	t.Parallel()
	s, dir := newTrail(t, 10), t.TempDir()
	o := audit.Options{
		Trail: failingTrail{s.Events()}, MaxBytes: 1, Exporter: newExporter(t, dir, 0), Clock: clock.System{}, Log: slog.New(slog.DiscardHandler),
	}
	if err := audit.NewPruner(o).Prune(t.Context()); !errors.Is(err, errDrop) {
		t.Errorf("got %v", err)
	}
	prune(t, audit.Options{Trail: s.Events(), MaxBytes: 1, Exporter: o.Exporter})
	if got := exported(t, dir); !slices.Equal(got, sequence(1, 10)) {
		t.Errorf("exported are %v, want 1 to 10", got)
	}

	s, dir = newTrail(t, 2), filepath.Join(t.TempDir(), "gone")
	o.Trail, o.Exporter = s.Events(), newExporter(t, dir, 0)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := audit.NewPruner(o).Prune(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "export events: ") {
		t.Errorf("export to nowhere: %v", err)
	}
	if got := stored(t, s); len(got) != 2 {
		t.Errorf("stored are %v, want 1 and 2", got)
	}
}

func TestOldestFilesAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "events-notes.txt")
	if err := os.WriteFile(other, []byte("not an export"), 0o600); err != nil {
		t.Fatal(err)
	}
	x := newExporter(t, dir, 1)
	for i := range 3 {
		if err := x.Export([]store.Event{{Seq: int64(i + 1), Actor: "anna", Args: map[string]string{"n": "x"}, Hash: strings.Repeat("0", 64)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(other); err != nil {
		t.Errorf("an unrelated file was removed: %v", err)
	}
	if got := exported(t, dir); !slices.Equal(got, []int64{3}) {
		t.Errorf("exported are %v, want the newest", got)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := newTrail(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	p := audit.NewPruner(audit.Options{Trail: s.Events(), MaxBytes: 1, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler), Every: time.Millisecond})
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; {
		span, err := s.Events().EventSpan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if span.Start == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is pruned")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
}
