package store_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// smallDisks mount a small file system of a kind at a directory.
var smallDisks = map[string]func(t *testing.T, dir string){
	"tmpfs": func(t *testing.T, dir string) {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
			testengine.Skip(t, "no file system can be mounted: %v", err)
		}
	},
	"ext4": func(t *testing.T, dir string) {
		t.Helper()
		if os.Getuid() != 0 {
			testengine.Skip(t, "only root mounts a file")
		}
		image := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(image, 32<<20); err != nil {
			t.Fatal(err)
		}
		for _, command := range [][]string{{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
			if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
				testengine.Skip(t, "%s: %v\n%s", command[0], err, out)
			}
		}
	},
}

// TestDeletionOnAFullDisk fills the disk to its last block: nothing can be added, and
// everything be changed and deleted, again and again, also by the next store.
func TestDeletionOnAFullDisk(t *testing.T) {
	t.Parallel()
	for name, mount := range smallDisks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := t.TempDir()
			mount(t, disk)
			t.Cleanup(func() {
				if err := unix.Unmount(disk, 0); err != nil {
					t.Error(err)
				}
			})
			dir := filepath.Join(disk, "state")
			s, err := store.Open(t.Context(), dir, store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }() // also before the file system goes after a failure
			full := fillStore(t, s)
			if err := eat(disk); err != nil {
				t.Fatal(err)
			}
			full.wantNoInserts(t, s)
			full.change(t, s, 300)
			full.delete(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			again, err := store.Open(t.Context(), dir, store.Options{})
			if err != nil {
				t.Fatalf("open it on a full disk: %v", err)
			}
			s = again
			full.change(t, s, 100)
			full.delete(t, s)
			list, err := s.Sandboxes().ListSandboxes(t.Context(), store.Filter{})
			if err != nil || len(list) != 0 {
				t.Errorf("%d rows are left, %v", len(list), err)
			}
			if err := os.Remove(filepath.Join(disk, "rest")); err != nil {
				t.Fatal(err)
			}
			checkRoom(t, s)
		})
	}
}

// contents are what fillStore has put into a store: two of each, and 40 rows.
type contents struct {
	rows      []store.Row
	keys      []store.Key
	snapshots []store.Snapshot
	volumes   []store.Volume
	templates []sandpit.Template
	builds    []store.TemplateBuild
	tokens    []store.Token // two of the first of 20 rows
}

func fillStore(t *testing.T, s *store.Store) *contents {
	t.Helper()
	f := &contents{}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for n := range 2 {
		for range 20 {
			r, err := s.Sandboxes().InsertSandbox(t.Context(), row())
			must(err)
			f.rows = append(f.rows, r)
		}
		k, err := s.Credentials().InsertKey(t.Context(), key(n))
		must(err)
		for i, kind := range []store.TokenKind{store.TokenPreview, store.TokenGuest} {
			f.tokens = append(f.tokens, insertToken(t, s, newToken(2*n+i, kind, f.rows[20*n].ID)))
		}
		snap, err := s.Snapshots().InsertSnapshot(t.Context(), snapshot("ann", ""), plenty)
		must(err)
		v, err := s.Volumes().InsertVolume(t.Context(), volume("ann", fmt.Sprint("v", n)), 9)
		must(err)
		made, err := s.Templates().EnsureTemplate(t.Context(), template("ann", fmt.Sprint("t", n)), 9)
		must(err)
		b := buildOf(made)
		must(s.Templates().InsertBuild(t.Context(), b, store.TemplateLimits{Pending: 9}))
		must(s.Events().AppendEvents(t.Context(), store.Event{Action: "before"}))
		f.keys, f.snapshots, f.volumes = append(f.keys, k), append(f.snapshots, snap), append(f.volumes, v)
		f.templates, f.builds = append(f.templates, made), append(f.builds, b)
	}
	return f
}

// wantNoInserts expects that nothing can be added.
func (f *contents) wantNoInserts(t *testing.T, s *store.Store) {
	t.Helper()
	longer := f.rows[0]
	longer.Spec = longer.Spec.Clone()
	longer.Spec.Labels = map[string]string{"long": strings.Repeat("x", 2000)}
	for what, add := range map[string]func() error{
		"sandbox":       func() error { _, err := s.Sandboxes().InsertSandbox(t.Context(), row()); return err },
		"longer labels": func() error { _, err := s.Sandboxes().UpdateSandbox(t.Context(), longer); return err },
		"key":           func() error { _, err := s.Credentials().InsertKey(t.Context(), key(9)); return err },
		"snapshot": func() error {
			_, err := s.Snapshots().InsertSnapshot(t.Context(), snapshot("bob", ""), plenty)
			return err
		},
		"volume":   func() error { _, err := s.Volumes().InsertVolume(t.Context(), volume("bob", "v"), 9); return err },
		"template": func() error { _, err := s.Templates().EnsureTemplate(t.Context(), template("bob", "t"), 9); return err },
		"token": func() error {
			_, err := s.Credentials().InsertToken(t.Context(), newToken(9, store.TokenTraffic, f.rows[0].ID))
			return err
		},
		"public port": func() error {
			return s.Sandboxes().SetPreview(t.Context(), store.Preview{Sandbox: f.rows[0].ID, Port: 9, Public: true})
		},
		"events": func() error { return s.Events().AppendEvents(t.Context(), store.Event{Action: "x"}) },
		"room":   s.CheckRoom,
	} {
		if err := add(); sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
			t.Errorf("add to a full disk: %s: %v, want it exhausted with a hint", what, err)
		}
	}
}

// change changes what is there so many times.
func (f *contents) change(t *testing.T, s *store.Store, times int) {
	t.Helper()
	for n := range times {
		r := &f.rows[n%len(f.rows)]
		r.State, r.Reason = sandpit.StateDeleting, fmt.Sprint("killed ", n)
		next, err := s.Sandboxes().UpdateSandbox(t.Context(), *r)
		if err != nil {
			t.Fatalf("change a row for the %dth time: %v", n, err)
		}
		*r = next
		if err := s.Credentials().TouchKey(t.Context(), f.keys[0].ID, begin.Add(time.Duration(n))); err != nil {
			t.Fatal(err)
		}
		if err := s.Credentials().TouchToken(t.Context(), f.tokens[1].ID, begin.Add(time.Duration(n))); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Credentials().AccessTokens(t.Context(), f.tokens[1:2]); err != nil {
			t.Fatalf("look for an access token: %v", err)
		}
		m := queue.Message{Topic: s.Identity(), Sandbox: r.ID, Kind: "delete", Due: begin}
		if _, err := s.Queue().Schedule(t.Context(), m); err != nil {
			t.Fatalf("schedule: %v", err)
		}
		if _, err := s.Queue().Cancel(t.Context(), r.ID); err != nil {
			t.Fatalf("cancel: %v", err)
		}
	}
}

// delete deletes one of each, and half of the rows.
func (f *contents) delete(t *testing.T, s *store.Store) {
	t.Helper()
	ctx := t.Context()
	events, err := s.Events().ListEvents(ctx, store.EventFilter{})
	if err != nil || len(events) == 0 {
		t.Fatalf("events: %v, %v", events, err)
	}
	for _, remove := range []struct {
		what string
		do   func() error
	}{
		{"key", func() error { return s.Credentials().DeleteKey(ctx, f.keys[0].ID) }},
		{"token", func() error { return s.Credentials().DeleteToken(ctx, f.tokens[0].ID) }},
		{"access to a port", func() error {
			return s.Sandboxes().SetPreview(ctx, store.Preview{Sandbox: f.rows[0].ID, Port: 8, Epoch: 1})
		}},
		{"tokens of a sandbox", func() error { _, err := s.Credentials().RaiseTokenEpoch(ctx, f.rows[0].ID); return err }},
		{"snapshot's state", func() error { return s.Snapshots().SetSnapshotDeleting(ctx, f.snapshots[0].ID) }},
		{"snapshot", func() error { return s.Snapshots().DeleteSnapshot(ctx, f.snapshots[0].ID) }},
		{"volume's state", func() error { return s.Volumes().SetVolumeState(ctx, f.volumes[0].ID, store.VolumeDeleting) }},
		{"volume", func() error { return s.Volumes().DeleteVolume(ctx, f.volumes[0].ID) }},
		{"template", func() error { return s.Templates().DeleteTemplate(ctx, f.templates[0].ID) }},
		{"build", func() error { return s.Templates().DeleteBuild(ctx, f.builds[0].ID) }},
		{"events", func() error { return s.Events().DropEvents(ctx, events[0].Seq) }},
	} {
		if err := remove.do(); err != nil {
			t.Errorf("delete from a full disk: %s: %v", remove.what, err)
		}
	}
	for _, r := range f.rows[:20] {
		if err := s.Sandboxes().DeleteSandbox(ctx, r.ID); err != nil {
			t.Errorf("delete a row: %v", err)
		}
	}
	f.rows, f.keys, f.snapshots, f.volumes = f.rows[20:], f.keys[1:], f.snapshots[1:], f.volumes[1:]
	f.templates, f.builds, f.tokens = f.templates[1:], f.builds[1:], f.tokens[2:]
}
