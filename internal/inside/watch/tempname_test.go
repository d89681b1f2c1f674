package watch_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/watch"
)

// TestReplacement: a file that is written under a temporary name is reported as the
// file it becomes.
func TestReplacement(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := watch.New(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, existed := range []bool{false, true} {
		temp := filepath.Join(dir, watch.TempName(existed))
		if err := os.WriteFile(temp, []byte("all of it"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(temp, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temp, filepath.Join(dir, "file")); err != nil {
			t.Fatal(err)
		}
	}
	given := filepath.Join(dir, watch.TempName(true)) // what is given up is never told
	if err := os.WriteFile(given, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(given); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "end"), 0o755); err != nil {
		t.Fatal(err)
	}
	var got []watch.Event
	for len(got) == 0 || got[len(got)-1].Name != "end" {
		events, err := w.Take()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, events...)
		time.Sleep(time.Millisecond)
	}
	want := []watch.Event{{"file", sandpit.FileCreated}, {"file", sandpit.FileChanged}, {"file", sandpit.FileWritten}, {"file", sandpit.FileWritten}, {"end", sandpit.FileCreated}}
	// Two writes in a row may be told as one.
	if diff := cmp.Diff(want, got); diff != "" && cmp.Diff(append(want[:2:2], want[3:]...), got) != "" {
		t.Error(diff)
	}
}
