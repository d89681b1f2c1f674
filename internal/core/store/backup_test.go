package store_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// state is all that can be seen of a store.
type state struct {
	Identity string
	Rows     []store.Row
	Events   []store.Event
	Messages []queue.Message
}

func look(t *testing.T, s *store.Store) state {
	t.Helper()
	rows, err := s.Sandboxes().ListSandboxes(t.Context(), store.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.Events().ListEvents(t.Context(), store.EventFilter{Limit: store.MaxEvents})
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.Queue().List(t.Context(), queue.Filter{Limit: queue.MaxList})
	if err != nil {
		t.Fatal(err)
	}
	return state{s.Identity(), rows, events, list}
}

// restore opens a backup as the state of a new directory.
func restore(t *testing.T, backup string) *store.Store {
	t.Helper()
	info, err := os.Stat(backup)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("the backup has permissions %o", got)
	}
	data, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "state.db"), data)
	return open(t, dir)
}

func TestBackup(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	fill(t, s)
	to := t.TempDir()
	path := filepath.Join(to, "it's a backup.db")
	if err := s.Backup(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	restored := restore(t, path)
	if diff := cmp.Diff(look(t, s), look(t, restored)); diff != "" {
		t.Errorf("(-state +backup):\n%s", diff)
	}
	if err := restored.Events().VerifyEvents(t.Context()); err != nil {
		t.Error(err)
	}
	insert(t, restored, nil)
	appendEvents(t, restored, 1)
	if entries, err := os.ReadDir(to); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v; want the backup alone", entries, err)
	}
}

func TestBackupRefuses(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	dir := t.TempDir()
	taken, dangling := filepath.Join(dir, "taken"), filepath.Join(dir, "dangling")
	write(t, taken, []byte("mine"))
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	for path, code := range map[string]sandpit.Code{
		taken: sandpit.AlreadyExists, dangling: sandpit.AlreadyExists, dir: sandpit.AlreadyExists,
		filepath.Join(dir, "missing", "b"): sandpit.NotFound,
	} {
		want(t, s.Backup(t.Context(), path), code, "backup")
	}
	if data, err := os.ReadFile(taken); err != nil || string(data) != "mine" {
		t.Errorf("what was there is now %q, %v", data, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, s.Backup(ctx, filepath.Join(dir, "canceled")), sandpit.Canceled, "")
	// Of many at once, one wins.
	codes := together(8, func() error { return s.Backup(t.Context(), filepath.Join(dir, "race")) })
	if diff := cmp.Diff(map[sandpit.Code]int{"": 1, sandpit.AlreadyExists: 7}, codes); diff != "" {
		t.Errorf("8 backups with one name (-want +got):\n%s", diff)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("%v, %v; want 3", entries, err)
	}
}

// TestBackupWhileWriting shows that a backup is one moment: each row has its event.
func TestBackupWhileWriting(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	fill(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				r := row()
				if err := s.Events().AppendEvents(t.Context(), store.Event{Action: "planned", Sandbox: r.ID}); err != nil {
					t.Error(err)
				}
				if _, err := s.Sandboxes().InsertSandbox(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		before := look(t, s)
		if err := s.Backup(t.Context(), filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
		restored := restore(t, filepath.Join(dir, name))
		if err := restored.Events().VerifyEvents(t.Context()); err != nil {
			t.Error(err)
		}
		checkMoment(t, before, restored)
	}
	cancel()
	wg.Wait()
}

// checkMoment checks that a backup has all that was there before, and no row
// without the event that came first.
func checkMoment(t *testing.T, before state, restored *store.Store) {
	t.Helper()
	got := make(map[sandpit.ID]bool)
	rows, err := restored.Sandboxes().ListSandboxes(t.Context(), store.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		got[r.ID] = true
		list, err := restored.Events().ListEvents(t.Context(), store.EventFilter{Sandbox: r.ID, Action: "planned"})
		if err != nil || len(list) == 0 && !hasMessage(before, r.ID) {
			t.Errorf("sandbox %s has no event, %v", r.ID, err)
		}
	}
	for _, r := range before.Rows {
		if !got[r.ID] {
			t.Errorf("sandbox %s is not in the backup", r.ID)
		}
	}
}

// hasMessage reports whether the row was there from the beginning.
func hasMessage(s state, id sandpit.ID) bool {
	for _, m := range s.Messages {
		if m.Sandbox == id {
			return true
		}
	}
	return false
}
