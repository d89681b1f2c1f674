package manager_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// withTemp asks for a temporary directory.
func withTemp() manager.CreateRequest {
	return manager.CreateRequest{Spec: sandpit.Spec{Mounts: []sandpit.Mount{{Temporary: true, Target: "/work"}}}}
}

// newTempRig also returns where temporary directories are made.
func newTempRig(t *testing.T) (*rig, string) {
	t.Helper()
	dir := t.TempDir()
	return newRig(t, manager.Options{TempDir: dir, Retry: 10 * time.Millisecond}), dir
}

func wantTempDirs(t *testing.T, dir string, want int) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "sandbox_work_*", "files"))
	if err != nil || len(list) != want {
		t.Errorf("temporary directories %q, %v; want %d", list, err, want)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != want {
		t.Errorf("there are %v, %v; want %d", all, err, want)
	}
}

// TestTempDir gives a sandbox a temporary directory, and removes it with the sandbox,
// wherever links in it lead.
func TestTempDir(t *testing.T) {
	t.Parallel()
	r, dir := newTempRig(t)
	outside := t.TempDir()
	s := r.create(t, withTemp())
	path := s.Spec.Mounts[0].Source
	if !strings.HasPrefix(path, dir+"/sandbox_work_") {
		t.Errorf("it is in %q", path)
	}
	if err := os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(path, "link")); err != nil {
		t.Fatal(err)
	}
	_, err := r.Snapshots().Create(t.Context(), s.ID, "")
	wantCode(t, err, sandpit.Unsupported)
	_, err = r.Snapshots().Fork(t.Context(), manager.ForkRequest{Sandbox: s.ID})
	wantCode(t, err, sandpit.Unsupported)
	if err := r.Delete(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	wantTempDirs(t, dir, 0)
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
	keep := withTemp()
	keep.Spec.Mounts[0].Keep = true
	kept := r.create(t, keep)
	if err := r.Delete(t.Context(), kept.ID); err != nil {
		t.Fatal(err)
	}
	wantTempDirs(t, dir, 1)
}

func TestTempDirRefused(t *testing.T) {
	t.Parallel()
	r, dir := newTempRig(t)
	for name, mount := range map[string]sandpit.Mount{
		"a place that is named": {Temporary: true, Target: "/work", Source: dir},
		"read only":             {Temporary: true, Target: "/work", ReadOnly: true},
		"a volume":              {Temporary: true, Target: "/work", Volume: "data"},
		"to keep a volume":      {Keep: true, Target: "/work", Volume: "data"},
	} {
		_, err := r.Create(t.Context(), manager.CreateRequest{Spec: sandpit.Spec{Mounts: []sandpit.Mount{mount}}})
		if sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.world.Inject(fake.Fault{Op: fake.OpCreate, Err: errors.New("no")})
	if _, err := r.Create(t.Context(), withTemp()); err == nil {
		t.Error("made in spite of a fault")
	}
	wantTempDirs(t, dir, 0)
	none := newRig(t, manager.Options{})
	_, err := none.Create(t.Context(), withTemp())
	wantCode(t, err, sandpit.Unsupported)
}

// TestTempDirSurvives makes a sandbox again that was lost: what is in its temporary
// directory is there still.
func TestTempDirSurvives(t *testing.T) {
	t.Parallel()
	r, dir := newTempRig(t)
	request := withTemp()
	request.Policy = store.Policy{Recreate: 1}
	s := r.create(t, request)
	file := filepath.Join(s.Spec.Mounts[0].Source, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.world.Vanish(s.ID); err != nil {
		t.Fatal(err)
	}
	r.Reconcile(t.Context())
	eventually(t, "it is made again", func() bool {
		row, err := r.store.Sandboxes().Sandbox(t.Context(), s.ID)
		return err == nil && row.State == sandpit.StateRunning && row.Recreated == 1
	})
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if err := r.world.Vanish(s.ID); err != nil { // once too often
		t.Fatal(err)
	}
	r.Reconcile(t.Context())
	eventually(t, "it is gone", func() bool { return r.state(s.ID) == sandpit.StateDeleted })
	wantTempDirs(t, dir, 0)
}

// TestTempDirCrash ends the manager while it makes or deletes a sandbox: the next one
// leaves nothing of its temporary directory.
func TestTempDirCrash(t *testing.T) {
	t.Parallel()
	for _, op := range []fake.Op{fake.OpCreate, fake.OpDestroy} {
		for _, after := range []bool{false, true} {
			t.Run(string(op), func(t *testing.T) {
				t.Parallel()
				r, dir := newTempRig(t)
				r.world.Inject(fake.Fault{Op: op, Delay: time.Hour, After: after})
				done := make(chan struct{})
				go func() {
					defer close(done)
					s, err := r.Create(t.Context(), withTemp())
					if err == nil {
						_ = r.Delete(t.Context(), s.ID)
					}
				}()
				eventually(t, "it begins", func() bool { return r.world.Calls(op, "") == 1 })
				wantTempDirs(t, dir, 1)
				r.crash(t)
				<-done
				r.open(t)
				eventually(t, "it is gone", func() bool { return len(r.List(manager.Filter{})) == 0 })
				wantTempDirs(t, dir, 0)
			})
		}
	}
}

// TestTempDirOfOthers has a temporary directory exchanged for something else: that is
// left alone, told, and keeps no sandbox.
func TestTempDirOfOthers(t *testing.T) {
	t.Parallel()
	r, dir := newTempRig(t)
	s := r.create(t, withTemp())
	outer := filepath.Dir(s.Spec.Mounts[0].Source)
	if err := os.Rename(outer, filepath.Join(dir, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), outer); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Delete(ctx, s.ID); err != nil {
		t.Error(err)
	}
	r.wantState(t, s.ID, sandpit.StateDeleted)
	if _, err := os.Stat(filepath.Join(dir, "elsewhere", "files")); err != nil {
		t.Error(err)
	}
	if events := strings.Join(r.events(t, s.ID), "\n"); !strings.Contains(events, "remove temporary directory permission_denied") {
		t.Errorf("events: %s", events)
	}
}
